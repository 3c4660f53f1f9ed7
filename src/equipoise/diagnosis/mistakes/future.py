"""Models that see the next step, which they are to predict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.diagnosis.inputs.calls import TARGETS
from equipoise.diagnosis.mistakes.routes import enters_twice, is_summed_up
from equipoise.diagnosis.mistakes.sources import DIFFERENCES, tensor
from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.instrument import LossFunction, untouched
from equipoise.instrument.batches import fields, mapped, tensors
from equipoise.instrument.evaluation import evaluate_once, rows_of_samples
from equipoise.instrument.forward import recording_gradients
from equipoise.instrument.random_states import seeded
from equipoise.records import wording
from equipoise.records.finding import Finding
from equipoise.training.losses import IGNORED

# Losses that compare outputs with targets one by one, and their operands.
_LOSSES = {"nll_loss_forward", "nll_loss2d_forward", *DIFFERENCES}
# Fewer samples have no other inputs to exchange, and fewer steps no order to speak of.
_SAMPLES, _STEPS = 2, 4
# Share of steps that are like the one before, from which a series is constant.
_CONSTANT = 0.9
# Part of the largest output by which rounding may change others.
_ROUNDING = 1e-4
# Norms that may average over steps, and leave a trace of later ones in earlier ones.
_OVER_STEPS = (nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)


def of_future(traced: TracedPass) -> list[Finding]:
    """Outputs that change with the very step of the input that is their target.

    Where targets are the inputs one step later, the input is changed at one step, and outputs
    before it that the loss depends on are compared, in evaluation. Nothing is said where more than
    one tensor of the batch holds the targets, as of models that copy a sequence from one to
    another, where the sequence goes into the model in two forms or through a summary, as in
    autoencoders whose decoder is given the steps before, where there are other targets for each
    step, as the steps before, where targets are moved around a circle, as by a wave, or where
    outputs have no axis of the steps.

    Args:
        traced: The pass on a batch whose first axes are those of samples, and the second those of
            steps. Each of two further passes may take its patience.
    """
    model, loss_fn, batch = traced.model, traced.loss_fn, traced.batch
    targets = _targets(traced)
    led = [x for x in _inputs(batch) if any(_is_next(x, target) for target in targets)]
    if len({id(x) for x in led}) != 1:
        return []
    (series, *_) = led
    if any(_is_by_step(x, series) and not _is_next(series, x) for x in targets if x.ndim):
        return []
    if enters_twice(series, traced) or is_summed_up(series, traced):
        return []
    length, at = series.shape[1], series.shape[1] // 2
    other = series.clone()
    other[:, at] = _others(series[:, at])
    if bool((other == series).all()):
        return []

    def changed(x: Tensor) -> Tensor:
        return other if x is series else x

    try:
        counted = _counted(model, loss_fn, batch, len(series), length, at - 1)
        first, second = (
            _outputs(model, loss_fn, one, len(series), length, traced.patience)
            for one in (batch, mapped(changed, batch))
        )
    except Exception:  # a model that does not run in evaluation
        return []
    change = min(map(_change(at - 1), first, second, counted), default=0.0)
    if change <= _ROUNDING:
        return []
    return [
        Finding(
            "warning" if any(isinstance(m, _OVER_STEPS) for m in model.modules()) else "critical",
            "The model sees the steps that it is to predict",
            f"Targets are the inputs one step later. With the inputs of step {at} exchanged, "
            f"outputs for step {at - 1}, whose targets they are, change by "
            f"{wording.percent(change)} of the largest: what is there can be copied. In use, "
            "where the next step is not known, the model will be worse than its loss says.",
            "Look for attention without a causal mask, or with one that is turned around or fills "
            "scores with 0 in place of -inf, a softmax over another axis than that of the keys, "
            "convolutions padded on both sides, norms over steps, and recurrent layers in two "
            "directions.",
        )
    ]


def _inputs(batch: Any) -> list[Tensor]:
    """Tensors of a batch that have steps, without those that are called targets."""
    named = fields(batch)
    values = batch if named is None else [x for n, x in named.items() if n not in TARGETS]
    return [x for x in tensors(values) if x.ndim > 1 and x.layout is torch.strided]


def _targets(traced: TracedPass) -> list[Tensor]:
    """What outputs are compared with."""
    found = []
    for node in traced.after_layers:
        if node.name in _LOSSES and len(node.inputs) > 1:
            values = [tensor(source, traced.nodes) for source in node.inputs[:2]]
            if any(value.requires_grad for value in values):
                found += [value.detach() for value in values if not value.requires_grad]
    return found


def _is_next(x: Tensor, target: Tensor) -> bool:
    """Whether targets are what comes next in a tensor of [samples, steps, …]."""
    samples, length, *rest = x.shape
    if samples < _SAMPLES or length < _STEPS or x.dtype != target.dtype:
        return False
    if not _is_by_step(target, x):
        return False
    following, now = x[:, 1:], x[:, :-1]
    whole = target.reshape(samples, -1, *rest)
    target = whole[:, : length - 1]
    counts = target != IGNORED
    if not bool(counts[:, length // 2 - 1].any()):
        return False
    if float((following == now).double().mean()) > _CONSTANT:
        return False
    last = whole[:, length - 1 :]  # around a circle, no step is the last
    if x.is_floating_point() and last.numel() and bool((last == x[:, :1]).all()):
        return False
    return bool((following == target)[counts].all())


def _is_by_step(target: Tensor, x: Tensor) -> bool:
    """Whether there is one for each step, or for all but one."""
    length = x.shape[1]
    steps, left = divmod(target.numel(), max(1, x.numel() // length))
    return not left and steps in (length - 1, length)


def _others(x: Tensor) -> Tensor:
    """Rows of other samples, and where they are equal, of others again."""
    found = x.clone()
    for shift in range(1, len(x)):
        same = (found == x).flatten(1).all(1) if x.ndim > 1 else found == x
        if not bool(same.any()):
            break
        found[same] = x.roll(shift, 0)[same]
    return found


def _outputs(
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
            for x, axis in _with_steps(output, samples, length):
                by_step = x.movedim(axis, 0)
                if not found or by_step.shape == found[0].shape:
                    found.append(by_step.detach().clone())

    evaluate_once(model, loss_fn, batch, look, patience=patience)
    return found


def _with_steps(output: Any, samples: int, length: int) -> Iterator[tuple[Tensor, int]]:
    """Outputs that have one axis of steps, and this axis."""
    for x in rows_of_samples(output, samples):
        axes = [i for i in range(1, x.ndim) if x.shape[i] in (length, length - 1)]
        if len(axes) == 1:  # of two, one may be that of classes, or of what attention sees
            yield x, axes[0]


def _counted(
    model: nn.Module, loss_fn: LossFunction, batch: Any, samples: int, length: int, step: int
) -> list[Tensor]:
    """Of each output, for which samples the loss depends on a step."""
    found: list[tuple[Tensor, int]] = []

    def look(module: nn.Module, arguments: Any, output: Any) -> None:
        for x, axis in _with_steps(output, samples, length):
            first, before = found[0] if found else (x, axis)
            if x.movedim(axis, 0).shape == first.movedim(before, 0).shape:
                found.append((x, axis))

    with untouched(model), recording_gradients(), seeded(0):
        handle = model.register_forward_hook(look)
        try:
            loss = loss_fn(model, batch)
        finally:
            handle.remove()
        used = [x for x, _ in found if x.requires_grad]
        gradients = iter(torch.autograd.grad(loss, used, allow_unused=True) if used else ())
    counted = []
    for x, axis in found:
        gradient = next(gradients) if x.requires_grad else None
        counted.append(
            torch.zeros(samples, dtype=torch.bool, device=x.device)
            if gradient is None
            else (gradient.movedim(axis, 0)[step] != 0).reshape(samples, -1).any(1)
        )
    return counted


def _change(step: int) -> Callable[[Tensor, Tensor, Tensor], float]:
    def of(first: Tensor, second: Tensor, counted: Tensor) -> float:
        if first.shape != second.shape or not bool(first.isfinite().all()):
            return 0.0
        size = float(first.abs().max())
        changes = (first[step] - second[step]).abs()[counted]
        return float(changes.max()) / size if size > 0 and changes.numel() else 0.0

    return of
