"""Models that see the next step, which they are to predict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.diagnosis.inputs.calls import TARGETS
from equipoise.diagnosis.mistakes.sources import (
    ARRANGING,
    DIFFERENCES,
    PRODUCTS,
    before_layers,
    shape,
    tensor,
)
from equipoise.instrument import LossFunction
from equipoise.instrument.batches import fields, mapped, tensors
from equipoise.instrument.evaluation import evaluate_once, rows_of_samples
from equipoise.instrument.recording.graph import Given, Graph, Made, Node
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


def of_future(
    graph: Graph, model: nn.Module, loss_fn: LossFunction, batch: Any, patience: float = 3.0
) -> list[Finding]:
    """Outputs that change with the very step of the input that is their target.

    Where targets are the inputs one step later, the input is changed at one step, and outputs
    before it are compared, in evaluation. Nothing is said where more than one tensor of the batch
    holds the targets, as of models that copy a sequence from one to another, where an encoder is
    given the sequence that its decoder repeats, or where outputs have no axis of the steps.

    Args:
        graph: A traced pass.
        model: Left bit for bit as it is.
        loss_fn: Runs it on a batch.
        batch: Whose first axes are those of samples, and the second those of steps.
        patience: Seconds that one of two passes may take.
    """
    targets = _targets(graph)
    led = [x for x in _inputs(batch) if any(_is_next(x, target) for target in targets)]
    if len({id(x) for x in led}) != 1:
        return []
    (series, *_) = led
    if _is_read_twice(graph, series):
        return []
    length, at = series.shape[1], series.shape[1] // 2
    other = series.clone()
    other[:, at] = _others(series[:, at])
    if bool((other == series).all()):
        return []

    def changed(x: Tensor) -> Tensor:
        return other if x is series else x

    try:
        first, second = (
            _outputs(model, loss_fn, one, len(series), length, patience)
            for one in (batch, mapped(changed, batch))
        )
    except Exception:  # a model that does not run in evaluation
        return []
    change = min(map(_change(at - 1), first, second), default=0.0)
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


def _targets(graph: Graph) -> list[Tensor]:
    """What outputs are compared with."""
    nodes: Mapping[int, Node] = {node.number: node for node in graph.nodes}
    inside = before_layers(graph)
    found = []
    for node in graph.nodes:
        if node.name in _LOSSES and node.number not in inside and len(node.inputs) > 1:
            values = [tensor(source, nodes) for source in node.inputs[:2]]
            if any(value.requires_grad for value in values):
                found += [value.detach() for value in values if not value.requires_grad]
    return found


def _is_next(x: Tensor, target: Tensor) -> bool:
    """Whether targets are what comes next in a tensor of [samples, steps, …]."""
    samples, length, *rest = x.shape
    if samples < _SAMPLES or length < _STEPS or x.dtype != target.dtype:
        return False
    steps, left = divmod(target.numel(), samples * math.prod(rest))
    if left or steps not in (length - 1, length):
        return False
    following, now = x[:, 1:], x[:, :-1]
    target = target.reshape(samples, steps, *rest)[:, : length - 1]
    counts = target != IGNORED
    if not bool(counts[:, length // 2 - 1].any()):
        return False
    if float((following == now).double().mean()) > _CONSTANT:
        return False
    return bool((following == target)[counts].all())


def _is_read_twice(graph: Graph, series: Tensor) -> bool:
    """Whether layers take it whole and without the last step, as an encoder and its decoder do."""
    nodes = {node.number: node for node in graph.nodes}
    layers = before_layers(graph) | {node.number for node in graph.nodes if node.name in PRODUCTS}
    lengths = set()
    for node in graph.nodes:
        if node.number in layers and node.name not in ARRANGING:
            lengths |= {_length_taken(source, series, nodes) for source in node.inputs}
    return {series.shape[1], series.shape[1] - 1} <= lengths


def _length_taken(source: Made | Given, series: Tensor, nodes: Mapping[int, Node]) -> int:
    """How many steps of a series an operation is given; 0 of anything else."""
    length = series.shape[1]
    while isinstance(source, Made):
        taken = shape(source, nodes)
        if len(taken) == series.ndim and taken[0] == len(series):
            length = min(length, taken[1])
        if nodes[source.node].name not in ARRANGING:
            return 0
        source = nodes[source.node].inputs[0]
    is_it = source.value.shape == series.shape and torch.equal(source.value, series)
    return length if is_it else 0


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
        if module is not model:
            return
        for x in rows_of_samples(output, samples):
            axes = [i for i in range(1, x.ndim) if x.shape[i] in (length, length - 1)]
            if len(axes) == 1:  # of two, one may be that of classes, or of what attention sees
                by_step = x.movedim(axes[0], 0)
                if not found or by_step.shape == found[0].shape:
                    found.append(by_step.detach().clone())

    evaluate_once(model, loss_fn, batch, look, patience=patience)
    return found


def _change(step: int) -> Callable[[Tensor, Tensor], float]:
    def of(first: Tensor, second: Tensor) -> float:
        if first.shape != second.shape or not bool(first.isfinite().all()):
            return 0.0
        size = float(first.abs().max())
        return float((first[step] - second[step]).abs().max()) / size if size > 0 else 0.0

    return of
