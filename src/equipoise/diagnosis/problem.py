"""A model, its data and its loss, checked by one forward pass before any work begins."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils.data import DataLoader

from equipoise.data.catalogue import load
from equipoise.data.source import Source
from equipoise.data.user import as_source
from equipoise.diagnosis.factories import built, fresh, printing_once
from equipoise.diagnosis.inputs.adapt import AdaptedLoss, Loss, check_loss, find_loss
from equipoise.diagnosis.inputs.frameworks import is_trainer, own_data, taken_apart
from equipoise.diagnosis.refusals import (
    failed,
    refuse_unreadable,
)
from equipoise.diagnosis.rehearsal import (
    LossOnData,
    Rehearsal,
    counting_rows,
    rehearse,
)
from equipoise.instrument.batches import cast, is_pair, mapped, moved, samples, tensors
from equipoise.instrument.clock import Stopwatch
from equipoise.instrument.kept_batches import OnCopies, copied, on_copies
from equipoise.instrument.normalisers import is_batch_norm
from equipoise.instrument.random_states import seeded
from equipoise.instrument.replay import refuse_frozen
from equipoise.instrument.snapshot import untouched
from equipoise.instrument.types import Batch, LossFunction
from equipoise.numerics.checks import check_seed
from equipoise.records.wording import first_sentence
from equipoise.training.losses import UnsuitableBatchError

Model: TypeAlias = nn.Module | Callable[[], nn.Module] | Any
"""A module, a factory or class, or a Hugging Face Trainer."""

# Batches beside those that are held, to see what a few samples do not use.
_MORE = 6
_WEIGHTS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Problem:
    """What is measured or trained: a model factory, data, a loss and a device.

    Args:
        build: Returns a new model with freshly drawn weights, in the mode it is trained in.
        source: Where batches come from.
        loss_fn: ``loss_fn(model, batch)``.
        batch_size: Samples per batch, where the source does not fix it.
        device: Where the model runs.
        seed: Seed of weights and batches.
        held: Batches that were drawn for the check, and are measured on.
        assumptions: How model, data and loss were made to fit together.
        step_seconds: What one training step about takes.
        dtype: What floating-point data are converted to; None leaves them as they are.
        kept_bytes: What a forward pass keeps for its gradients; None where nothing tells.
        loss_is_assumed: Whether the loss is neither the user's nor the model's own.
        initialises_itself: Whether the model's first pass sets parameters by its batch.
    """

    build: Callable[[], nn.Module]
    source: Source
    loss_fn: LossFunction
    batch_size: int
    device: torch.device
    seed: int
    held: tuple[Batch, ...]
    assumptions: tuple[str, ...] = ()
    dtype: torch.dtype | None = None
    step_seconds: float = math.nan
    kept_bytes: int | None = None
    loss_is_assumed: bool = False
    initialises_itself: bool = False

    @classmethod
    def prepare(
        cls,
        model: Model,
        data: object = None,
        *,
        loss_fn: Loss | None = None,
        batch_size: int = 64,
        batches: int = 1,
        device: torch.device | str | None = None,
        seed: int = 0,
    ) -> Problem:
        """Draw batches, find the loss if none is given, and run the model once.

        Args:
            model: A factory or a class; a module, which is copied and so not changed; or a
                Hugging Face Trainer.
            data: A name, or anything that :func:`equipoise.checkup` takes; by default those that
                the model brings along.
            loss_fn: ``loss_fn(model, batch)``, a criterion of (output, target), or a name.
            batch_size: Samples per batch, where the data do not fix it; at most as many as
                data that are given as objects have.
            batches: How many to draw.
            device: Where the model runs; by default where a module is.
            seed: Seed of weights and batches.

        Raises:
            ValueError: If the factory, the data, the loss or the batch size cannot be used.
        """
        check_loss(loss_fn)
        seed = check_seed(seed)
        given = taken_apart(model)
        build = printing_once(given.build)
        place = _place_of(model) if device is None else _usable_device(device)
        if data is None:
            data = given.data if given.data is not None else _own_data(model, build, seed)
        source = load(data) if isinstance(data, str) else as_source(data, _name_of_data(data))
        if isinstance(source, Sized) and not isinstance(data, str | Source):
            batch_size = min(batch_size, len(source))  # data may be one small batch
        held = _draw(source, batch_size, batches, place, seed)
        made = fresh(build, held[0], seed)
        refuse_frozen(made)
        with untouched(made):  # what cannot be put back is refused before anything runs
            pass
        held, dtype = _in_type_of(made, held)
        assumed = list(given.words)
        if dtype is not None:
            short = str(dtype).removeprefix("torch.")
            assumed.append(f"floating-point data are converted to {short}")
        if loss_fn is None and given.compute_loss is not None:
            loss_fn = given.compute_loss
        try:
            found = find_loss(made, copied(held[0]), loss_fn, counting_rows)
        except UnsuitableBatchError:
            raise
        except Exception as error:
            assumes = loss_fn is None or isinstance(loss_fn, str | nn.Module)
            raise failed(held[0], source.name, error, call_is_assumed=assumes) from error
        assumed += found.words
        if not made.training:
            assumed.append("the model is in evaluation mode, and is checked in it")
        # The model may write to its batches.
        loss = on_copies(LossOnData(found.loss, source.name))
        problem = cls(
            build,
            source,
            loss,
            batch_size,
            place,
            seed,
            held,
            tuple(assumed),
            dtype,
            loss_is_assumed=found.is_assumed,
        )
        watch = Stopwatch(place)
        seen = problem.rehearse(made)
        if seen.initialises_itself:
            assumed.append(
                "the model's first pass sets parameters by its batch, and it is checked after that"
            )
        return replace(
            problem,
            step_seconds=3 * watch.seconds(),  # of a training step a third is the forward pass
            kept_bytes=seen.kept_bytes,
            assumptions=tuple(assumed),
            initialises_itself=seen.initialises_itself,
        )

    @property
    def first(self) -> Batch:
        """The first batch."""
        return self.held[0]

    @property
    def patience(self) -> float:
        """Seconds that a pass in evaluation may take, where some models do more: a step, or ½."""
        return max(0.5, self.step_seconds)

    @property
    def adapted_loss(self) -> AdaptedLoss | None:
        """The loss of outputs and targets that is called with the model; None of another."""
        loss: object = self.loss_fn
        while isinstance(loss, OnCopies | LossOnData):
            loss = loss.of
        return loss if isinstance(loss, AdaptedLoss) else None

    def fresh(self, seed: int | None = None) -> nn.Module:
        """Build the model with a seed, or with the current random state."""
        model = fresh(self.build, self.first, seed)
        if self.initialises_itself:
            with seeded(self.seed if seed is None else seed):
                self.loss_fn(model, self.first)
        return model

    def rehearse(self, model: nn.Module) -> Rehearsal:
        """Run a model on the first batch; see :func:`rehearse`."""
        return rehearse(model, self.first, self.loss_fn, self.source.name)

    def draw(self, count: int, seed: int) -> tuple[Batch, ...]:
        """Draw batches of one size."""
        drawn = _draw(self.source, self.batch_size, count, self.device, seed)
        return tuple(map(self._typed, drawn))

    def more(self) -> Iterator[Batch]:
        """The batches that are held, and then others, where the data have some."""
        yield from self.held
        if not isinstance(getattr(self.source, "loader", None), Iterator):  # it would be used up
            yield from self.draw(_MORE, self.seed + 1)

    def batches(self, steps: int, seed: int) -> Iterator[Batch]:
        """Yield one batch per training step."""
        generator = torch.Generator().manual_seed(seed)
        for batch in self.source.batches(self.batch_size, steps, generator):
            yield self.placed(batch)

    def is_extensible(self, model: nn.Module) -> bool:
        """Whether larger batches can be drawn, in which every sample is treated as before."""
        return not (self.source.fixed_batches or any(map(is_batch_norm, model.modules())))

    def halved(self) -> Problem | None:
        """The same with half of the samples of its batches; None where they cannot be parted."""
        count = samples(self.first)
        if count < 2 or any(
            len(x) != count for held in self.held for x in tensors(held) if x.ndim
        ):
            return None
        half = count // 2
        held = tuple(mapped(lambda x: x[:half] if x.ndim else x, held) for held in self.held)
        return replace(self, held=held, batch_size=min(half, self.batch_size))

    def joined(self, rows: int) -> Batch | None:
        """Join pairs to one of at least ``rows`` rows; ``None`` without pairs of one shape."""
        drawn = self.draw(max(1, -(-rows // self.batch_size)), self.seed)
        if not all(map(is_pair, drawn)):
            return None
        if len({(x.shape[1:], y.shape[1:]) for x, y in drawn}) != 1:
            return None
        return torch.cat([x for x, _ in drawn]), torch.cat([y for _, y in drawn])

    def placed(self, batch: Batch) -> Batch:
        """A batch on the device and in the type of the weights."""
        refuse_unreadable(batch, self.source.name)
        return self._typed(moved(batch, self.device))

    def _typed(self, batch: Batch) -> Batch:
        return batch if self.dtype is None else cast(batch, self.dtype)


def facts(problem: Problem, model: nn.Module, target: str, started: float) -> dict[str, Any]:
    """Fields that every record of an examination has.

    Args:
        problem: What was examined.
        model: One model of the factory.
        target: What the model is called.
        started: ``time.perf_counter()`` at the start.
    """
    return {
        "equipoise": version("equipoise"),
        "torch": str(torch.__version__),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "target": target,
        "data": problem.source.name,
        "device": str(problem.device),
        "batch_size": samples(problem.first),
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "seconds": time.perf_counter() - started,
        "assumptions": problem.assumptions,
    }


def name_of(model: Model) -> str:
    """Name a model for a report: its class, or its factory's name."""
    model = getattr(model, "model", model) if is_trainer(model) else model
    if isinstance(model, nn.Module):
        return type(model).__name__
    while isinstance(model, partial):
        model = model.func
    name = getattr(model, "__name__", type(model).__name__)
    return "model" if name == "<lambda>" else str(name)


