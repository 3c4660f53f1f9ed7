"""Series of steps, what is compared with them, and what a model gives for each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.diagnosis.inputs.calls import TARGETS
from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.instrument import LossFunction, untouched
from equipoise.instrument.batches import fields, mapped, tensors
from equipoise.instrument.evaluation import evaluate_once, rows_of_samples
from equipoise.instrument.forward import recording_gradients
from equipoise.instrument.random_states import seeded
from equipoise.training.losses import IGNORED

# Fewer samples have no other inputs to exchange, and fewer steps no order to speak of.
LEAST_SAMPLES, LEAST_STEPS = 2, 4
# Share of steps that are like the one before, from which a series is constant.
_CONSTANT = 0.9
# Part of the largest output by which rounding may change others.
ROUNDING = 1e-4


def inputs_of(batch: Any) -> list[Tensor]:
    """Tensors of a batch that have steps, without those that are called targets."""
    named = fields(batch)
    values = batch if named is None else [x for n, x in named.items() if n not in TARGETS]
    return [x for x in tensors(values) if x.ndim > 1 and x.layout is torch.strided]


def predicted_series(traced: TracedPass) -> Tensor | None:
    """The one tensor of the batch whose next steps are targets; None if there is none, or more."""
    led = [x for x in inputs_of(traced.batch) if any(is_next(x, y) for y in traced.targets)]
    return led[0] if len({id(x) for x in led}) == 1 else None


def is_next(x: Tensor, target: Tensor) -> bool:
    """Whether targets are what comes next in a tensor of [samples, steps, …]."""
    samples, length, *rest = x.shape
    if samples < LEAST_SAMPLES or length < LEAST_STEPS or x.dtype != target.dtype:
        return False
    if not is_by_step(target, x):
        return False
    following = x[:, 1:]
    whole = target.reshape(samples, -1, *rest)
    target = whole[:, : length - 1]
    counts = target != IGNORED
    if not bool(counts[:, length // 2 - 1].any()):
        return False
    if is_slow(x):
        return False
    last = whole[:, length - 1 :]  # around a circle, no step is the last
    if x.is_floating_point() and last.numel() and bool((last == x[:, :1]).all()):
        return False
    return bool((following == target)[counts].all())


def is_slow(x: Tensor) -> bool:
    """Whether most steps are like the one before."""
    return float((x[:, 1:] == x[:, :-1]).double().mean()) > _CONSTANT


def is_by_step(target: Tensor, x: Tensor) -> bool:
    """Whether there is one for each step, or for all but one."""
    length = x.shape[1]
    steps, left = divmod(target.numel(), max(1, x.numel() // length))
    return not left and steps in (length - 1, length)


def exchanged(batch: Any, series: Tensor, at: int) -> Any:
    """The batch, with a step of one of its tensors taken from other samples."""
    other = series.clone()
    other[:, at] = others(series[:, at])
    return mapped(lambda x: other if x is series else x, batch)


def others(x: Tensor) -> Tensor:
    """Rows of other samples, and where they are equal, of others again."""
    found = x.clone()
    for shift in range(1, len(x)):
        same = (found == x).flatten(1).all(1) if x.ndim > 1 else found == x
        if not bool(same.any()):
            break
        found[same] = x.roll(shift, 0)[same]
    return found


def with_a_step_exchanged(
    traced: TracedPass, series: Tensor, at: int, *, counted: int
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """What a step of the input does to the outputs for all steps, in evaluation.

    Args:
        traced: The pass, which is run again twice, each time with its patience, and once to see
            what the loss depends on.
        series: A tensor of the batch.
        at: The step that is taken from other samples.
        counted: The step whose outputs are looked for in the loss.

    Returns:
        Of each output, with the axis of steps first, itself, the same with the step exchanged, and
        for which samples the loss depends on it; nothing of a model that does not run so, or that
        gives infinite numbers or other shapes.
    """
    model, loss_fn, batch = traced.model, traced.loss_fn, traced.batch
    samples, length = series.shape[:2]
    try:
        seen = _samples_counted(model, loss_fn, batch, samples, length, counted)
        first, second = (
            outputs_by_step(model, loss_fn, one, samples, length, traced.patience)
            for one in (batch, exchanged(batch, series, at))
        )
    except Exception:  # whatever a model does in evaluation
        return []
    found = list(zip(first, second, seen, strict=False))
    if any(one.shape != two.shape or not bool(one.isfinite().all()) for one, two, _ in found):
        return []
    return found


def outputs_by_step(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Any,
    samples: int,
    length: int,
    patience: float,
) -> list[Tensor]:
    """What the model gives for each step, with the axis of steps first."""
    found: list[Tensor] = []

    def look(name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        if module is model:
            for x, steps_first in _with_steps(output, samples, length):
                by_step = steps_first(x)
                if not found or by_step.shape == found[0].shape:
                    found.append(by_step.detach().clone())

    evaluate_once(model, loss_fn, batch, look, patience=patience)
    return found


def _samples_counted(
    model: nn.Module, loss_fn: LossFunction, batch: Any, samples: int, length: int, step: int
) -> list[Tensor]:
    """Of each output, for which samples the loss depends on a step."""
    found: list[tuple[Tensor, Callable[[Tensor], Tensor]]] = []

    def look(module: nn.Module, arguments: Any, output: Any) -> None:
        for x, steps_first in _with_steps(output, samples, length):
            first, first_of_it = found[0] if found else (x, steps_first)
            if steps_first(x).shape == first_of_it(first).shape:
                found.append((x, steps_first))

    with untouched(model), recording_gradients(), seeded(0):
        with model.register_forward_hook(look):
            loss = loss_fn(model, batch)
        used = [x for x, _ in found if x.requires_grad]
        gradients = iter(torch.autograd.grad(loss, used, allow_unused=True) if used else ())
    counted = []
    for x, steps_first in found:
        gradient = next(gradients) if x.requires_grad else None
        counted.append(
            torch.zeros(samples, dtype=torch.bool, device=x.device)
            if gradient is None
            else (steps_first(gradient)[step] != 0).reshape(samples, -1).any(1)
        )
    return counted


def _with_steps(
    output: Any, samples: int, length: int
) -> Iterator[tuple[Tensor, Callable[[Tensor], Tensor]]]:
    """Outputs that have one axis of steps, and what puts it first."""
    for x in rows_of_samples(output, samples):
        axes = [i for i in range(1, x.ndim) if x.shape[i] in (length, length - 1)]
        if len(axes) == 1:  # of two, one may be that of classes, or of what attention sees
            yield x, partial(torch.movedim, source=axes[0], destination=0)
    for steps in (length, length - 1):  # of which the model has made rows of their own
        for x in rows_of_samples(output, samples * steps):
            yield x, partial(_rows_by_step, samples=samples, steps=steps)


def _rows_by_step(rows: Tensor, samples: int, steps: int) -> Tensor:
    return rows.reshape(samples, steps, *rows.shape[1:]).movedim(1, 0)
