"""Fig. 8: condition number of the output layer's Hessian with and without P, and κ(D)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from equipoise import data, models, preconditioners
from equipoise.instrument import Batch
from equipoise.training import Curve, cross_entropy, evaluate, train
from equipoise_papers.devices import moved, training_device
from equipoise_papers.experiments import style
from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.experiments.verdict import Check, Verdict
from equipoise_papers.judging import difference, spread
from equipoise_papers.lange2022.methods import METHODS, attached, optimizer
from equipoise_papers.sweeps.cell import Cell, Excerpt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

_BATCH = 60
_FEW, _MANY = 60, 2000
_TEST_SAMPLES = 2000
_RATES = {"vanilla": 0.1, "bnp_paper": 0.5}


@dataclass(frozen=True, slots=True)
class Look:
    """Condition numbers after some steps.

    Args:
        step: Steps taken.
        rank: Of the Hessian block, of 101.
        hessian: κ of ĤᵀSĤ on its range.
        preconditioned: κ of ĜᵀSĜ, with the samples' own P and ε = 0.
        promised: κ(D)².
        curvature: κ(S).
    """

    step: int
    rank: int
    hessian: float
    preconditioned: float
    promised: float
    curvature: float

    @property
    def gain(self) -> float:
        """Factor by which P improves the condition number."""
        return self.hessian / self.preconditioned


@dataclass(frozen=True, slots=True)
class Course:
    """A training, its test accuracies and its condition numbers.

    Args:
        curve: Training loss against steps.
        accuracies: On test images, at each look.
        looks: Condition numbers.
    """

    curve: Curve
    accuracies: tuple[float, ...]
    looks: tuple[Look, ...]


@dataclass(frozen=True, slots=True)
class WatchedTraining(Cell[Course]):
    """One training of the 2 × 100 network with condition numbers on the way.

    Args:
        data: Set of images.
        method: How it is trained.
        rows: Samples over which the Hessian is taken; the paper's 60 are the batch.
        steps: Steps of training.
        looks: How often, at equal distances from the start, condition numbers are taken.
        seed: Seed of weights and data order.
    """

    data: str
    method: str
    rows: int
    steps: int
    looks: int
    seed: int

    def runs_on(self) -> torch.device:
        """Where to train: on the CPU without ``--device``; condition numbers are the CPU's."""
        return training_device()

    def excerpt(self, steps: int) -> Excerpt:
        """The first steps, with a look before and one after them."""
        return Excerpt(replace(self, steps=steps, looks=1), self.steps, (self.looks + 1) // 2)

    def run(self) -> Course:
        """Train, and compute condition numbers on the way."""
        split, device = data.split(self.data), self.runs_on()
        samples, test = split.train, split.test
        generator = torch.Generator().manual_seed(self.seed)
        held = next(samples.batches(min(self.rows, len(samples)), 1, generator))
        method = METHODS[self.method]
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            model = models.glorot_uniform_(_network(samples.inputs.shape[1:])).to(device)
            stepper = optimizer(method, model, _RATES[self.method])
            batches = moved(samples.batches(_BATCH, self.steps, generator), device)
            x, y = (part[:_TEST_SAMPLES].to(device) for part in (test.inputs, test.targets))
            looks = [_look(model, held, 0)]
            accuracies = [_accuracy(model, (x, y))]

            def listener(step: int, loss: float) -> None:
                if step % (self.steps // self.looks) == 0:
                    looks.append(_look(model, held, step))
                    accuracies.append(_accuracy(model, (x, y)))

            with attached(method, model, stepper):
                history = train(model, batches, cross_entropy, stepper, listener=listener)
        return Course(history.curve(), tuple(accuracies), tuple(looks))


def cells(scale: Scale) -> tuple[WatchedTraining, ...]:
    """Two methods, over the batch's rows and over many, for several seeds."""
    name, steps, looks, seeds = {
        "smoke": ("digits", 20, 2, 1),
        "small": ("fashion-mnist", 2000, 20, 3),
        "paper": ("cifar10", 16_000, 160, 5),
    }[scale]
    return tuple(
        WatchedTraining(name, method, rows, steps, looks, seed)
        for method in _RATES
        for rows in (_FEW, _MANY)
        for seed in range(seeds)
    )


def _network(shape: torch.Size) -> nn.Sequential:
    return models.mlp(shape.numel(), 10, depth=2, width=100, norm="none")


def _accuracy(model: nn.Module, test: Batch) -> float:
    x, y = test
    found = evaluate(model, x, y, cross_entropy).accuracy
    assert found is not None  # Targets are classes.
    return found


def _look(model: nn.Module, held: Batch, step: int) -> Look:
    x, y = held[0].double(), held[1]
    # A copy in float64: in float32 rounding hides all but 30 of the directions. The copy also has
    # no hooks of the preconditioner.
    twin = _network(x.shape[1:]).double()
    twin.load_state_dict(model.state_dict())
    head = twin.get_submodule("head")
    assert isinstance(head, nn.Linear)
    block = preconditioners.hessian_block(head, lambda: cross_entropy(twin, (x, y)))
    found = preconditioners.block_conditions(block)
    return Look(
        step,
        found.raw.rank,
        found.raw.value,
        found.preconditioned.value,
        found.promised_gain,
        found.curvature.value,
    )


def draw(figure: FigureBase, results: Mapping[WatchedTraining, Course]) -> None:
    """Draw training, condition numbers, and the gain beside the promised one."""
    training, *panels = figure.subplots(2, 3, sharex=True).T
    _draw_training(training[0], training[1], results)
    for (upper, lower), rows in zip(panels, (_FEW, _MANY), strict=True):
        for index, method in enumerate(_RATES):
            looks = _means(results, method, rows)
            if not looks:
                continue
            steps = [look.step for look in looks]
            colour, label = style.PALETTE[index], METHODS[method].label
            upper.plot(steps, [look.hessian for look in looks], color=colour, label=label)
            after = [look.preconditioned for look in looks]
            upper.plot(steps, after, color=colour, linestyle="--", label=f"{label}, with P")
            gains, marker = [look.gain for look in looks], style.MARKERS[index]
            lower.plot(
                steps, gains, color=colour, marker=marker, markersize=3, label=f"{label}, gain"
            )
            promised = [look.promised for look in looks]
            lower.plot(steps, promised, color=colour, linestyle=":", label=f"{label}, κ(D)²")
        for axes in (upper, lower):
            axes.set_yscale("log")
            axes.tick_params(labelsize=7)
        upper.set_title(f"{rows:,} rows, rank ≤ {min(rows, 101)}", fontsize=8)
        lower.set_xlabel("step", fontsize=8)
    (above, below), _ = panels
    above.set_ylabel("κ of the Hessian", fontsize=8)
    below.set_ylabel("gain: κ over κ with P", fontsize=8)
    for axes in (above, below):
        axes.legend(fontsize=5, handlelength=3)


def _draw_training(upper: Axes, lower: Axes, results: Mapping[WatchedTraining, Course]) -> None:
    """Training loss above test accuracy, as means over seeds; rows change no training."""
    for index, method in enumerate(_RATES):
        courses = _by_seed(results, method)
        if not courses:
            continue
        colour, label = style.PALETTE[index], METHODS[method].label
        curves = [course.curve for course in courses]
        losses = list(map(statistics.fmean, zip(*(c.losses for c in curves), strict=True)))
        upper.plot(curves[0].steps, losses, color=colour, label=label)
        shares = [course.accuracies for course in courses]
        percent = [100 * statistics.fmean(at_look) for at_look in zip(*shares, strict=True)]
        lower.plot([look.step for look in courses[0].looks], percent, color=colour)
    upper.set_yscale("log")
    upper.set_title("training", fontsize=8)
    upper.set_ylabel("training loss", fontsize=8)
    upper.legend(fontsize=6)
    lower.set_ylabel("test accuracy, %", fontsize=8)
    lower.set_xlabel("step", fontsize=8)
    for axes in (upper, lower):
        axes.tick_params(labelsize=7, which="both")


def judge(results: Mapping[WatchedTraining, Course]) -> Verdict:
    """Check the sentences about Fig. 8, over every look of every seed."""
    if any(cell.data == "digits" for cell in results):
        return Verdict((), left_out=("smoke trains a few steps only; it is not judged",))
    few, many = _gains(results, _FEW), _gains(results, _MANY)
    promised = _promises(results, _FEW)
    scales = [math.sqrt(promise) for promise in promised]
    of_many = [math.sqrt(promise) for promise in _promises(results, _MANY)]
    plain, helped = (_losses(results, method) for method in _RATES)
    faster = difference(helped, plain)
    unhelped, better = (_early_accuracies(results, method) for method in _RATES)
    sooner = difference(better, unhelped)
    checks = (
        Check(
            "BNP accelerates convergence",
            f"training loss of the second half {spread(helped, 3)} with BNP, {spread(plain, 3)} "
            f"without, difference {faster.words(3)}",
            faster.below(),
        ),
        Check(
            "its test accuracy rises sooner (mean over the first half of the steps)",
            f"{spread(better)} % with BNP, {spread(unhelped)} % without, difference "
            f"{sooner.words(1)} points",
            sooner.above(),
        ),
        Check(
            "preconditioning reduces the condition number of the Hessian (at nine looks of ten)",
            f"at {sum(gain > 1 for gain in few)} of {len(few)} looks over 60 rows, gains from "
            f"{min(few):.3g} to {max(few):.3g}; {min(many):.3g} to {max(many):.3g} over 2,000",
            sum(gain > 1 for gain in few) >= 0.9 * len(few),
        ),
        Check(
            "κ(D) is in the range 10² to 10⁵ (at nine looks of ten)",
            f"at {_in_range(scales)} of {len(scales)} looks over 60 rows, {min(scales):.3g} to "
            f"{max(scales):.3g}; over 2,000 at {_in_range(of_many)} of {len(of_many)}, "
            f"{min(of_many):.3g} to {max(of_many):.3g}",
            _in_range(scales) >= 0.9 * len(scales),
        ),
        Check(
            "the condition number improves by roughly κ(D)² (median, within a factor 10)",
            f"median gain {statistics.median(few):.3g}, median κ(D)² "
            f"{statistics.median(promised):.3g}; over 2,000 rows {statistics.median(many):.3g} "
            f"against {statistics.median(_promises(results, _MANY)):.3g}",
            _roughly(few, promised),
        ),
        Check(
            "the block has full rank, so that condition numbers compare",
            f"rank {_ranks(results, _FEW)} of 101 over 60 rows, {_ranks(results, _MANY)} over "
            "2,000",
            min(_rank_list(results, _FEW)) == 101,
            ours=True,
        ),
    )
    if all(cell.data == "cifar10" for cell in results):
        return Verdict(checks)
    steps, looks = max((cell.steps, cell.looks) for cell in results)
    left = (
        "CIFAR-10: Fashion-MNIST at this scale, no colour images",
        f"the whole test set: {_TEST_SAMPLES:,} images",
        f"trainings over epochs: {steps:,} steps, condition numbers every {steps // looks}",
    )
    return Verdict(checks, left, fidelity="stand-in data")


def _in_range(scales: list[float]) -> int:
    return sum(100 <= scale <= 1e5 for scale in scales)


def _roughly(gains: list[float], promises: list[float]) -> bool:
    logs = [math.log10(gain / promise) for gain, promise in zip(gains, promises, strict=True)]
    return abs(statistics.median(logs)) < 1


def _looks(results: Mapping[WatchedTraining, Course], rows: int) -> list[Look]:
    return [look for cell, course in results.items() if cell.rows == rows for look in course.looks]


def _gains(results: Mapping[WatchedTraining, Course], rows: int) -> list[float]:
    return [look.gain for look in _looks(results, rows) if math.isfinite(look.gain)]


def _promises(results: Mapping[WatchedTraining, Course], rows: int) -> list[float]:
    return [look.promised for look in _looks(results, rows) if math.isfinite(look.gain)]


def _rank_list(results: Mapping[WatchedTraining, Course], rows: int) -> list[int]:
    return [look.rank for look in _looks(results, rows)]


def _ranks(results: Mapping[WatchedTraining, Course], rows: int) -> str:
    ranks = _rank_list(results, rows)
    return f"{min(ranks)} to {max(ranks)}"


def _losses(results: Mapping[WatchedTraining, Course], method: str) -> list[float]:
    """Training loss of the second half of the steps, seed by seed."""
    return [
        statistics.fmean(course.curve.losses[len(course.curve.losses) // 2 :])
        for course in _by_seed(results, method)
    ]


def _early_accuracies(results: Mapping[WatchedTraining, Course], method: str) -> list[float]:
    """Mean test accuracy over looks of the first half, in per cent, seed by seed.

    The look before the first step has learnt nothing and is left out.
    """
    return [
        100 * statistics.fmean(course.accuracies[1 : len(course.accuracies) // 2 + 1])
        for course in _by_seed(results, method)
    ]


def _by_seed(results: Mapping[WatchedTraining, Course], method: str) -> list[Course]:
    """One of each seed; rows change no training."""
    courses = {cell.seed: c for cell, c in results.items() if cell.method == method}
    return [course for _, course in sorted(courses.items())]


def _means(results: Mapping[WatchedTraining, Course], method: str, rows: int) -> list[Look]:
    """Geometric means over seeds, look by look."""
    courses = [c for cell, c in results.items() if (cell.method, cell.rows) == (method, rows)]
    return [_mean(looks) for looks in zip(*(course.looks for course in courses), strict=False)]


def _mean(looks: tuple[Look, ...]) -> Look:
    def mean(name: str) -> float:
        values = [getattr(look, name) for look in looks]
        finite = [value for value in values if math.isfinite(value) and value > 0]
        return statistics.geometric_mean(finite) if finite else math.nan

    return Look(
        looks[0].step,
        min(look.rank for look in looks),
        *(mean(name) for name in ("hessian", "preconditioned", "promised", "curvature")),
    )


EXPERIMENT = Experiment(
    name="lange2022.fig8",
    title="Condition number of the first output unit's Hessian with and without BNP, and κ(D)",
    claim="BNP accelerates convergence; P significantly reduces the condition number of the "
    "Hessian, by roughly κ(D)², κ(D) being 10² to 10⁵.",
    choices=(
        "smoke: digits, small: Fashion-MNIST, paper: CIFAR-10 from --data-dir; inputs in [0, 1]",
        "2 × 100 ReLU network, batch 60, vanilla at rate 0.1, BNP (paper) at 0.5",
        "condition number: largest over smallest singular value that is not zero to rounding; "
        "P of the samples' own statistics, without ε",
        "the Hessian over the paper's 60 rows, and over 2,000, where its rank is not cut off by "
        "the number of rows; the same held-out rows at every look",
    ),
    cells=cells,
    draw=draw,
    judge=judge,
)
