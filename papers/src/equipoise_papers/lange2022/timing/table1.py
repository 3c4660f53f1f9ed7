"""Table 1: time of a step with batch norm and with BNP, beside the number of operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from equipoise_papers.experiments import style
from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.experiments.verdict import Check, Verdict, ours
from equipoise_papers.lange2022.timing.timed import (
    BATCHES,
    IMAGES,
    VARIANTS,
    TimedNetwork,
    Timings,
)

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

# Times are level if they differ by at most this share, here and in Fig. 9; the paper's do, and it
# calls them quite comparable.
LEVEL = 0.05
# With fewer turns, times are not judged.
_ENOUGH_TURNS = 10
TOO_FEW = "smoke times one turn only; it is not judged"
NO_GPU = "seconds on a GPU: one thread of a CPU is timed"
_RANDOM = "CIFAR-10: random inputs"
_EXTRAPOLATED = "whole epochs: turns of a few steps, extrapolated"
# Table 1's seconds per epoch on a V100: BN, BNP.
_EPOCH_IMAGES = 50_000
_PAPER = {16: (16.08, 16.69), 256: (10.81, 10.70), 512: (10.67, 10.57)}


def cells(scale: Scale) -> tuple[TimedNetwork, ...]:
    """One cell per network: what is compared must be timed side by side."""
    blocks, steps = {"smoke": (1, 10), "small": (40, 20), "paper": (200, 50)}[scale]
    alone = tuple(
        TimedNetwork(network, blocks, steps, device) for device in IMAGES for network in BATCHES
    )
    return (*alone, TimedNetwork("fc", blocks, steps, "cuda", loads=True))


def draw(figure: FigureBase, results: Mapping[TimedNetwork, Timings]) -> None:
    """Draw ratios as bars, with the ratio of operations as a mark on each."""
    columns = min(len(results), 3)
    rows = -(-len(results) // columns)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    panels = grid.flatten()[: len(results)]
    for unused in grid.flatten()[len(results) :]:
        unused.axis("off")
    for axes, (cell, timings) in zip(panels, results.items(), strict=True):
        batches = sorted({row.batch_size for row in timings.rows})
        names = [name for name in VARIANTS if name != "vanilla"]
        for place, name in enumerate(names):
            bars = [
                r for b in batches for r in timings.rows if (r.batch_size, r.variant) == (b, name)
            ]
            x = [index + (place - 2) * 0.16 for index in range(len(batches))]
            colour = style.PALETTE[place]
            axes.bar(x, [r.median for r in bars], 0.15, color=colour, label=name)
            axes.plot(
                x,
                [r.floor for r in bars],
                "_",
                color=style.INK,
                markersize=10,
                label="ratio of operations" if name == names[-1] else None,
            )
        axes.axhline(1, color=style.MUTED, linewidth=0.8)
        axes.set_xticks(range(len(batches)), [str(b) for b in batches])
        axes.set_xlabel("batch size")
        axes.set_title(_title(cell), fontsize=8)
    for first in grid[:, 0]:
        first.set_ylabel("step, over plain SGD's", fontsize=8)
    # Below the panels, because bars fill them.
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=7)


def _title(cell: TimedNetwork) -> str:
    network = {"fc": "2 × 100", "cnn5": "5-layer CNN"}[cell.network]
    where = {"cpu": "CPU", "cuda": "GPU"}[cell.device]
    return f"{network}, {where}{', data loader' if cell.loads else ''}"


@dataclass(frozen=True, slots=True)
class Dense:
    """Timings of the fully connected network, which the paper times.

    Args:
        cpu: Of steps on a CPU.
        steps: Of steps on a GPU.
        epochs: Of steps on a GPU whose batches a data loader reads.
    """

    cpu: Timings | None
    steps: Timings | None
    epochs: Timings | None

    @classmethod
    def of(cls, results: Mapping[TimedNetwork, Timings]) -> Dense:
        """Find them."""
        found = {(c.device, c.loads): t for c, t in results.items() if c.network == "fc"}
        places = (("cpu", False), ("cuda", False), ("cuda", True))
        return cls(*(found.get(place) for place in places))

    def check(self, claim: str, holds: Callable[[Mapping[int, float]], bool], *at: int) -> Check:
        """Judge a sentence about a GPU's epochs, at some batch sizes.

        It is decided if steps alone and those that a data loader feeds have the same answer: what
        else the paper's epochs hold, it does not say. A CPU decides nothing.
        """
        if self.steps is None or self.epochs is None:
            assert self.cpu is not None
            return Check(claim, f"{_in_words(self.cpu, at)}; {_of_an_epoch(self.cpu)}", None)
        answers = {holds(over_bn(found, at)) for found in (self.steps, self.epochs)}
        return Check(
            claim,
            f"on a GPU, steps alone {_in_words(self.steps, at)}; with a data loader "
            f"{_in_words(self.epochs, at)}; {_of_an_epoch(self.steps)}",
            answers.pop() if len(answers) == 1 else None,
        )

    @property
    def left_out(self) -> tuple[str, ...]:
        """What the paper's times have, and these do not."""
        return (*(() if self.steps else (NO_GPU,)), _RANDOM, _EXTRAPOLATED)


