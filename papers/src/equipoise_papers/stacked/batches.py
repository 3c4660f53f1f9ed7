"""Batches for several models at once: one per model, stacked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from equipoise.instrument import Batch


def stacked_batches(
    iterables: Sequence[Iterable[Batch]],
) -> Iterator[Batch]:
    """Zip the batches of K models into batches of a stack.

    Args:
        iterables: One per model, each of ``(inputs, targets)`` with shapes ``[B, ...]``. They
            end together; the K batches of a step have the same size.

    Yields:
        Inputs ``[K, B, ...]`` and targets ``[K, B, ...]``.

    Raises:
        ValueError: If the batches of one step differ in shape, or one model has fewer of them
            than another.

    Examples:
        >>> ones, twos = torch.ones(4, 3), torch.full((4, 3), 2.0)
        >>> batches = stacked_batches([[(ones, ones[:, 0])], [(twos, twos[:, 0])]])
        >>> [(tuple(x.shape), y.tolist()) for x, y in batches]
        [((2, 4, 3), [[1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]])]
    """
    sources = [iter(iterable) for iterable in iterables]
    step = 0
    while True:
        parts = [next(source, None) for source in sources]
        present = [part for part in parts if part is not None]
        if not present:
            return
        if len(present) < len(parts):
            raise ValueError(
                f"the batches of model {parts.index(None)} end after {step} steps, others "
                "do not: give every model the same number."
            )
        inputs, targets = zip(*present, strict=True)
        yield _stack("inputs", inputs, step), _stack("targets", targets, step)
        step += 1


def check_stacked(batch: Batch, members: int) -> Batch:
    """Refuse a batch that does not hold one batch per model.

    Raises:
        ValueError: Naming its type or shapes.
    """
    if not (
        isinstance(batch, tuple | list)
        and len(batch) == 2
        and all(isinstance(part, Tensor) for part in batch)
    ):
        raise ValueError(
            "train_many needs batches of two tensors, (inputs, targets), as stacked_batches makes "
            f"them; got {type(batch).__name__}."
        )
    inputs, targets = batch
    if inputs.ndim < 2 or len(inputs) != members or inputs.shape[:2] != targets.shape[:2]:
        raise ValueError(
            f"batches for {members} models must have inputs [{members}, B, ...] and targets "
            f"[{members}, B, ...]; got {tuple(inputs.shape)} and {tuple(targets.shape)}."
        )
    return inputs, targets


def _stack(name: str, parts: Sequence[Tensor], step: int) -> Tensor:
    shapes = {tuple(part.shape) for part in parts}
    if len(shapes) > 1:
        raise ValueError(
            f"the {name} of step {step} have shapes {sorted(shapes)}: all models need batches of "
            "one shape. Drop the last batch where it is smaller."
        )
    return torch.stack(list(parts))
