"""Table 1: time of a step with batch norm and with BNP, beside the number of operations.

A layer with n inputs, m outputs and N rows costs 6 N n m operations; BNP adds
4 n N + 6 n m + 2 m + 8 n, batch norm of the same inputs 32 n N + 4 n. For a convolution n counts
the columns of the unfolded input in m's product, and channels elsewhere; N counts positions.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from equipoise import models
from equipoise.models import Norm
from equipoise.preconditioners import BNP
from equipoise_papers.experiments import style
from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.experiments.verdict import Check, Verdict, ours
from equipoise_papers.stopwatch import Stopwatch
from equipoise_papers.sweeps.cell import Cell, Excerpt

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

BATCHES = {"fc": (16, 256, 512), "cnn5": (16, 128)}
_VARIANTS = (
    "vanilla",
    "BN",
    "BN and input",
    "BNP",
    "BNP by step()",
    "BNP every 10 steps",
)
_EVERY = 10
# Times are level if they differ by at most this share, here and in Fig. 9; the paper's do, and it
# calls them quite comparable.
LEVEL = 0.05
# With fewer turns, times are not judged.
_ENOUGH_TURNS = 10
TOO_FEW = "smoke times one turn only; it is not judged"
NO_GPU = "seconds on a GPU: one thread of a CPU is timed"
_RANDOM = "CIFAR-10: random inputs"
_EXTRAPOLATED = "whole epochs: turns of a few steps, extrapolated"
# Channels and side of the images.
_IMAGES = {"cpu": (1, 28), "cuda": (3, 32)}
# Table 1's seconds per epoch on a V100: BN, BNP.
_EPOCH_IMAGES = 50_000
_PAPER = {16: (16.08, 16.69), 256: (10.81, 10.70), 512: (10.67, 10.57)}


@dataclass(frozen=True, slots=True)
class Timing:
    """One variant at one batch size, relative to the plain network.

    Args:
        batch_size: Samples.
        variant: One of the ways to train.
        milliseconds: Time of a step in the fastest turn.
        ratio: Ratio of the fastest turns.
        median: Median over turns of the ratio to the plain network's neighbouring turn.
        floor: Ratio of the numbers of operations.
    """

    batch_size: int
    variant: str
    milliseconds: float
    ratio: float
    median: float
    floor: float


@dataclass(frozen=True, slots=True)
class Timings:
    """All variants and batch sizes of a network."""

    rows: tuple[Timing, ...]

    def ratio(self, batch_size: int, variant: str) -> float:
        """Median ratio to the plain network."""
        (found,) = [r for r in self.rows if (r.batch_size, r.variant) == (batch_size, variant)]
        return found.median


@dataclass(frozen=True, slots=True)
class TimedNetwork(Cell[Timings]):
    """All variants of one network, timed in turns on one thread.

    Args:
        network: ``fc`` (2 × 100) or ``cnn5``.
        blocks: How often each variant has a turn.
        steps: Steps in a turn; a multiple of ten.
        device: ``cpu``, with images of 28 × 28 numbers, or ``cuda``, with CIFAR-10's 3 × 32 × 32.
        loads: Whether each step takes its batch from a data loader, as epochs do, which converts
            one image after the other; otherwise all steps take one batch, which is there.
    """

    network: str
    blocks: int
    steps: int
    device: str = "cpu"
    loads: bool = False

    def runs_on(self) -> torch.device:
        """The device that is timed."""
        return torch.device(self.device)

    def possible_here(self) -> bool:
        """Whether there is such a device."""
        return self.device == "cpu" or torch.cuda.is_available()

    def excerpt(self, steps: int) -> Excerpt:
        """The first turns, of one step each."""
        return Excerpt(replace(self, blocks=steps, steps=1), self.blocks * self._in_a_turn, 1)

    @property
    def _in_a_turn(self) -> int:
        quick = self.network == "fc" and not self.loads
        return self.steps if quick else min(self.steps, _EVERY)

    def run(self) -> Timings:
        """Time every variant at every batch size."""
        batches = BATCHES[self.network]
        return Timings(tuple(row for batch in batches for row in self.at(batch)))

    def at(self, batch_size: int) -> Iterator[Timing]:
        """Time every variant at one batch size."""
        variants = {name: self.stepper(name, batch_size) for name in _VARIANTS}
        seconds = _turns(
            {name: step for name, (_, step) in variants.items()},
            self.blocks,
            self._in_a_turn,
            self.runs_on(),
        )
        plain = seconds["vanilla"]
        example, _ = next(_batches(batch_size, self.runs_on()))
        own = _operations(variants["vanilla"][0], example)
        for name, (model, _) in variants.items():
            pairs = zip(seconds[name], plain, strict=True)
            yield Timing(
                batch_size,
                name,
                1e3 * min(seconds[name]),
                min(seconds[name]) / min(plain),
                statistics.median(mine / other for mine, other in pairs),
                1 + _extra(model, name, example) / own,
            )

    def stepper(self, variant: str, batch_size: int) -> tuple[nn.Module, Callable[[], None]]:
        """A network and one step of it, ready to be timed."""
        batches = _batches(batch_size, self.runs_on(), loads=self.loads)
        return _stepper(self.network, variant, batches)


def cells(scale: Scale) -> tuple[TimedNetwork, ...]:
    """One cell per network: what is compared must be timed side by side."""
    blocks, steps = {"smoke": (1, 10), "small": (40, 20), "paper": (200, 50)}[scale]
    alone = tuple(
        TimedNetwork(network, blocks, steps, device) for device in _IMAGES for network in BATCHES
    )
    return (*alone, TimedNetwork("fc", blocks, steps, "cuda", loads=True))


Batch = tuple[Tensor, Tensor]


def _batches(batch_size: int, device: torch.device, *, loads: bool = False) -> Iterator[Batch]:
    """The same batch without end, or those of a data loader, epoch after epoch."""
    channels, side = _IMAGES[device.type]
    generator = torch.Generator().manual_seed(0)
    if not loads:
        x = torch.rand(batch_size, channels, side, side, generator=generator).to(device)
        y = torch.randint(10, (batch_size,), generator=generator).to(device)
        yield from repeat((x, y))
    images = torch.randint(
        256, (_EPOCH_IMAGES // 10, channels, side, side), dtype=torch.uint8, generator=generator
    )
    labels = torch.randint(10, (len(images),), generator=generator).tolist()
    pairs = [(image, label) for image, label in zip(images, labels, strict=True)]
    loader = DataLoader(_Converted(pairs), batch_size, shuffle=True, generator=generator)
    while True:
        for x, y in loader:
            yield x.to(device), y.to(device)


class _Converted(Dataset[tuple[Tensor, int]]):
    """Images whose bytes become standardised numbers when they are asked for, one by one."""

    def __init__(self, pairs: Sequence[tuple[Tensor, int]]) -> None:
        self._pairs = pairs

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self._pairs[index]
        return (image.float() / 255 - 0.5) / 0.25, label


def _stepper(
    network: str, variant: str, batches: Iterator[Batch]
) -> tuple[nn.Module, Callable[[], None]]:
    """A network and one step of it on the next batch, ready to be timed."""
    first, _ = next(batches)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = _network(network, variant, *first.shape[1:3]).to(first.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    explicit: BNP | None = None
    if variant.startswith("BNP"):
        bnp = BNP(model, update_every=_EVERY if "every" in variant else 1)
        if "step()" in variant:
            explicit = bnp
        else:
            bnp.attach(optimizer)

    def step() -> None:
        x, y = next(batches)
        optimizer.zero_grad()
        loss: Tensor = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's is not annotated
        if explicit is not None:
            explicit.step()
        optimizer.step()

    return model, step


def _network(network: str, variant: str, channels: int = 1, side: int = 28) -> nn.Module:
    norm: Norm = "batch" if variant.startswith("BN") and not variant.startswith("BNP") else "none"
    on_input = variant.endswith("input")
    if network == "fc":
        return models.mlp(
            channels * side**2,
            10,
            depth=2,
            width=100,
            norm=norm,
            after_activation=True,
            norm_input=on_input,
        )
    net = models.cnn5(10, channels, image_size=side, norm=norm)
    return nn.Sequential(nn.BatchNorm2d(channels), *net) if on_input else net


def _turns(
    steps: Mapping[str, Callable[[], None]], blocks: int, count: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds per step of every turn; variants take turns, so that all see the same load."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for block in range(blocks + 1):
        for name, step in steps.items():
            watch = Stopwatch(device)
            for _ in range(count):
                step()
            if block:  # the first turn warms up
                found[name].append(watch.seconds() / count)
    return found


def _layers(model: nn.Module, batch: Tensor) -> list[tuple[int, int, int, int]]:
    """Columns, channels or features, outputs and rows of each layer with weights."""
    found: list[tuple[int, int, int, int]] = []

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        weight = module.get_parameter("weight")
        rows = output.numel() // weight.shape[0]
        found.append((weight[0].numel(), weight.shape[1], weight.shape[0], rows))

    kinds = nn.Linear | nn.Conv2d
    handles = [m.register_forward_hook(hook) for m in model.modules() if isinstance(m, kinds)]
    with torch.no_grad():
        model(batch)
    for handle in handles:
        handle.remove()
    return found


def _operations(model: nn.Module, batch: Tensor) -> int:
    return sum(6 * rows * n * m for n, _, m, rows in _layers(model, batch))


def _extra(model: nn.Module, variant: str, batch: Tensor) -> float:
    """Number of operations beyond those of the plain network."""
    if variant.startswith("BNP"):
        every = _EVERY if "every" in variant else 1
        return sum(
            (4 * c * rows + 8 * c) / every + 6 * n * m + 2 * m
            for n, c, m, rows in _layers(model, batch)
        )
    extra = 0.0

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal extra
        extra += 32 * output.numel() + 4 * output.shape[1]

    kinds = nn.BatchNorm1d | nn.BatchNorm2d
    handles = [m.register_forward_hook(hook) for m in model.modules() if isinstance(m, kinds)]
    with torch.no_grad():
        model(batch)
    for handle in handles:
        handle.remove()
    return extra


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
        names = [name for name in _VARIANTS if name != "vanilla"]
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
