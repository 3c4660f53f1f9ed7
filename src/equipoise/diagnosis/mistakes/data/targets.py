"""Targets from which nothing can be learnt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.diagnosis.sources import DIFFERENCES, LIKELIHOODS
from equipoise.instrument.batches import samples, tensors
from equipoise.instrument.recording.graph import Given, Node
from equipoise.records import wording
from equipoise.records.finding import Finding
from equipoise.training.losses import IGNORED

# Fewer may be equal by chance.
_ENOUGH = 16
# What compares outputs with targets.
_COMPARING = ("nll_loss", "cross_entropy", "mse_loss", "l1_loss", "huber_loss", "sub", "rsub")


def of_targets(traced: TracedPass) -> list[Finding]:
    """Targets that are all equal, in every batch, where there are no others beside them.

    What a likelihood ignores does not count, as the rim of objects in segmentations.

    Args:
        traced: The pass, with others; they are drawn only if targets of the first are equal.
    """
    compared = [
        (source.value, _ignored(node))
        for node in traced.after_layers  # what is subtracted before is no target
        if any(part in node.name for part in _COMPARING)
        if node.name not in DIFFERENCES or traced.is_error(node)
        for source in node.inputs
        if isinstance(source, Given) and source.kind == "data" and not source.value.requires_grad
        if any(traced.tensor(other).requires_grad for other in node.inputs)
    ]
    targets = {
        place: (values, ignored)
        for place, values in enumerate(tensors(traced.batch))
        for value, ignored in compared
        if _is(values, value)
    }
    if not all(_is_constant(_counted(*target)) for target in targets.values()):
        return []
    for place, (_, ignored) in targets.items():
        batches = list(traced.more())
        all_of_them = [values for batch in batches for values in tensors(batch)[place : place + 1]]
        flat = torch.cat([values.detach().flatten() for values in all_of_them])
        counted = _counted(flat, ignored)
        if len(counted) >= _ENOUGH and _is_constant(counted):
            share = 1 - len(counted) / len(flat)
            return [_equal(float(counted[0]), batches, ignored if share else None, share)]
    return []


def _equal(value: float, batches: Sequence[Any], ignored: int | None, share: float) -> Finding:
    count = sum(map(samples, batches))
    left_out = (
        f", but for the {wording.percent(share)} that are {ignored}, which the loss ignores"
        if ignored is not None
        else ""
    )
    return Finding(
        "warning",
        "All targets are equal",
        f"On all {count:,} samples of {wording.count(len(batches), 'batch')} the target is "
        f"{wording.number(value)}{left_out}: a constant output is the best answer.",
        "Shuffle the data, as sorted ones look like this, and look at how targets are made."
        if ignored is None
        else f"If {ignored} is a class, give it the number of that class: a mask of 0 and 255 "
        "becomes one of 0 and 1 by mask // 255.",
    )


def _ignored(node: Node) -> int | None:
    """The number of a class that a likelihood leaves out, if it is one."""
    if node.name not in LIKELIHOODS:
        return None
    return int(node.arguments[4] if len(node.arguments) > 4 else IGNORED)


def _counted(values: Tensor, ignored: int | None) -> Tensor:
    flat = values.detach().flatten()
    return flat if ignored is None else flat[flat != ignored]


def _is_constant(flat: Tensor) -> bool:
    return len(flat) > 0 and bool((flat == flat[0]).all())


def _is(one: Tensor, other: Tensor) -> bool:
    return (
        one.numel() == other.numel()
        and one.dtype == other.dtype
        and torch.equal(one.flatten(), other.flatten())
    )
