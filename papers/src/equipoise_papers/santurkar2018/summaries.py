"""Numbers of runs, summarised over seeds, looks and layers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from equipoise_papers.experiments.verdict import Check, Verdict
from equipoise_papers.judging import positive, standard_error
from equipoise_papers.santurkar2018.training import Look, Normaliser, ProbedTraining, Run

_WEIGHTS = ("Conv2d", "Linear")


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean over seeds and its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} ± {self.error:.1g}"


def spread(values: Iterable[float]) -> Spread:
    """Mean and standard error. The mean of values that are not all finite is not finite."""
    kept = list(values)
    if not kept:
        return Spread(math.nan, math.nan)
    return Spread(statistics.fmean(kept), standard_error(kept))


def runs_of(
    results: Mapping[ProbedTraining, Run], norm: Normaliser, *, probed: bool = True
) -> list[Run]:
    """Runs of a normaliser, by seed; those with probes are at the paper's rate."""
    return [r for c, r in results.items() if c.norm == norm and bool(c.looks) is probed]


def norms_of(results: Mapping[ProbedTraining, Run]) -> list[Normaliser]:
    """Normalisers in the order of cells."""
    return list(dict.fromkeys(cell.norm for cell in results))


def best_rate(results: Mapping[ProbedTraining, Run], norm: Normaliser) -> tuple[float, Spread]:
    """The rate with the lowest mean loss, and that loss; runs with and without probes count."""
    rates: dict[float, list[float]] = {}
    for cell, run in results.items():
        if cell.norm == norm:
            rates.setdefault(cell.rate, []).append(run.loss)
    rate = min(rates, key=lambda rate: (statistics.fmean(rates[rate]), rate))
    return rate, spread(rates[rate])


def looks_by_step(runs: Sequence[Run]) -> list[tuple[int, list[Look]]]:
    """Looks of all seeds, step by step."""
    found: dict[int, list[Look]] = {}
    for run in runs:
        for look in run.looks:
            found.setdefault(look.step, []).append(look)
    return sorted(found.items())


def series(runs: Sequence[Run], value: Callable[[Look], float]) -> tuple[list[int], list[Spread]]:
    """A number per look, over steps."""
    steps = looks_by_step(runs)
    return [step for step, _ in steps], [spread(map(value, looks)) for _, looks in steps]


def cosine(look: Look) -> float:
    """Mean ICS cosine over weight layers after the first."""
    layers = [layer for layer in look.shift.layers if layer.kind in _WEIGHTS][1:]
    known = [layer.cosine for layer in layers if not math.isnan(layer.cosine)]
    return statistics.fmean(known) if known else math.nan


def relative_shift(look: Look) -> float:
    """Median over weight layers of ‖G − G'‖ / ‖G‖."""
    layers = [layer for layer in look.shift.layers if layer.kind in _WEIGHTS][1:]
    known = [layer.l2 / layer.gradient_norm for layer in layers if layer.gradient_norm > 0]
    return statistics.median(known) if known else math.nan


def loss_width(look: Look) -> float:
    """Largest over smallest loss along the gradient."""
    low, high = look.landscape.loss_band
    return high / low if low > 0 else math.nan


def change_width(look: Look) -> float:
    """Largest change of the gradient along itself."""
    band = look.landscape.gradient_change_band
    return math.nan if band is None else band[1]


def beta(look: Look) -> float:
    """Effective β-smoothness."""
    return look.landscape.beta


def drift(runs: Sequence[Run]) -> Spread:
    r"""How far one unit's distribution moves from look to look.

    Mean of :math:`|\Delta\mu| / \sigma + |\Delta\log\sigma|` over layers and looks.
    """
    return spread(_drift(run) for run in runs)


def _drift(run: Run) -> float:
    moves = [
        abs(now.mean - before.mean) / math.sqrt(before.variance)
        + abs(math.log(now.variance / before.variance)) / 2
        for earlier, later in pairwise(run.looks)
        for before, now in zip(earlier.activations, later.activations, strict=True)
        if min(before.variance, now.variance) > 0
    ]
    return statistics.fmean(moves) if moves else math.nan


@dataclass(frozen=True, slots=True)
class Typical:
    """Geometric mean over seeds and looks, with its error as a factor, because tails are heavy."""

    mean: float
    factor: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} (×/÷ {self.factor:.2g})"


def typical(runs: Sequence[Run], value: Callable[[Look], float], *, skip: int = 1) -> Typical:
    """Geometric mean of a positive number over seeds and over looks after the first ``skip``."""
    logs = []
    for run in runs:
        values = [value(look) for look in run.looks[skip:]]
        known = [math.log(v) for v in values if math.isfinite(v) and v > 0]
        if known:
            logs.append(statistics.fmean(known))
    found = spread(logs)
    factor = math.exp(found.error) if math.isfinite(found.error) else 1.0
    return Typical(math.exp(found.mean), factor)


def average(runs: Sequence[Run], value: Callable[[Look], float], *, skip: int = 1) -> Spread:
    """Mean of a number over seeds and over looks after the first ``skip``."""
    per_run = []
    for run in runs:
        known = [v for v in map(value, run.looks[skip:]) if math.isfinite(v)]
        if known:
            per_run.append(statistics.fmean(known))
    return spread(per_run)


def typically_below(claim: str, one: Typical, other: Typical, names: tuple[str, str]) -> Check:
    """Check that one geometric mean is below another by more than twice their joint error."""
    found = f"{names[0]} {one}, {names[1]} {other}"
    joint = math.hypot(math.log(one.factor), math.log(other.factor))
    return Check(claim, found, positive(math.log(other.mean / one.mean), 2 * joint))


def below(claim: str, one: Spread, other: Spread, names: tuple[str, str]) -> Check:
    """Check that one mean is below another by more than twice their joint error."""
    gap = other.mean - one.mean
    joint = math.hypot(*(e if math.isfinite(e) else 0.0 for e in (one.error, other.error)))
    found = f"{names[0]} {one}, {names[1]} {other}; gap {gap:.3g}, needed {2 * joint:.3g}"
    return Check(claim, found, positive(gap, 2 * joint))


def verdict(
    results: Mapping[ProbedTraining, Run], checks: Callable[[], tuple[Check, ...]]
) -> Verdict:
    """Judge, unless only a few steps were taken."""
    if any(cell.data == "digits" or cell.steps < 100 for cell in results):
        return Verdict((), left_out=("smoke trains a few steps only; it is not judged",))
    on_images = any(cell.network == "vgg" for cell in results)
    small = any(cell.data == "fashion-mnist" for cell in results)
    left = ("CIFAR-10 and the full VGG: no colour images at this scale",)
    return Verdict(checks(), left_out=left if on_images and small else ())
