"""A model, its data and its loss, checked by one forward pass before any work begins."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from equipoise.data.catalogue import load
from equipoise.data.source import Samples, Source
from equipoise.data.user import as_source
from equipoise.instrument.forward import run_on_batch
from equipoise.instrument.normalisers import is_batch_norm
from equipoise.instrument.snapshot import untouched
from equipoise.instrument.types import Batch, LossFunction
from equipoise.training.losses import UnsuitableBatchError, default_loss

Model: TypeAlias = nn.Module | Callable[[], nn.Module]

# With fewer rows the expectation of 1/variance is infinite.
_LEAST_ROWS = 4


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
    """

    build: Callable[[], nn.Module]
    source: Source
    loss_fn: LossFunction
    batch_size: int
    device: torch.device
    seed: int
    held: tuple[Batch, ...]

    @classmethod
    def prepare(
        cls,
        model: Model,
        data: object,
        *,
        loss_fn: LossFunction | None = None,
        batch_size: int = 64,
        batches: int = 1,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> Problem:
        """Draw batches, choose a loss by their targets if none is given, and run the model once.

        Args:
            model: A factory; or a module, which is copied and so not changed.
            data: A name, or anything that :func:`equipoise.checkup` takes.
            loss_fn: ``loss_fn(model, batch)``.
            batch_size: Samples per batch, where the data do not fix it; at most as many as a pair
                of tensors has.
            batches: How many to draw.
            device: Where the model runs.
            seed: Seed of weights and batches.

        Raises:
            ValueError: If the factory, the data, the loss or the batch size cannot be used.
        """
        build = (lambda: copy.deepcopy(model)) if isinstance(model, nn.Module) else model
        source = load(data) if isinstance(data, str) else as_source(data, type(data).__name__)
        place = torch.device(device)
        if isinstance(source, Samples) and not isinstance(data, str | Samples):
            batch_size = min(batch_size, len(source))  # a pair of tensors may be one small batch
        held = _draw(source, batch_size, batches, place, seed)
        loss = loss_fn or default_loss(held[0])
        problem = cls(build, source, loss, batch_size, place, seed, held)
        problem.rehearse(problem.fresh(seed))
        return problem

    @property
    def first(self) -> Batch:
        """The first batch."""
        return self.held[0]

    def fresh(self, seed: int | None = None) -> nn.Module:
        """Build the model with a seed, or with the current random state."""
        return fresh(self.build, self.first, seed)

    def rehearse(self, model: nn.Module) -> None:
        """Run a model on the first batch; see :func:`rehearse`."""
        rehearse(model, self.first, self.loss_fn, self.source.name)

    def draw(self, count: int, seed: int) -> tuple[Batch, ...]:
        """Draw batches of one size."""
        return _draw(self.source, self.batch_size, count, self.device, seed)

    def batches(self, steps: int, seed: int) -> Iterator[Batch]:
        """Yield one batch per training step."""
        generator = torch.Generator().manual_seed(seed)
        for x, y in self.source.batches(self.batch_size, steps, generator):
            yield x.to(self.device), y.to(self.device)

    def joined(self, rows: int) -> Batch | None:
        """Join batches to one of at least ``rows`` rows; ``None`` if their shapes differ."""
        drawn = self.draw(max(1, -(-rows // self.batch_size)), self.seed)
        if len({(x.shape[1:], y.shape[1:]) for x, y in drawn}) != 1:
            return None
        return torch.cat([x for x, _ in drawn]), torch.cat([y for _, y in drawn])


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
        "batch_size": len(problem.first[0]),
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "seconds": time.perf_counter() - started,
    }


def name_of(model: Model) -> str:
    """Name a model for a report: its class, or its factory's name."""
    if isinstance(model, nn.Module):
        return type(model).__name__
    name = getattr(model, "__name__", type(model).__name__)
    return "model" if name == "<lambda>" else str(name)


def _draw(
    source: Source, batch_size: int, count: int, device: torch.device, seed: int
) -> tuple[Batch, ...]:
    """Draw batches of one size; a loader's shorter last batch is left out."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [(x.to(device), y.to(device)) for x, y in source.batches(batch_size, count, generator)]
    largest = max(len(x) for x, _ in drawn)
    return tuple(batch for batch in drawn if len(batch[0]) == largest)


def fresh(build: Callable[[], nn.Module], batch: Batch, seed: int | None = None) -> nn.Module:
    """Call the factory and move the model to the batch's device; lazy layers take its shapes.

    Args:
        build: The factory.
        batch: A batch that the model takes.
        seed: Seed to build with; by default the current random state.

    Raises:
        ValueError: If the factory raises, or does not return a module.
    """
    with seeded(seed) if seed is not None else contextlib.nullcontext():
        try:
            model = build()
        except Exception as error:
            raise ValueError(
                f"the model factory raised {type(error).__name__}: {error}. Call it by hand with "
                "the same arguments to see where."
            ) from error
        if not isinstance(model, nn.Module):
            raise ValueError(
                f"the model factory returned {type(model).__name__}, not a torch.nn.Module. Point "
                "to a callable that builds and returns the model."
            )
        model = model.to(batch[0].device)
        if any(isinstance(p, nn.UninitializedParameter) for p in model.parameters()):
            with torch.no_grad():
                run_on_batch(model, batch)
        return model


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the random state inside the block, and restore the caller's afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def rehearse(model: nn.Module, batch: Batch, loss: LossFunction, data: str) -> None:
    """Run one batch forward and check the loss.

    Raises:
        ValueError: If the model fails, a batch norm has too few rows, or the loss is not a finite
            scalar.
    """
    shape = list(batch[0].shape)
    try:
        with untouched(model), _counting_rows(model):
            value = loss(model, batch)
    except UnsuitableBatchError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"the model or the loss failed on a batch of {data} with inputs of shape {shape}: "
            f"{reason} (--debug shows where.) Give data of the shape that the model takes."
        ) from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"the loss must be a tensor with one number, got {got}.")
    if not torch.isfinite(value):
        raise ValueError(
            f"the loss is {value.item()} on a batch of {data} with inputs of shape {shape}. "
            "Check the scale of the data and of the initial weights."
        )


@contextlib.contextmanager
def _counting_rows(model: nn.Module) -> Iterator[None]:
    """Refuse batch norms in training mode that see too few rows; PyTorch refuses only one."""

    def check(module: nn.Module, args: tuple[Any, ...]) -> None:
        given = args[0] if args else None
        if not (module.training and isinstance(given, Tensor) and given.ndim > 1):
            return
        rows = given.numel() // max(given.shape[1], 1)
        if rows < _LEAST_ROWS:
            raise UnsuitableBatchError(
                f"batch size {given.shape[0]} is too small for a model with batch norm: with "
                f"{rows} rows, fewer than {_LEAST_ROWS}, its gradient has no finite second "
                f"moment. Use --batch-size {_LEAST_ROWS} or more."
            )

    handles = [
        module.register_forward_pre_hook(check)
        for module in model.modules()
        if is_batch_norm(module)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def draws_new_weights(model: nn.Module, other: nn.Module) -> bool:
    """Whether two calls of a factory gave different weights; a factory with a checkpoint does not.

    Raises:
        ValueError: If they gave different architectures.
    """
    mine, others = ({k: v.shape for k, v in m.state_dict().items()} for m in (model, other))
    if mine != others:
        raise ValueError(
            "the model factory returned another architecture when it was called again. Make it "
            "build the same layers each time; only weights may be random."
        )
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return any(not torch.equal(p.detach(), q.detach()) for p, q in pairs)
