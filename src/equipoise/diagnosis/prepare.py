"""Draw batches, build the model and run it once, so that errors come before any work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.data.source import Source
from equipoise.instrument.snapshot import untouched
from equipoise.training.losses import LossFunction, UnsuitableBatchError, forward

Batch = tuple[Tensor, Tensor]

# E[1/variance] of fewer rows is infinite.
_LEAST_ROWS = 4


def draw(
    source: Source, batch_size: int, count: int, device: torch.device, seed: int
) -> list[Batch]:
    """Draw batches of one size; a loader's shorter last one is left out."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [(x.to(device), y.to(device)) for x, y in source.batches(batch_size, count, generator)]
    largest = max(len(x) for x, _ in drawn)
    return [batch for batch in drawn if len(batch[0]) == largest]


def joined(
    source: Source, batch_size: int, rows: int, device: torch.device, seed: int
) -> Batch | None:
    """Several batches as one of about so many rows; ``None`` where shapes differ."""
    drawn = draw(source, batch_size, max(1, -(-rows // batch_size)), device, seed)
    if len({(x.shape[1:], y.shape[1:]) for x, y in drawn}) != 1:
        return None
    return torch.cat([x for x, _ in drawn]), torch.cat([y for _, y in drawn])


def fresh(build: Callable[[], nn.Module], batch: Batch, seed: int | None = None) -> nn.Module:
    """Call the factory on the batch's device; lazy layers get their shapes from the batch.

    Args:
        build: The factory.
        batch: A batch that the model takes.
        seed: Random state to build under; by default the current one.

    Raises:
        ValueError: If the factory raises or returns something else than a module.
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
                forward(model, batch)
        return model


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run a block under a seeded random state, and restore the caller's."""
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
    """Refuse batch norms in training that see too few rows, before PyTorch does at one."""

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
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def draws_new_weights(model: nn.Module, other: nn.Module) -> bool:
    """Whether two calls of a factory gave different weights; one with a checkpoint does not.

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
