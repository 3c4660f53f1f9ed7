"""Targets from which nothing can be learnt."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.diagnosis.sources import DIFFERENCES
from equipoise.instrument.batches import samples, tensors
from equipoise.instrument.recording.graph import Given
from equipoise.records import wording
from equipoise.records.finding import Finding

# Fewer may be equal by chance.
_ENOUGH = 16
# What compares outputs with targets.
_COMPARING = ("nll_loss", "cross_entropy", "mse_loss", "l1_loss", "huber_loss", "sub", "rsub")


def of_targets(traced: TracedPass) -> list[Finding]:
    """Targets that are all equal, in every batch, where there are no others beside them.

    Args:
        traced: The pass, with others; they are drawn only if targets of the first are equal.
    """
    compared = [
        source.value
        for node in traced.after_layers  # what is subtracted before is no target
        if any(part in node.name for part in _COMPARING)
        if node.name not in DIFFERENCES or traced.is_error(node)
        for source in node.inputs
        if isinstance(source, Given) and source.kind == "data" and not source.value.requires_grad
        if any(traced.tensor(other).requires_grad for other in node.inputs)
    ]
    targets = {
        place: values
        for place, values in enumerate(tensors(traced.batch))
        if any(_is(values, value) for value in compared)
    }
    if not all(map(_is_constant, targets.values())):
        return []
    for place in targets:
        batches = list(traced.more())
        all_of_them = [values for batch in batches for values in tensors(batch)[place : place + 1]]
        flat = torch.cat([values.detach().flatten() for values in all_of_them])
        if len(flat) >= _ENOUGH and _is_constant(flat):
            count = sum(map(samples, batches))
            return [
                Finding(
                    "warning",
                    "All targets are equal",
                    f"On all {count:,} samples of {wording.count(len(batches), 'batch')} the "
                    f"target is {wording.number(float(flat[0]))}: a constant output is the best "
                    "answer.",
                    "Shuffle the data, as sorted ones look like this, and look at how targets are "
                    "made.",
                )
            ]
    return []


def _is_constant(values: Tensor) -> bool:
    flat = values.detach().flatten()
    return len(flat) > 0 and bool((flat == flat[0]).all())


def _is(one: Tensor, other: Tensor) -> bool:
    return (
        one.numel() == other.numel()
        and one.dtype == other.dtype
        and torch.equal(one.flatten(), other.flatten())
    )
