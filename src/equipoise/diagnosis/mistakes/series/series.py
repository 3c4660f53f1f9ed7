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


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A tensor of a batch that has axes of samples and of steps.

    Args:
        whole: The tensor, as the batch holds it.
        steps_first: Whether its first axis is that of steps and its second that of samples, as
            recurrent layers and transformers of PyTorch take it; otherwise samples are first.
    """

    whole: Tensor
    steps_first: bool = False

    @property
    def values(self) -> Tensor:
        """A view of it, ``[samples, steps, …]``."""
        return self.whole.transpose(0, 1) if self.steps_first else self.whole

    def beside(self, target: Tensor) -> Tensor:
        """Targets for each step, or for all but one, as ``[samples, steps, …]``."""
        samples, _, *rest = self.values.shape
        if self.steps_first:
            return target.reshape(-1, samples, *rest).transpose(0, 1)
        return target.reshape(samples, -1, *rest)


def series_of(batch: Any) -> list[Series]:
    """Every tensor of a batch that may be a series, in both orders of its axes."""
    given = inputs_of(batch)
    return [Series(x, steps_first) for steps_first in (False, True) for x in given]


def predicted_series(traced: TracedPass) -> Series | None:
    """The one tensor of the batch whose next steps are targets; None if there is none, or more."""
    led = [x for x in series_of(traced.batch) if any(is_next(x, y) for y in traced.targets)]
    return led[0] if len({id(x.whole) for x in led}) == 1 else None


def is_next(series: Series, target: Tensor) -> bool:
    """Whether targets are what comes next in a series."""
    x = series.values
    samples, length = x.shape[:2]
    if samples < LEAST_SAMPLES or length < LEAST_STEPS or x.dtype != target.dtype:
        return False
    if not is_by_step(target, series):
        return False
    following = x[:, 1:]
    whole = series.beside(target)
    target = whole[:, : length - 1]
    counts = target != IGNORED
    if not bool(counts[:, length // 2 - 1].any()):
        return False
    if is_slow(series):
        return False
    last = whole[:, length - 1 :]  # around a circle, no step is the last
    if x.is_floating_point() and last.numel() and bool((last == x[:, :1]).all()):
        return False
    return bool((following == target)[counts].all())


def is_slow(series: Series) -> bool:
    """Whether most steps are like the one before."""
    x = series.values
    return float((x[:, 1:] == x[:, :-1]).double().mean()) > _CONSTANT


def is_by_step(target: Tensor, series: Series) -> bool:
    """Whether there is one for each step, or for all but one."""
    length = series.values.shape[1]
    steps, left = divmod(target.numel(), max(1, series.whole.numel() // length))
    return not left and steps in (length - 1, length)


def exchanged(batch: Any, series: Series, at: int) -> Any:
    """The batch, with a step of one of its tensors taken from other samples."""
    other = series.whole.clone()
    Series(other, series.steps_first).values[:, at] = others(series.values[:, at])
    return mapped(lambda x: other if x is series.whole else x, batch)


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
    traced: TracedPass, series: Series, at: int, *, counted: int
) -> list[Exchange]:
    """What a step of the input does to the outputs for all steps, in evaluation.

    Args:
        traced: The pass, which is run again twice, each time with its patience, and once to see
            what the loss depends on.
        series: One of the batch.
        at: The step that is taken from other samples.
        counted: The step whose outputs are looked for in the loss.

    Returns:
        Of each output; nothing of a model that does not run so, or that gives infinite numbers or
        other shapes.
    """
    try:
        seen = _samples_counted(traced, series, counted)
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
    traced: TracedPass, batch: Any, series: Series, keep: Callable[[Tensor], Kept]
) -> list[Kept]:
    """Run the model in evaluation, and look at what it gives for each step.

    Args:
        traced: The pass, which is run again, with its patience.
        batch: What it is run on.
        series: One of the batch.
        keep: Takes an output, with the axis of steps first and then that of samples, and gives
            what is to be kept of it.
    """
    found: list[Kept] = []
    shapes: list[torch.Size] = []

    def look(name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        if module is traced.model:
            for x, steps_first in _with_steps(output, series):
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


def _samples_counted(traced: TracedPass, series: Series, step: int) -> list[Tensor]:
    """Of each output, for which samples the loss depends on a step."""
    edges: list[GradientEdge | None] = []  # and no outputs, which take memory
    arranged: list[Callable[[Tensor], Tensor]] = []
    shapes: list[torch.Size] = []

    def look(module: nn.Module, arguments: Any, output: Any) -> None:
        for x, steps_first in _with_steps(output, series):
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
            torch.zeros(len(series.values), dtype=torch.bool, device=loss.device)
            if gradient is None
            else (steps_first(gradient)[step] != 0).reshape(len(series.values), -1).any(1)
        )
    return counted


def _with_steps(
    output: Any, series: Series
) -> Iterator[tuple[Tensor, Callable[[Tensor], Tensor]]]:
    """Outputs that have one axis of steps, and what puts it first."""
    samples, length = series.values.shape[:2]
    if series.steps_first:
        found = [*_with_steps_first(output, samples, length)]
        if found:
            yield from found
            return
    for x in rows_of_samples(output, samples):
        axes = [i for i in range(1, x.ndim) if x.shape[i] in (length, length - 1)]
        if len(axes) == 1:  # of two, one may be that of classes, or of what attention sees
            yield x, partial(torch.movedim, source=axes[0], destination=0)
    for steps in (length, length - 1):  # of which the model has made rows of their own
        for x in rows_of_samples(output, samples * steps):
            yield x, partial(_rows_by_step, samples=samples, steps=steps)


def _with_steps_first(
    output: Any, samples: int, length: int
) -> Iterator[tuple[Tensor, Callable[[Tensor], Tensor]]]:
    """Outputs in the order of a series with steps first, in axes or in rows."""
    for steps in (length, length - 1):
        for x in rows_of_samples(output, steps):
            if x.ndim > 1 and x.shape[1] == samples:
                yield x, partial(torch.movedim, source=0, destination=0)
        for x in rows_of_samples(output, steps * samples):
            yield x, partial(torch.Tensor.unflatten, dim=0, sizes=(steps, samples))


def _rows_by_step(rows: Tensor, samples: int, steps: int) -> Tensor:
    return rows.reshape(samples, steps, *rows.shape[1:]).movedim(1, 0)
