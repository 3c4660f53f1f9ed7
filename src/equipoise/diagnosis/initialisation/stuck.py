"""Weights that start at zero and will stay there, whatever is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.instrument import LossFunction, untouched
from equipoise.records import wording
from equipoise.records.finding import Finding

# Length of a step along each tensor's gradient, and steps at most: each wakes another layer.
_STEP, _MOST = 0.01, 12
_NAMES = 3


def stuck_at_zero(model: nn.Module, loss_fn: LossFunction, batch: Any) -> tuple[str, ...]:
    """Matrices that start at zero, without a gradient also when all that have one have moved.

    Where one of two factors starts at zero, the first step moves it and the second one the other;
    where both do, as in two successive layers, each waits for the other.

    Args:
        model: It is left bit for bit as it is.
        loss_fn: Its loss on a batch.
        batch: One batch.

    Returns:
        Their names, in the model's order.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    zeros = [name for name, p in trained.items() if p.ndim > 1 and not bool(p.any())]
    waiting = set(zeros)
    if not waiting:
        return ()
    with untouched(model), torch.inference_mode(False), torch.enable_grad():
        before: set[str] = set()
        for _ in range(_MOST):
            loss = loss_fn(model, batch)
            if not loss.requires_grad:  # nothing of it is trained
                return ()
            found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
            gradients = {name: g for name, g in zip(trained, found, strict=True) if g is not None}
            waiting = {n for n in waiting if n in gradients and not bool(gradients[n].any())}
            if not waiting or waiting == before:
                break
            before = waiting
            _step(trained, gradients)
    return tuple(name for name in zeros if name in waiting)


def _step(trained: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
    """Move every tensor along its gradient, by the same distance."""
    for name, gradient in gradients.items():
        largest = gradient.abs().max()
        if largest > 0 and bool(torch.isfinite(largest)):
            trained[name].data.sub_(gradient / largest * _STEP)


def conclude_stuck(stuck: Sequence[str]) -> list[Finding]:
    """The finding about weights that stay at zero."""
    if not stuck:
        return []
    named = wording.listed(stuck, _NAMES)
    return [
        Finding(
            "critical",
            f"{wording.count(len(stuck), 'weight')} that stay"
            f"{'s' if len(stuck) == 1 else ''} at zero for ever",
            f"{wording.capital(named)} start at zero, and still have no gradient when all other "
            "weights have moved: each waits for another that is zero as well.",
            "Start one of two successive layers, or of two factors, away from zero.",
        )
    ]
