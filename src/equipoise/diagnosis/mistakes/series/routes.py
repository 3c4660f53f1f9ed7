"""On which ways a sequence goes into a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from equipoise.diagnosis.mistakes.series.series import Series
from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.diagnosis.sources import ARRANGING, is_same
from equipoise.instrument.recording.graph import Given, Graph, Made, Node

# What gives a sequence with other steps than it is given.
_BY_ARGUMENTS = {"slice", "flip", "roll"}
_MOVING = {"cat", "constant_pad_nd", "masked_fill", "where", "index", "index_select"}
# What leaves every step in its place.
_CARRYING = {"embedding", "add", "sub", "mul", "div", "native_layer_norm", "native_dropout"}


def enters_twice(series: Series, traced: TracedPass) -> bool:
    """Whether layers are given a sequence in two forms, as an encoder and a decoder are.

    Args:
        series: One of the batch.
        traced: A pass.
    """
    return len({form for node in _entries(series, traced) for form in node}) > 1


def is_summed_up(series: Series, traced: TracedPass) -> bool:
    """Whether layers are given what has no steps any more, as a latent state or a scale.

    Args:
        series: One of the batch.
        traced: A pass of a model, whose recurrent layers go from step to step.
    """
    modules = traced.model.named_modules()
    recurrent = {name for name, module in modules if isinstance(module, nn.RNNBase)}
    samples, steps, *_ = series.values.shape
    is_flat = series.whole.is_floating_point() and series.values[0].numel() == steps
    for node in _depending(series, traced.graph):
        if node.number not in traced.before_layers or node.module in recurrent or not node.outputs:
            continue
        if node.name in ARRANGING | _MOVING | {"split", "unbind"}:
            continue
        x = node.outputs[0]
        axes = [size for size in x.shape if size > 1]
        if not x.is_floating_point() or len(axes) > 2 or (axes and axes[0] != samples):
            continue
        # What has no gradient is no state that a layer has made: a mask of padding has steps.
        has_steps = any(size in (steps, steps - 1) for size in axes)
        if not (has_steps and (is_flat or not x.requires_grad)):
            return True
    return False


def _is(source: Made | Given, whole: Tensor) -> bool:
    return (
        isinstance(source, Given)
        and source.value.dtype == whole.dtype
        and is_same(source.value, whole)
    )


def _depending(series: Series, graph: Graph) -> Iterator[Node]:
    """The operations whose outputs are made of a sequence."""
    found = set[int]()
    for node in graph.nodes:
        if any(
            source.node in found if isinstance(source, Made) else _is(source, series.whole)
            for source in node.inputs
        ):
            found.add(node.number)
            yield node


def _entries(series: Series, traced: TracedPass) -> Iterator[set[tuple[Any, ...]]]:
    """The forms in which each operation that does more than carry or move it is given it."""
    inside, steps, graph = traced.before_layers, series.values.shape[1], traced.graph
    forms: dict[int, set[tuple[Any, ...]]] = {}
    depending = {node.number for node in _depending(series, graph)}
    for node in graph.nodes:
        if node.number not in depending or node.number not in inside:
            continue
        given = [source for source in node.inputs if _is(source, series.whole)]
        made = [x for x in node.inputs if isinstance(x, Made) and x.node in depending]
        known = [forms[source.node] for source in made if source.node in forms]
        taken = set().union(*known, *([{()}] if given else []))
        if not taken:
            continue
        passes = node.name in ARRANGING | _BY_ARGUMENTS | _MOVING | _CARRYING
        if not passes or len(given) + len(made) > 1:
            yield taken
        else:
            moved = _moved(node, steps, traced)
            forms[node.number] = {form + moved for form in taken}


def _moved(node: Node, steps: int, traced: TracedPass) -> tuple[Any, ...]:
    """What an operation adds to the form of a sequence."""
    if node.name in _MOVING:
        return (node.number,)
    if node.name not in _BY_ARGUMENTS:
        return ()
    if node.name == "slice":
        axis = node.arguments[1] if len(node.arguments) > 1 else 0
        before = traced.shape(node.inputs[0])[axis]
        if before not in (steps, steps - 1) or node.outputs[0].shape[axis] == before:
            return ()
    return ((node.name, *map(str, node.arguments[1:])),)
