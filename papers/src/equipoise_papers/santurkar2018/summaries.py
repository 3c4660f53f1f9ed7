"""Numbers of runs, summarised over seeds, looks and layers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from equipoise_papers import judging
from equipoise_papers.experiments.verdict import Check, Verdict
from equipoise_papers.judging import Difference, difference, standard_error
from equipoise_papers.santurkar2018.training import Look, Normaliser, ProbedTraining, Run

_WEIGHTS = ("Conv2d", "Linear")
# What trainings on Fashion-MNIST leave out.
SMALLER_VGG = (
    "CIFAR-10, the full VGG and 15,000 steps: Fashion-MNIST, six convolutions of 12 to 48 "
    "channels and {steps:,} steps at this scale"
)
# Of the deep linear network.
_PAPER_STEPS = 10_000


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


def runs_of(results: Mapping[ProbedTraining, Run], norm: Normaliser) -> list[Run]:
    """Runs of a normaliser with probes, which are at the paper's rate, by seed."""
    return [r for c, r in results.items() if c.norm == norm and c.looks]


def norms_of(results: Mapping[ProbedTraining, Run]) -> list[Normaliser]:
    """Normalisers in the order of cells."""
    return list(dict.fromkeys(cell.norm for cell in results))


def best_rate(
    results: Mapping[ProbedTraining, Run], norm: Normaliser
) -> tuple[float, dict[int, float]]:
    """The rate with the lowest mean loss, and each seed's loss there; all runs count."""
    rates: dict[float, dict[int, float]] = {}
    for cell, run in results.items():
        if cell.norm == norm:
            rates.setdefault(cell.rate, {})[cell.seed] = run.loss
    rate = judging.best_rate(rates)
    return rate, rates[rate]


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


def shift_layers(look: Look) -> list[str]:
    """Layers with weights whose internal covariate shift was measured."""
    return [layer.layer for layer in look.shift.layers if layer.kind in _WEIGHTS]


def cosine(look: Look) -> float:
    """Mean ICS cosine over weight layers after the first."""
    known = _cosines(look)
    return statistics.fmean(known) if known else math.nan


def absolute_cosine(look: Look) -> float:
    """Mean |ICS cosine| over the same layers: those of opposite signs do not cancel."""
    known = _cosines(look)
    return statistics.fmean(map(abs, known)) if known else math.nan


def _cosines(look: Look) -> list[float]:
    layers = [layer for layer in look.shift.layers if layer.kind in _WEIGHTS][1:]
    return [layer.cosine for layer in layers if not math.isnan(layer.cosine)]


def relative_shift(look: Look) -> float:
    """Median over weight layers of ‖G − G'‖ / ‖G‖."""
    layers = [layer for layer in look.shift.layers if layer.kind in _WEIGHTS][1:]
    known = [layer.l2 / layer.gradient_norm for layer in layers if layer.gradient_norm > 0]
    return statistics.median(known) if known else math.nan


def cosine_of(name: str) -> Callable[[Look], float]:
    """ICS cosine of one layer."""
    return lambda look: next(x.cosine for x in look.shift.layers if x.layer == name)


def relative_shift_of(name: str) -> Callable[[Look], float]:
    """‖G − G'‖ / ‖G‖ of one layer."""

    def of(look: Look) -> float:
        layer = next(x for x in look.shift.layers if x.layer == name)
        return layer.l2 / layer.gradient_norm if layer.gradient_norm > 0 else math.nan

    return of


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


def drifts(runs: Sequence[Run]) -> list[float]:
    r"""How far one unit's distribution moves from look to look, seed by seed.

    Mean of :math:`|\Delta\mu| / \sigma + |\Delta\log\sigma|` over layers and looks.
    """
    return [_drift(run) for run in runs]


def _drift(run: Run) -> float:
    moves = [
        move((before.mean, before.variance), (now.mean, now.variance))
        for earlier, later in pairwise(run.looks)
        for before, now in zip(earlier.activations, later.activations, strict=True)
        if min(before.variance, now.variance) > 0
    ]
    return statistics.fmean(moves) if moves else math.nan


def move(before: tuple[float, float], now: tuple[float, float]) -> float:
    r"""How far a distribution moves: :math:`|\Delta\mu| / \sigma + |\Delta\log\sigma|`.

    Args:
        before: Mean and variance.
        now: The same later.
    """
    (mean, variance), (later, varies) = before, now
    return abs(later - mean) / math.sqrt(variance) + abs(math.log(varies / variance)) / 2


def deviations(runs: Sequence[Run]) -> list[float]:
    """Geometric mean over layers and looks of one unit's standard deviation, seed by seed."""
    return [
        statistics.geometric_mean(
            math.sqrt(found.variance)
            for look in run.looks
            for found in look.activations
            if found.variance > 0
        )
        for run in runs
    ]


def typical(
    runs: Sequence[Run], value: Callable[[Look], float], looks: slice = slice(1, None)
) -> list[float]:
    """Geometric mean of a positive number over looks after the first, seed by seed."""
    found = []
    for run in runs:
        known = [v for v in map(value, run.looks[looks]) if math.isfinite(v) and v > 0]
        found.append(statistics.geometric_mean(known) if known else math.nan)
    return found


