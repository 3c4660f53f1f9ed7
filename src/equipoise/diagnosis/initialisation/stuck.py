"""Weights that have no gradient, and will have none whatever else is trained."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.instrument import LossFunction, untouched
from equipoise.records import wording
from equipoise.records.finding import Finding

# Length of a step along each tensor's gradient, and steps at most: each wakes another layer.
_STEP, _MOST = 0.01, 12
# Share of the matrices' numbers from which those without a gradient are no detail, as experts
# that a batch does not ask are.
_MUCH = 0.5
_NAMES = 3


@dataclass(frozen=True, slots=True)
class Stuck:
    """Names of matrices that no training moves, in the model's order.

    Args:
        zero: They start at zero, and each waits for another that does.
        silent: They do not; the loss does not depend on them wherever the others go.
    """

    zero: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.zero or self.silent)

    @property
    def words(self) -> str:
        """What is so, in a clause."""
        parts = []
        if self.zero:
            parts.append(f"{wording.listed(self.zero, _NAMES)} will stay at zero")
        if self.silent:
            parts.append(f"{wording.listed(self.silent, _NAMES)} will never have a gradient")
        return f"{' and '.join(parts)}, whatever is trained"


def stuck(
    model: nn.Module,
    loss_fn: LossFunction,
    batches: Iterable[Any],
    without_gradient: Collection[str] = (),
) -> Stuck:
    """Matrices without a gradient, also when all that have one have moved.

    Where one of two factors starts at zero, the first step moves it and the second one the other;
    where both do, as in two successive layers, each waits for the other. Units that are silent
    for every sample, as ReLUs behind a large negative bias, let no gradient through either.

    Args:
        model: It is left bit for bit as it is.
        loss_fn: Its loss on a batch.
        batches: Those that are tried.
        without_gradient: Parameters that a pass has shown to have none.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    matrices = [name for name, p in trained.items() if p.ndim > 1]
    zero = [name for name in matrices if not bool(trained[name].any())]
    silent = [name for name in matrices if name in without_gradient and name not in zero]
    if _numbers(trained, silent) < _MUCH * _numbers(trained, matrices):
        silent = []
    waiting = {*zero, *silent}
    if not waiting:
        return Stuck()
    tried = list(batches)
    with untouched(model), torch.inference_mode(False), torch.enable_grad():
        before: set[str] = set()
        for _ in range(_MOST):
            gradients = _gradients(model, loss_fn, tried, trained)
            waiting = {n for n in waiting if n in gradients and not bool(gradients[n].any())}
            if not waiting or waiting == before:
                break
            before = waiting
            _step(trained, gradients)
    return Stuck(*(tuple(name for name in names if name in waiting) for names in (zero, silent)))


def _numbers(trained: Mapping[str, Tensor], names: Sequence[str]) -> int:
    return sum(trained[name].numel() for name in names)


def _gradients(
    model: nn.Module, loss_fn: LossFunction, batches: Sequence[Any], trained: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Gradients of the sum over batches; of a parameter that no loss depends on, none."""
    sums: dict[str, Tensor] = {}
    for batch in batches:
        loss = loss_fn(model, batch)
        if not loss.requires_grad:  # nothing of it is trained
            continue
        found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        for name, gradient in zip(trained, found, strict=True):
            if gradient is not None:
                dense = gradient if gradient.layout is torch.strided else gradient.to_dense()
                sums[name] = sums[name] + dense if name in sums else dense
    return sums


def _step(trained: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
    """Move every tensor along its gradient, by the same distance."""
    for name, gradient in gradients.items():
        largest = gradient.abs().max()
        if largest > 0 and bool(torch.isfinite(largest)):
            trained[name].data.sub_(gradient / largest * _STEP)


def conclude_stuck(found: Stuck) -> list[Finding]:
    """The findings about weights that never move."""
    findings = []
    if found.zero:
        findings.append(
            Finding(
                "critical",
                f"{_weights(found.zero, 'stay')} at zero for ever",
                f"{wording.capital(wording.listed(found.zero, _NAMES))} start at zero, and still "
                "have no gradient when all other weights have moved: each waits for another that "
                "is zero as well.",
                "Start one of two successive layers, or of two factors, away from zero.",
            )
        )
    if found.silent:
        findings.append(
            Finding(
                "critical",
                f"{_weights(found.silent, 'never have')} a gradient",
                f"The loss does not depend on {wording.listed(found.silent, _NAMES)}, on no "
                "sample of any batch, and still does not when all other weights have moved. Units "
                "are silent for every sample, as ReLUs behind a large negative bias, or gradients "
                "vanish below the smallest number.",
                "Look for layers whose outputs are all zero or all equal: start their biases at "
                "zero, scale their weights, or take an activation without a flat side.",
            )
        )
    return findings


def _weights(names: Sequence[str], verb: str) -> str:
    one = {"stay": "stays", "never have": "never has"}[verb]
    return f"{wording.count(len(names), 'weight')} that {one if len(names) == 1 else verb}"
