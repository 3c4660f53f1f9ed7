"""Losses that fall without bound, whichever way the outputs go."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.losses.gains import weighed_by_gains
from equipoise.diagnosis.mistakes.repeated import loss_with
from equipoise.diagnosis.mistakes.traced_pass import TracedPass, place_of
from equipoise.diagnosis.sources import ARRANGING, PRODUCTS, following, is_trained, kinds_of
from equipoise.instrument.recording.graph import Given, Made, Node
from equipoise.numerics.pieces import deviation, largest
from equipoise.records.finding import Finding

# Directions that outputs are moved in, each both ways, and how far: in standard deviations, or
# ones, whichever are more.
_DIRECTIONS, _FAR = 8, (4.0, 8.0, 16.0)
# A loss that falls in proportion falls twice as much over twice the way; logarithms do not.
_IN_PROPORTION = 1.8
# Part of a loss, or of a change, by which others may differ, as rounding makes it.
_EXACT = 1e-3
_WEIGHING = ("mul", "div", *PRODUCTS)


def falls_without_bound(traced: TracedPass) -> Finding | None:
    """A loss with its sign turned: it falls in proportion, in whatever direction outputs go.

    Losses are least somewhere. Those of critics fall one way and rise the other, and logarithms of
    deviations rise again. Costs weigh likelihoods that are to become small, and may fall like
    this: nothing is said where numbers that differ weigh outputs.
    """
    layers = [] if traced.loss_is_assumed else traced.last_layers
    if not layers or not math.isfinite(traced.graph.loss) or not _are_one_layer(layers, traced):
        return None
    if _takes_weights(layers, traced):
        return None
    kind = _weights(layers, traced)
    if kind == "mixed" or weighed_by_gains(layers, traced) or not _falls(layers, traced):
        return None
    if kind == "some" and not _compares_samples(layers[0], traced):
        return None
    return Finding(
        "critical",
        "The loss has its sign turned",
        f"It falls without bound, in whatever direction outputs{place_of(layers[0])} go: no "
        "answer is the best, and training makes them as large as it can.",
        "Take the minus away, or put one before a likelihood, unless an adversary is to be "
        "misled.",
    )


def _are_one_layer(layers: list[Node], traced: TracedPass) -> bool:
    """Whether all of them have the same weights, which are trained, and which no norm bounds."""
    names = set[frozenset[str]]()
    for node in layers:
        own = [one for one in node.inputs if kinds_of(one, traced.kinds) == {"parameter"}]
        if not own or not all(_is_free(one, traced) for one in own):
            return False
        names.add(frozenset(given.name for one in own for given in traced.given_of(one)))
    return len(names) == 1


def _is_free(source: Made | Given, traced: TracedPass) -> bool:
    while isinstance(source, Made):
        node = traced.nodes[source.node]
        if node.name not in ARRANGING:
            return False
        source = node.inputs[0]
    return source.value.requires_grad


def _behind(layers: list[Node], traced: TracedPass) -> list[Node]:
    return list(following((node.number for node in layers), traced.graph.nodes))


def _takes_weights(layers: list[Node], traced: TracedPass) -> bool:
    """Whether the loss takes other trained weights, such as a penalty that bounds them."""
    behind = _behind(layers, traced)
    inside = {node.number for node in (*layers, *behind)}
    return any(
        is_trained(given) and given.value.numel() > 1
        for node in behind
        for one in node.inputs
        if isinstance(one, Given) or one.node not in inside
        if traced.depends_on_weights(one)
        for given in traced.given_of(one)
    )


def _weights(layers: list[Node], traced: TracedPass) -> str:
    """What weighs numbers that outputs have made: nothing, zeros and ones ("some"), or more."""
    kind = "none"
    for node in _behind(layers, traced):
        if node.name not in _WEIGHING:
            continue
        for one in node.inputs:
            values = traced.tensor(one)
            if values.requires_grad or values.numel() < 2 or not values.is_floating_point():
                continue
            kept = values[values != 0]
            if not len(kept) or bool((kept < 0).any()) or float(kept.min()) < float(kept.max()):
                return "mixed"
            if len(kept) < values.numel():
                kind = "some"
    return kind


def _falls(layers: list[Node], traced: TracedPass) -> bool:
    outputs = {Made(node.number, 0): node.outputs[0].detach() for node in layers}
    scale = max(1.0, *(deviation(x) for x in outputs.values()))
    if not all(x.is_floating_point() and largest(x) < math.inf for x in outputs.values()):
        return False
    for direction in range(_DIRECTIONS):
        for way in (scale, -scale):
            if not _falls_in_proportion(outputs, direction, way, traced):
                return False
    least = traced.graph.loss + _EXACT * abs(traced.graph.loss)
    together = [{made: x + sign * scale for made, x in outputs.items()} for sign in (1.0, -1.0)]
    return all(loss_with(traced.graph, moved) <= least for moved in together)


def _falls_in_proportion(
    outputs: Mapping[Made, Tensor], direction: int, way: float, traced: TracedPass
) -> bool:
    before, fallen = traced.graph.loss, list[float]()
    for by in _FAR:
        loss = loss_with(traced.graph, _moved(outputs, direction, way * by))
        if not loss < before:
            return False
        if loss == -math.inf:
            return True
        fallen.append(before - loss)
        before = loss
    return fallen[2] >= _IN_PROPORTION * fallen[1]


def _moved(outputs: Mapping[Made, Tensor], direction: int, by: float) -> dict[Made, Tensor]:
    """Outputs moved at random, alike for one direction; as they may be large, nothing is kept."""
    generator = torch.Generator().manual_seed(direction)
    return {
        made: torch.randn(x.shape, generator=generator).to(x).mul_(by).add_(x)
        for made, x in outputs.items()
    }


def _compares_samples(layer: Node, traced: TracedPass) -> bool:
    """Whether what an output of one sample changes depends on those of others."""
    made, values = Made(layer.number, 0), layer.outputs[0].detach()
    if len(values) < 2:
        return False

    def loss_of(*halves: int) -> float:
        moved = values.clone()
        for half in halves:
            moved[half::2] += 1.0
        return loss_with(traced.graph, {made: moved})

    one, other, both = (loss_of(*halves) - traced.graph.loss for halves in ((0,), (1,), (0, 1)))
    apart = abs(both - one - other)
    return math.isfinite(apart) and apart > _EXACT * max(abs(one), abs(other), abs(both))
