"""Gradients that cancel to rounding where a tensor is used twice."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.traced_pass import TracedPass, place_of
from equipoise.diagnosis.sources import ARRANGING, weights_behind
from equipoise.instrument import trees
from equipoise.instrument.forward import recording_gradients
from equipoise.instrument.memory import pass_on_lack_of_memory
from equipoise.instrument.random_states import seeded
from equipoise.instrument.recording.graph import Given, Made, Node, evaluated
from equipoise.numerics.pieces import norm
from equipoise.records.finding import Finding

# What rounding of float32 leaves of a sum that is zero, beside its terms.
_ROUNDING = 1e-6
# Less is rounded itself.
_LEAST = 1e-30
# Two tensors become one, number by number; within how many operations; and those that only place.
_EXTREMES = ("maximum", "minimum")
_SOON = 4
_PLACING = {*ARRANGING, "stack", "cat", "index", "unbind", "split", "expand"}
# Exact looks at most, as each repeats operations.
_MOST = 8


def of_cancelling(traced: TracedPass) -> list[Finding]:
    """A tensor whose gradients from several uses cancel, as in x / |x| of one number.

    Not where the larger or smaller of two tensors is taken soon after: there they cancel for the
    numbers of this pass alone, as those of a box's centre in its overlap with a box around it.
    """
    graph = traced.graph
    users: dict[Made, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        for source in dict.fromkeys(x for x in node.inputs if isinstance(x, Made)):
            users[source].append(node)
    looks = 0
    for node in reversed(graph.nodes):
        gradient = _gradient(node)
        if gradient is None or gradient.dtype not in (torch.float32, torch.float64):
            continue
        uses = users[Made(node.number, 0)]
        taken = [(one, given) for one in uses if (given := _gradient(one)) is not None]
        if len(taken) < 2:
            continue
        size = _rms(gradient)
        if not math.isfinite(size):
            return []
        # A rough look, as the exact one repeats operations.
        scaled = size * _rms(node.outputs[0])
        rough = [_rms(given) * _rms(one.outputs[0]) for one, given in taken]
        if not max(_LEAST, scaled / _ROUNDING) < max(rough) < math.inf:
            continue
        looks += 1
        if looks > _MOST:
            break
        terms = [_rms(_term(one, given, node, traced)) for one, given in taken]
        if not max(_LEAST, size / _ROUNDING) < max(terms) < math.inf:
            continue
        behind = weights_behind(node.number, graph)
        if not behind or _is_chosen_soon(node, users) or graph.result is None:
            continue
        others = weights_behind(graph.result.node, graph, closed={node.number})
        if others and behind <= others:
            continue  # all of them have other ways, as in iterations that converge
        everything = not others
        return [_finding(node, [one for one, _ in taken], everything=everything)]
    return []


def _is_chosen_soon(node: Node, users: Mapping[Made, Sequence[Node]]) -> bool:
    """Whether few operations later numbers are compared with others, and the extreme is kept."""
    steps = {node.number: 0}
    waiting = [node]
    for one in waiting:
        for output in range(len(one.outputs)):
            for user in users.get(Made(one.number, output), ()):
                if user.name in _EXTREMES and len(user.inputs) == 2:
                    return True
                taken = steps[one.number] + (user.name not in _PLACING)
                if taken < _SOON and taken < steps.get(user.number, _SOON):
                    steps[user.number] = taken
                    waiting.append(user)
    return False


def _finding(node: Node, taken: Sequence[Node], *, everything: bool) -> Finding:
    names = " and ".join(sorted({one.name.strip("_") for one in taken})[:3])
    return Finding(
        "critical" if everything else "warning",
        "The loss does not depend on the weights" if everything else "Gradients cancel",
        f"{node.name.strip('_')}{place_of(node)} gives {list(node.outputs[0].shape)} to {names}, "
        "and their gradients cancel to rounding: what comes of it does not depend on it. "
        + (
            "All gradients go through there: nothing can be learnt."
            if everything
            else "The weights before it learn nothing through it."
        ),
        "Look at axes there: what is divided by its own size, or compared with its own softmax "
        "or mean, is the same whatever it is, if the axis has one number.",
    )


def _gradient(node: Node) -> Tensor | None:
    return node.gradients[0] if node.gradients else None


def _rms(values: Tensor) -> float:
    if not values.numel() or values.is_complex() or values.layout is not torch.strided:
        return math.nan
    return norm(values) / math.sqrt(values.numel())


def _term(one: Node, given: Tensor, node: Node, traced: TracedPass) -> Tensor:
    """What one use of a tensor adds to its gradient; empty if that is not known."""
    place = Made(node.number, 0)
    used = node.outputs[0].detach().requires_grad_(True)

    def value(source: Made | Given) -> Tensor:
        return used if source == place else traced.tensor(source).detach()

    arguments = trees.replaced((Made, Given), value, (one.arguments, one.keywords))
    try:
        with recording_gradients(), seeded(0):  # it may draw
            output, *_ = evaluated(one.operator, *arguments)
            (term,) = torch.autograd.grad(output, used, given.detach())
    except (RuntimeError, TypeError, ValueError) as error:  # it cannot be repeated alone
        pass_on_lack_of_memory(error)
        return used.detach()[:0]
    return term