def _draw(
    source: Source, batch_size: int, count: int, device: torch.device, seed: int
) -> tuple[Batch, ...]:
    """Draw batches of one size; a loader's shorter last batch is left out."""
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for batch in source.batches(batch_size, count, generator):
        refuse_unreadable(batch, source.name)
        drawn.append(moved(batch, device))
    largest = max(map(samples, drawn))
    return tuple(batch for batch in drawn if samples(batch) == largest)


def _place_of(given: Any) -> torch.device:
    """The device of a module's weights."""
    model = given.model if is_trainer(given) else given
    if isinstance(model, nn.Module):
        held = next((p for p in model.parameters() if p.device.type != "meta"), None)
        if held is not None:
            return held.device
    return torch.device("cpu")


def _usable_device(name: str | torch.device) -> torch.device:
    """Return a device that holds tensors.

    Raises:
        ValueError: If it is unknown or not there.
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"PyTorch knows no device {name!r}. Name one such as cpu, cuda, cuda:1 or mps."
        ) from error
    try:
        torch.empty(1, device=device)
    # PyTorch has a class of its own for each: builds without the backend, backends without
    # kernels, backends that are packages of their own (hpu).
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        raise ValueError(
            f"cannot use device {str(name)!r}: {first_sentence(error)} Try cpu."
        ) from error
    return device


def _own_data(model: Model, build: Callable[[], nn.Module], seed: int) -> Any:
    """What a LightningModule trains on, if it says so."""
    with seeded(seed):
        data = own_data(model if isinstance(model, nn.Module) else built(build))
    if data is None:
        raise ValueError(
            f"{name_of(model)} brings no data along. Give a DataLoader, a Dataset, a batch, or a "
            "name such as 'digits' as the second argument."
        )
    return data


def _name_of_data(data: object) -> str:
    loader = getattr(data, "dataset", None)
    kind = type(data).__name__
    return f"{kind} of {type(loader).__name__}" if isinstance(data, DataLoader) else kind


def _in_type_of(
    model: nn.Module, held: tuple[Batch, ...]
) -> tuple[tuple[Batch, ...], torch.dtype | None]:
    """Batches in the type of the model's weights, as far as these are of one type."""
    types = {p.dtype for p in model.parameters() if p.dtype in _WEIGHTS}
    found = {x.dtype for x in tensors(held[0]) if x.is_floating_point()}
    if len(types) != 1 or found <= types:
        return held, None
    (dtype,) = types
    return tuple(cast(batch, dtype) for batch in held), dtype
