"""Steps of a network with batch norm and with BNP, timed in turns, and their operations.

A layer with n inputs, m outputs and N rows costs 6 N n m operations; BNP adds
4 n N + 6 n m + 2 m + 8 n, batch norm of the same inputs 32 n N + 4 n. For a convolution n counts
the columns of the unfolded input in m's product, and channels elsewhere; N counts positions.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import repeat

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from equipoise import models
from equipoise.models import Norm
from equipoise.preconditioners import BNP
from equipoise_papers.stopwatch import Stopwatch
from equipoise_papers.sweeps.cell import Cell, Excerpt

BATCHES = {"fc": (16, 256, 512), "cnn5": (16, 128)}
VARIANTS = (
    "vanilla",
    "BN",
    "BN and input",
    "BNP",
    "BNP by step()",
    "BNP every 10 steps",
)
_EVERY = 10
# Channels and side of the images.
IMAGES = {"cpu": (1, 28), "cuda": (3, 32)}
# Images of the data loader's set.
_LOADED = 5_000


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
        variants = {name: self.stepper(name, batch_size) for name in VARIANTS}
        seconds = _turns(
            {name: step for name, (_, step) in variants.items()},
            self.blocks,
            self._in_a_turn,
            self.runs_on(),
        )
        plain = seconds["vanilla"]
        example, _ = next(_the_same(batch_size, self.runs_on()))
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
        batches = (_loaded if self.loads else _the_same)(batch_size, self.runs_on())
        return _stepper(self.network, variant, batches)


Batch = tuple[Tensor, Tensor]


def _the_same(batch_size: int, device: torch.device) -> Iterator[Batch]:
    """One batch without end."""
    channels, side = IMAGES[device.type]
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(batch_size, channels, side, side, generator=generator).to(device)
    y = torch.randint(10, (batch_size,), generator=generator).to(device)
    return repeat((x, y))


def _loaded(batch_size: int, device: torch.device) -> Iterator[Batch]:
    """Batches of a data loader, epoch after epoch, that are moved to the device."""
    channels, side = IMAGES[device.type]
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(
        256, (_LOADED, channels, side, side), dtype=torch.uint8, generator=generator
    )
    labels = torch.randint(10, (len(images),), generator=generator).tolist()
    pairs = list(zip(images, labels, strict=True))
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

    _run_watched(model, batch, (nn.Linear, nn.Conv2d), hook)
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

    _run_watched(model, batch, (nn.BatchNorm1d, nn.BatchNorm2d), hook)
    return extra


def _run_watched(
    model: nn.Module, batch: Tensor, kinds: tuple[type[nn.Module], ...], hook: Callable[..., None]
) -> None:
    with ExitStack() as hooks, torch.no_grad():
        for module in model.modules():
            if isinstance(module, kinds):
                hooks.enter_context(module.register_forward_hook(hook))
        model(batch)