def few(results: Mapping[TimedNetwork, Timings]) -> bool:
    """Whether too few turns were timed, or not the network that the paper times."""
    dense = any(cell.network == "fc" for cell in results)
    return not dense or any(cell.blocks < _ENOUGH_TURNS for cell in results)


def over_bn(timings: Timings, at: Sequence[int] = BATCHES["fc"]) -> dict[int, float]:
    """BNP's time over batch norm's at each batch size."""
    return {b: timings.ratio(b, "BNP") / timings.ratio(b, "BN") for b in at}


def _in_words(timings: Timings, at: Sequence[int] = BATCHES["fc"]) -> str:
    """Write BNP's time over batch norm's, beside the paper's."""
    paper = {b: bnp / bn for b, (bn, bnp) in _PAPER.items()}
    ratios = over_bn(timings, at)
    return ", ".join(f"{b}: {ratio:.2f} (paper {paper[b]:.2f})" for b, ratio in ratios.items())


def _of_an_epoch(timings: Timings) -> str:
    """Say how much of the paper's epochs the steps would change.

    The paper's epochs take as long at batch 512 as at 256: something else than steps bounds them.
    """
    shares = []
    for batch, (bn, _) in _PAPER.items():
        step, other = (
            next(r for r in timings.rows if (r.batch_size, r.variant) == (batch, name))
            for name in ("BN", "BNP")
        )
        extra = (other.milliseconds - step.milliseconds) / 1e3 * _EPOCH_IMAGES / batch
        shares.append(f"{100 * extra / bn:.1f} % at {batch}")
    return (
        "what BNP's steps take longer, as a share of the paper's epochs, which hold more than "
        f"steps: {', '.join(shares)}"
    )


def level(ratios: Mapping[int, float]) -> bool:
    """Whether times are level at every batch size."""
    return all(abs(ratio - 1) <= LEVEL for ratio in ratios.values())


def on_a_cpu(claim: str, timings: Timings, holds: Callable[[Mapping[int, float]], bool]) -> Check:
    """Judge a sentence of steps on a CPU, of which the paper says nothing."""
    ratios = over_bn(timings)
    return ours(Check(f"steps on a CPU: {claim}", _in_words(timings), holds(ratios)))


def judge(results: Mapping[TimedNetwork, Timings]) -> Verdict:
    """Check Table 1's order, which a CPU's times do not decide, and our budgets."""
    if few(results):
        return Verdict((), left_out=(TOO_FEW,))
    dense = Dense.of(results)
    small, *large = BATCHES["fc"]
    faster = f"BN is faster than BNP at batch {small}"
    as_fast = (
        f"at batch 256 and 512 BNP is level with BN or faster (takes at most {LEVEL:.0%} longer)"
    )

    def slower_at_small(ratios: Mapping[int, float]) -> bool:
        return ratios[small] > 1

    def as_fast_at_large(ratios: Mapping[int, float]) -> bool:
        return all(ratios[b] <= 1 + LEVEL for b in large)

    checks = [
        dense.check(faster, slower_at_small, small),
        dense.check(as_fast, as_fast_at_large, *large),
    ]
    if dense.cpu is not None:
        checks += [
            on_a_cpu(faster, dense.cpu, slower_at_small),
            on_a_cpu(as_fast, dense.cpu, as_fast_at_large),
            *_budgets(dense.cpu, large),
        ]
    return Verdict(tuple(checks), left_out=dense.left_out, fidelity="reduced")


def _budgets(fc: Timings, large: Sequence[int]) -> tuple[Check, Check]:
    """Check our own limits for BNP's time."""
    lean = fc.ratio(16, "BNP every 10 steps")
    pairs = {b: (fc.ratio(b, "BNP"), fc.ratio(b, "BN and input")) for b in large}
    return (
        ours(
            Check(
                "BNP, which centres the input too, costs at 256 and 512 no more than BN that "
                "normalises the input too",
                "; ".join(f"{b}: {bnp:.2f} against {bn:.2f}" for b, (bnp, bn) in pairs.items()),
                all(bnp <= bn for bnp, bn in pairs.values()),
            )
        ),
        ours(
            Check(
                "with statistics every 10 steps at most 1.35 times plain SGD at 16",
                f"{lean:.2f}",
                lean <= 1.35,
            )
        ),
    )


EXPERIMENT = Experiment(
    name="lange2022.table1",
    title="Time of a training step with BN and with BNP, beside the count of operations",
    claim="At batch 16 BN is faster than BNP, at 256 and 512 BNP is level or faster; by how much, "
    "Fig. 9 judges.",
    choices=(
        "times depend on the machine and on what else runs: records are those of one run, on one "
        "thread, variants in turns; medians of ratios",
        "PyTorch instead of TensorFlow on a V100; on a CPU 784 inputs instead of 3,072",
        "on a GPU two kinds of steps: on a batch that is there, and on batches that a data loader "
        "converts image by image in the same process; a sentence is decided where both agree",
        "the paper has no row for the plain network, here every ratio is to it",
        "BNP by step(): preconditioned by a call before the optimizer's, and not by its hook",
        "marks are ratios of operations: small layers are bound by calls, not by operations",
        f"level means within {LEVEL:.0%}, of the median over turns, as in Fig. 9",
    ),
    cells=cells,
    draw=draw,
    judge=judge,
)
