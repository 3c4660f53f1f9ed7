"""One training with probes on the way; all figures of the paper are drawn from such runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import repeat
from typing import Literal

import torch
from torch import Tensor, nn

from equipoise import data, models, probes
from equipoise.data import Samples
from equipoise.instrument import Batch, LossFunction, untouched
from equipoise.probes import CovariateShift, Landscape
from equipoise.training import Curve, cross_entropy, evaluate, train
from equipoise_papers.devices import moved, training_device
from equipoise_papers.santurkar2018.deep_linear import deep_linear, gaussian_regression
from equipoise_papers.stacked.losses import summed_squared_error
from equipoise_papers.sweeps.cell import Cell, Excerpt, Work

Direction = Literal["gradient", "random"]
Normaliser = Literal["none", "batch", "noisy", "noise", "l1", "l2", "linf"]

# The paper's grids: ½ to 4 times the rate for VGG, 1/100 to 30 times for the linear network.
_REACH = {"vgg": (0.5, 4.0), "dln": (0.01, 30.0)}
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_TEST_SAMPLES = 2000
# Samples in a step of an excerpt on a CPU, and its test images.
EXCERPT_SAMPLES = 8


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often one unit's outputs fall into bins of equal width.

    Args:
        low: Left end of the first bin, the least output.
        high: Right end of the last bin, the largest output.
        counts: Outputs in each bin.
    """

    low: float
    high: float
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Activations:
    """One layer's outputs for the same held-out inputs.

    Args:
        layer: Name of the layer.
        mean: Mean of one unit, over samples and positions.
        variance: Variance of the same unit.
        quantiles: 5, 25, 50, 75 and 95 % of the same unit.
        histogram: Of the same unit, where it was asked for.
    """

    layer: str
    mean: float
    variance: float
    quantiles: tuple[float, ...]
    histogram: Histogram | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """Everything that was measured at one step, on one batch.

    Args:
        step: Steps taken before.
        landscape: Along the gradient.
        shift: Internal covariate shift of each layer under the step of SGD.
        activations: Outputs of a few layers.
    """

    step: int
    landscape: Landscape
    shift: CovariateShift
    activations: tuple[Activations, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Losses and measurements of a training.

    Args:
        loss: Mean training loss of the second half of the steps; infinite if it diverged. Of the
            linear network per sample.
        final: Mean over the last tenth.
        curve: Training loss against steps.
        accuracy: On test images; nan for the linear network, or after divergence.
        diverged_at: Step at which the loss was no longer finite.
        looks: What probes measured.
    """

    loss: float
    final: float
    curve: Curve
    accuracy: float
    diverged_at: int | None
    looks: tuple[Look, ...]


@dataclass(frozen=True, slots=True)
class ProbedTraining(Cell[Run]):
    """One training.

    Args:
        network: ``vgg``, six to sixteen convolutions, or ``dln``, 25 linear layers.
        data: Set of images, or ``gaussian``.
        norm: Normaliser after each layer; see :func:`equipoise.models.make_norm`.
        rate: Learning rate of plain SGD.
        batch_size: Samples per step; 0 for all of them.
        steps: Number of steps.
        seed: Seed of weights, data order and noise.
        looks: How often probes measure, at equal distances from the start; 0 for never.
        points: Points along the gradient at each measurement.
    """

    network: str
    data: str
    norm: Normaliser
    rate: float
    batch_size: int
    steps: int
    seed: int
    looks: int
    points: int = 8

    def runs_on(self) -> torch.device:
        """Where to train: without ``--device``, the paper's own data take a GPU."""
        return training_device(large=self.data == "cifar10")

    def excerpt(self, steps: int) -> Excerpt:
        """The first steps, with a look before and one after them if there are any.

        VGG has fewer samples on a CPU, as one step takes long.
        """
        pairs = (self.looks + 1) // 2
        if self.network != "vgg" or self.runs_on().type != "cpu":
            cell = replace(self, steps=steps, looks=min(self.looks, 1))
            return Excerpt(cell, self.steps, pairs)
        size = min(self.batch_size, EXCERPT_SAMPLES)
        part = {field.name: getattr(self, field.name) for field in fields(ProbedTraining)}
        cell = _Begun(**part | {"steps": steps, "looks": 0, "batch_size": size})
        share = self.batch_size / size
        return Excerpt(
            cell,
            math.ceil(self.steps * share),
            math.ceil(max(pairs * share, _TEST_SAMPLES / EXCERPT_SAMPLES)),
            replace(cell, steps=1, looks=1) if self.looks else None,
        )

    def work(self) -> Work:
        """Steps, and looks."""
        return Work(self.steps, self.looks)

    def test_samples(self) -> int:
        """Test images."""
        return _TEST_SAMPLES

    def direction(self) -> Direction:
        """Along what probes measure the landscape."""
        return "gradient"

    def histogram_bins(self) -> int:
        """Bins of the activations' histograms; 0 for none."""
        return 0

    def run(self) -> Run:
        """Train once, with probes on the way."""
        device = self.runs_on()
        samples, test = samples_of(self.data)
        loss_fn = summed_squared_error if self.network == "dln" else cross_entropy
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            model = _build(self, samples).to(device)
            looks = _Looks(self, model, loss_fn, samples)
            looks.take(0)
            history = train(
                model,
                moved(_batches(self, samples), device),
                loss_fn,
                torch.optim.SGD(model.parameters(), lr=self.rate),
                listener=looks,
            )
            finished = history.diverged_at is None
            accuracy = math.nan
            if finished and test is not None:
                accuracy = _accuracy(model, test, self.test_samples())
        scale = len(samples) if self.network == "dln" else 1
        curve = history.curve()
        return Run(
            loss=history.mean_loss() / scale,
            final=history.mean_loss(0.1) / scale,
            curve=Curve(curve.steps, tuple(loss / scale for loss in curve.losses)),
            accuracy=accuracy,
            diverged_at=history.diverged_at,
            looks=tuple(looks.taken),
        )


@dataclass(frozen=True, slots=True)
class _Begun(ProbedTraining):
    """The first steps of a training, and few test images."""

    def test_samples(self) -> int:
        """As many as a step's samples."""
        return self.batch_size


@dataclass(frozen=True, slots=True)
class RandomlyProbed(ProbedTraining):
    """One training whose landscape is measured along a Gaussian direction.

    Args:
        directions: ``random``; as a field it tells these records from the others.
    """

    directions: Literal["random"] = "random"

    def direction(self) -> Direction:
        """Along a Gaussian vector of the gradient's norm."""
        return "random"


@dataclass(frozen=True, slots=True)
class Sampled(ProbedTraining):
    """One training whose activations are recorded as histograms too.

    Args:
        bins: Of each histogram.
    """

    bins: int = 40

    def histogram_bins(self) -> int:
        """As many as the field says."""
        return self.bins


class _Looks:
    """Listener of the training that probes the model at some steps, on a batch of the data."""

    def __init__(
        self, cell: ProbedTraining, model: nn.Module, loss_fn: LossFunction, samples: Samples
    ) -> None:
        self.taken: list[Look] = []
        self._cell, self._model, self._loss_fn = cell, model, loss_fn
        self._every = cell.steps // cell.looks if cell.looks else 0
        size, self._device = cell.batch_size or len(samples), cell.runs_on()
        # Separate batches, so that training uses the same data with and without probes.
        self._batches = samples.batches(size, cell.looks + 1, torch.Generator().manual_seed(99))
        self._held: Batch | None = None
        self._directions = torch.Generator(self._device).manual_seed(cell.seed)

    def __call__(self, step: int, loss: float) -> None:
        if self._every and step % self._every == 0:
            self.take(step)

    def take(self, step: int) -> None:
        """Probe the model as it is now."""
        if not self._every:
            return
        cell, model = self._cell, self._model
        batch = next(self._batches) if cell.batch_size else (self._held or next(self._batches))
        batch = batch[0].to(self._device), batch[1].to(self._device)
        self._held = self._held or batch
        low, high = (cell.rate * reach for reach in _REACH[cell.network])
        steps = torch.logspace(math.log10(low), math.log10(high), cell.points).tolist()
        self.taken.append(
            Look(
                step,
                probes.landscape(
                    model,
                    self._loss_fn,
                    batch,
                    steps=steps,
                    direction=cell.direction(),
                    generator=self._directions,
                ),
                probes.covariate_shift(model, self._loss_fn, batch, cell.rate),
                _activations(model, self._held[0], cell.histogram_bins()),
            )
        )


def _activations(model: nn.Module, inputs: Tensor, bins: int) -> tuple[Activations, ...]:
    """One unit of the first, a middle and the last hidden layer, on the same inputs."""
    found: list[Activations] = []

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def record(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            unit = output[:, 0].flatten().double().cpu()
            quantiles = torch.quantile(unit, torch.tensor(_QUANTILES, dtype=torch.float64))
            mean, variance = float(unit.mean()), float(unit.var())
            histogram = _histogram(unit, bins) if bins else None
            found.append(Activations(name, mean, variance, tuple(quantiles.tolist()), histogram))

        return record

    with untouched(model), torch.no_grad():  # which takes the hooks off again
        for name in observed_layers(model):
            model.get_submodule(name).register_forward_hook(hook(name))
        model(inputs)
    return tuple(found)


def _histogram(unit: Tensor, bins: int) -> Histogram:
    low, high = float(unit.min()), float(unit.max())
    return Histogram(low, high, tuple(map(int, torch.histc(unit, bins, low, high).tolist())))


def observed_layers(model: nn.Module) -> tuple[str, ...]:
    """Names of the first, a middle and the last hidden layer.

    The paper calls their outputs layer inputs: they are before the activation function.
    """
    kinds = nn.Conv2d | nn.Linear
    names = [name for name, module in model.named_modules() if isinstance(module, kinds)]
    return tuple(dict.fromkeys((names[0], names[len(names) // 2], names[-2])))


def _build(cell: ProbedTraining, samples: Samples) -> nn.Module:
    if cell.network == "dln":
        return deep_linear(samples.inputs.shape[1], 25, norm=cell.norm)
    return vgg_for(cell.data, cell.norm, samples)


def vgg_for(name: str, norm: Normaliser, samples: Samples) -> nn.Module:
    """The network for a set of images, with Glorot's weights.

    Small maps and few channels, so that a training takes seconds; the paper's has 64 to 512.
    """
    plan: Literal["vgg16"] | tuple[tuple[int, ...], ...] = ((12, 12), (24, 24), (48, 48))
    if name == "cifar10":
        plan = "vgg16"
    side = 4 if name == "fashion-mnist" else 1
    net = models.vgg(plan, 10, samples.inputs.shape[1], norm=norm, dense=(64,), head_size=side)
    return models.glorot_uniform_(net)


def _batches(cell: ProbedTraining, samples: Samples) -> Iterator[Batch]:
    if not cell.batch_size:
        return repeat((samples.inputs, samples.targets), cell.steps)
    return samples.batches(cell.batch_size, cell.steps, torch.Generator().manual_seed(cell.seed))


def _accuracy(model: nn.Module, test: Samples, count: int) -> float:
    device = next(model.parameters()).device
    x, y = test.inputs[:count].to(device), test.targets[:count].to(device)
    found = evaluate(model, x, y, cross_entropy).accuracy
    return math.nan if found is None else found


@cache
def samples_of(name: str) -> tuple[Samples, Samples | None]:
    """Training and test samples, cached because all cells of a worker use the same."""
    if name == "gaussian":
        return gaussian_regression(), None
    split = data.split(name).standardised(pixels=False)
    return split.train, split.test