def average(
    runs: Sequence[Run], value: Callable[[Look], float], looks: slice = slice(1, None)
) -> list[float]:
    """Mean of a number over looks after the first, seed by seed."""
    found = []
    for run in runs:
        known = [v for v in map(value, run.looks[looks]) if math.isfinite(v)]
        found.append(statistics.fmean(known) if known else math.nan)
    return found


def lower(
    claim: str,
    one: Sequence[float],
    other: Sequence[float],
    names: tuple[str, str],
    *,
    margin: float = 0.0,
) -> Check:
    """Check that values are lower than others by seed, or higher by less than a margin."""
    gap = difference(one, other)
    found = f"{names[0]} {spread(one)}, {names[1]} {spread(other)}; {gap.words(3)}"
    return Check(claim, found, gap.below(margin))


def lower_by_factor(
    claim: str,
    one: Sequence[float],
    other: Sequence[float],
    names: tuple[str, str],
    *,
    factor: float = 1.0,
) -> Check:
    """Check that positive values are below ``factor`` times others, by seed, in logarithms."""
    gap = _log_ratio(one, other)
    found = f"{names[0]} {_geometric(one)}, {names[1]} {_geometric(other)}; {gap.factor()}"
    return Check(claim, found, gap.below(math.log(factor)))


def alike(
    claim: str,
    one: Sequence[float],
    other: Sequence[float],
    names: tuple[str, str],
    *,
    factor: float,
) -> Check:
    """Check that positive values differ by less than a factor either way, in logarithms."""
    gap = _log_ratio(one, other)
    found = f"{names[0]} {_geometric(one)}, {names[1]} {_geometric(other)}; {gap.factor()}"
    return Check(claim, found, gap.between(-math.log(factor), math.log(factor)))


def _log_ratio(one: Sequence[float], other: Sequence[float]) -> Difference:
    # A run that diverged has an infinite loss, which no logarithm compares.
    if not all(math.isfinite(v) and v > 0 for v in (*one, *other)):
        return Difference(math.nan, math.nan, len(one))
    return difference([math.log(v) for v in one], [math.log(v) for v in other])


def _geometric(values: Sequence[float]) -> str:
    known = [v for v in values if math.isfinite(v) and v > 0]
    return f"{statistics.geometric_mean(known):.3g}" if known else "diverged"


def ratios_at_equal_distances(runs: Sequence[Run], others: Sequence[Run]) -> list[list[float]]:
    """Log ratio of gradient changes at the same distance moved, seed by seed, look by look.

    Changes of the others are interpolated between their distances, in logarithms of both; points
    outside are left out.
    """
    found = []
    for run, other in zip(runs, others, strict=True):
        logs: list[float] = []
        for look, reference in zip(run.looks[1:], other.looks[1:], strict=True):
            logs += _at_equal_distances(look, reference)
        found.append(logs)
    return found


def _at_equal_distances(look: Look, reference: Look) -> list[float]:
    mine, theirs = _logs(look), _logs(reference)
    found = []
    for distance, change in mine:
        for (low, before), (high, after) in pairwise(theirs):
            if low <= distance <= high and high > low:
                share = (distance - low) / (high - low)
                found.append(change - (before + share * (after - before)))
                break
    return found


def _logs(look: Look) -> list[tuple[float, float]]:
    changes = look.landscape.gradient_changes or ()
    pairs = zip(look.landscape.distances, changes, strict=False)
    return sorted(
        (math.log(d), math.log(c)) for d, c in pairs if d > 0 and c > 0 and math.isfinite(c)
    )


def verdict(
    results: Mapping[ProbedTraining, Run], checks: Callable[[], tuple[Check, ...]]
) -> Verdict:
    """Judge, unless only a few steps were taken."""
    if any(cell.data == "digits" or cell.steps < 100 for cell in results):
        return Verdict((), left_out=("smoke trains a few steps only; it is not judged",))
    if any(cell.data == "fashion-mnist" for cell in results):
        return Verdict(checks(), _left_out(results), fidelity="stand-in data")
    left = (*_few_looks(results), *_short_linear(results))
    return Verdict(checks(), left, fidelity="reduced" if left else "same setting")


def _left_out(results: Mapping[ProbedTraining, Run]) -> tuple[str, ...]:
    """What VGG's figures have and trainings on Fashion-MNIST have not."""
    mine = [cell for cell in results if cell.data == "fashion-mnist"]
    steps = max(cell.steps for cell in mine)
    return (
        SMALLER_VGG.format(steps=steps),
        "the whole test set: 2,000 images",
        *_few_looks(mine),
        *_short_linear(results),
    )


def _few_looks(cells: Iterable[ProbedTraining]) -> tuple[str, ...]:
    """Probes at fewer steps than the source's."""
    looks = max(cell.looks for cell in cells)
    return (f"probes at every step: at {looks + 1} steps",) if looks else ()


def _short_linear(results: Mapping[ProbedTraining, Run]) -> tuple[str, ...]:
    """Trainings of the linear network that end early."""
    steps = {cell.steps for cell in results if cell.network == "dln"}
    short = sorted(count for count in steps if count < _PAPER_STEPS)
    some = "some of them " if max(steps, default=0) >= _PAPER_STEPS else ""
    why = "with the loss averaged, " if some else ""
    return tuple(f"10,000 steps of the linear network: {why}{count:,}" for count in short)
