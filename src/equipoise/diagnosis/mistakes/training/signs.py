"""Gradients that point up the loss, as hooks that turn their sign leave them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.instrument import untouched
from equipoise.instrument.forward import recording_gradients
from equipoise.instrument.random_states import seeded
from equipoise.numerics import vectors
from equipoise.numerics.pieces import cosine
from equipoise.records import wording
from equipoise.records.finding import Finding

# By which part of itself a step along the gradient changes the loss: far above rounding of
# float32, and little enough for the first order.
_CHANGE = 1e-3
# How exactly the loss has to change by minus what the gradient says, and twice.
_EXACT = 0.05
# Share of the weights from which turned ones are no multipliers, which are to climb.
_MUCH = 0.5
# Cosine of gradients with and without hooks that have turned.
_TURNED = -0.9
_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_NAMES = 3


def of_signs(traced: TracedPass) -> list[Finding]:
    """Gradients of the wrong sign, for at least half of the weights.

    Where tensors or modules have hooks, gradients with and without them are compared. Without any,
    the loss is computed a small step along the gradient and one against it: gradients are turned
    if it changes by minus their squared length, and by half of that over half of the step. Random
    numbers are the same in all passes. Models with autograd functions of their own are left out
    there, as these may turn gradients on purpose, and so are losses that take numbers of trained
    weights without their gradient, such as weights of samples by an estimate of their value: they
    change with a step in a way that no gradient tells.
    """
    graph, model = traced.graph, traced.model
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not all(map(math.isfinite, (graph.loss, *graph.weights.values()))):
        return []
    if any(p.dtype not in (torch.float32, torch.float64) for p in trained.values()):
        return []  # too coarse for small steps
    if _has_hooks(model):
        return traced.afterwards(_by_hooks)
    if abs(graph.loss) < _CHANGE or graph.has_functions or traced.takes_detached:
        return []
    return traced.afterwards(_by_steps)


def _by_steps(traced: TracedPass) -> list[Finding]:
    loss, gradients = _gradients(traced)
    square = vectors.length(list(gradients.values())) ** 2 if gradients else 0.0
    if not (square > 0 and math.isfinite(square)):
        return []
    step = _CHANGE * abs(traced.graph.loss) / square
    if _loss_at(traced, gradients, step) > loss:
        return []  # one pass more is enough for most
    for length in (step, step / 2):
        up, down = (_loss_at(traced, gradients, s) for s in (length, -length))
        if not abs((up - down) / (2 * length * square) + 1) < _EXACT:
            return []
    return [
        _finding(
            "A step against the gradient raises the loss of the batch that it was computed on, by "
            "just as much as it should fall.",
            "Look for a hook or an operation in the forward pass that turns gradients.",
        )
    ]


def _finding(detail: str, remedy: str) -> Finding:
    return Finding("critical", "Gradients have the wrong sign: training climbs", detail, remedy)


def _has_hooks(model: nn.Module) -> bool:
    """Whether gradients may be changed by hooks that were registered before the pass."""
    return any(p._backward_hooks for p in model.parameters()) or any(
        getattr(module, name) for module in model.modules() for name in _HOOKS
    )


def _by_hooks(traced: TracedPass) -> list[Finding]:
    _, with_hooks = _gradients(traced)
    _, without = _gradients(traced, hooks=False)
    turned = [
        name
        for name, gradient in with_hooks.items()
        if name in without and cosine(gradient, without[name]) < _TURNED
    ]
    sizes = {n: p.numel() for n, p in traced.model.named_parameters() if p.requires_grad}
    share = sum(sizes[name] for name in turned) / max(1, sum(sizes.values()))
    if share < _MUCH:
        return []
    return [
        _finding(
            f"Hooks turn the gradients of {wording.percent(share)} of the weights: "
            f"{wording.listed(turned, _NAMES)}. Steps against them raise the loss.",
            "Take the hook away, or the minus in it: register_hook, register_full_backward_hook "
            "and register_full_backward_pre_hook replace the gradient by what the hook returns.",
        )
    ]


def _gradients(traced: TracedPass, *, hooks: bool = True) -> tuple[float, dict[str, Tensor]]:
    """The loss, and its gradients, with or without the model's hooks."""
    model = traced.model
    with (
        untouched(model),
        seeded(0),
        recording_gradients(),
        warnings.catch_warnings(),
        nullcontext() if hooks else _without_hooks(model),
    ):
        warnings.simplefilter("ignore")  # of hooks, which the user's own steps show
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        loss = traced.loss_fn(model, traced.batch)
        found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    pairs = zip(trained, found, strict=True)
    dense = {name: g.to_dense() if g.is_sparse else g for name, g in pairs if g is not None}
    return float(loss.detach()), dense


@contextmanager
def _without_hooks(model: nn.Module) -> Iterator[None]:
    """Take all hooks that may change gradients off the weights and modules, and put them back."""
    owners: list[Any] = [*model.parameters(), *model.modules()]
    hooks = [(owner, name, getattr(owner, name, None)) for owner in owners for name in _HOOKS]
    removed = [(owner, name, given) for owner, name, given in hooks if given]
    for owner, name, given in removed:
        setattr(owner, name, type(given)())
    try:
        yield
    finally:
        for owner, name, given in removed:
            setattr(owner, name, given)


def _loss_at(traced: TracedPass, gradients: Mapping[str, Tensor], length: float) -> float:
    """The loss of weights that are moved along their gradients, with the same random numbers."""
    model = traced.model
    with untouched(model), seeded(0), recording_gradients():
        parameters = dict(model.named_parameters())
        for name, gradient in gradients.items():
            parameters[name].data.add_(gradient, alpha=length)
        return float(traced.loss_fn(model, traced.batch).detach())
