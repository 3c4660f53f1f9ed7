"""Series of steps, what is compared with them, and what a model gives for each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from equipoise.diagnosis.inputs.calls import TARGETS
from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.instrument import untouched
from equipoise.instrument.batches import fields, mapped, tensors
from equipoise.instrument.evaluation import evaluate_once, rows_of_samples
from equipoise.instrument.forward import recording_gradients
from equipoise.instrument.memory import pass_on_lack_of_memory
from equipoise.instrument.random_states import seeded
from equipoise.numerics.pieces import largest, longest_piece
from equipoise.training.losses import IGNORED

Kept = TypeVar("Kept")

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


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a step of the input does to an output that has steps.

    Args:
        size: The largest number of the output.
        changes: The largest change for each step and sample, ``[steps, samples]``.
        counted: For which samples the loss depends on the step that is looked for in it.
    """

    size: float
    changes: Tensor
    counted: Tensor


def with_a_step_exchanged(
    traced: TracedPass, series: Tensor, at: int, *, counted: int
) -> list[Exchange]:
    """What a step of the input does to the outputs for all steps, in evaluation.

    Args:
        traced: The pass, which is run again twice, each time with its patience, and once to see
            what the loss depends on.
        series: A tensor of the batch.
        at: The step that is taken from other samples.
        counted: The step whose outputs are looked for in the loss.

    Returns:
        Of each output; nothing of a model that does not run so, or that gives infinite numbers or
        other shapes.
    """
    samples, length = series.shape[:2]
    try:
        seen = _samples_counted(traced, samples, length, counted)
        first = outputs_by_step(traced, traced.batch, series, torch.clone)
        second = outputs_by_step(
            traced, exchanged(traced.batch, series, at), series, compared_with(first, _most)
        )
        sizes = [largest(x) for x in first]
    except Exception as error:  # whatever a model does in evaluation
        pass_on_lack_of_memory(error)
        return []
    found = []
    for size, changes, counts in zip(sizes, second, seen, strict=False):
        if changes is None or not math.isfinite(size):
            return []
        found.append(Exchange(size, changes, counts))
    return found


def outputs_by_step(
    traced: TracedPass, batch: Any, series: Tensor, keep: Callable[[Tensor], Kept]
) -> list[Kept]:
    """Run the model in evaluation, and look at what it gives for each step.

    Args:
        traced: The pass, which is run again, with its patience.
        batch: What it is run on.
        series: A tensor of the batch whose first axes are those of samples and steps.
        keep: Takes an output, with the axis of steps first and then that of samples, and gives
            what is to be kept of it.
    """
    samples, length = series.shape[:2]
    found: list[Kept] = []
    shapes: list[torch.Size] = []

    def look(name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        if module is traced.model:
            for x, steps_first in _with_steps(output, samples, length):
                by_step = steps_first(x).detach()
                if not shapes or by_step.shape == shapes[0]:
                    shapes.append(by_step.shape)
                    found.append(keep(by_step))

    evaluate_once(traced.model, traced.loss_fn, batch, look, patience=traced.patience)
    return found


def compared_with(
    outputs: list[Tensor], compare: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor | None]:
    """What is kept of outputs of another pass, without these outputs.

    Args:
        outputs: Of a pass, with the axis of steps first.
        compare: Takes differences for some steps, ``[steps, samples, features]``, and gives
            something for each of these steps.

    Returns:
        Takes the outputs of the other pass one after the other, and gives None of those of
        another shape and of those that the first pass does not have.
    """
    left = iter(outputs)

    def keep(other: Tensor) -> Tensor | None:
        one = next(left, None)
        if one is None or one.shape != other.shape:
            return None
        some = max(1, longest_piece(one.device) * len(one) // max(1, one.numel()))
        parts = zip(torch.split(one, some), torch.split(other, some), strict=True)
        return torch.cat([compare((x - y).reshape(*x.shape[:2], -1)) for x, y in parts])

    return keep


def _most(differences: Tensor) -> Tensor:
    return differences.abs().amax(2)


def _samples_counted(traced: TracedPass, samples: int, length: int, step: int) -> list[Tensor]:
    """Of each output, for which samples the loss depends on a step."""
    edges: list[GradientEdge | None] = []  # and no outputs, which take memory
    arranged: list[Callable[[Tensor], Tensor]] = []
    shapes: list[torch.Size] = []

    def look(module: nn.Module, arguments: Any, output: Any) -> None:
        for x, steps_first in _with_steps(output, samples, length):
            shape = steps_first(x).shape
            if not shapes or shape == shapes[0]:
                shapes.append(shape)
                edges.append(get_gradient_edge(x) if x.requires_grad else None)
                arranged.append(steps_first)

    with untouched(traced.model), recording_gradients(), seeded(0):
        with traced.model.register_forward_hook(look):
            loss = traced.loss_fn(traced.model, traced.batch)
        used = [edge for edge in edges if edge is not None]
        gradients = iter(torch.autograd.grad(loss, used, allow_unused=True) if used else ())
    counted = []
    for edge, steps_first in zip(edges, arranged, strict=True):
        gradient = None if edge is None else next(gradients)
        counted.append(
            torch.zeros(samples, dtype=torch.bool, device=loss.device)
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
