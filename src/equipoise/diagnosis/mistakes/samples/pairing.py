"""Losses that compare what a model gives for one sample with the targets of others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.repeated import with_other_data
from equipoise.diagnosis.mistakes.samples.relations import holds_pairs
from equipoise.diagnosis.mistakes.traced_pass import TracedPass, place_of
from equipoise.diagnosis.sources import CTC, LIKELIHOODS, either_way
from equipoise.diagnosis.trainability.entrance import leading_to
from equipoise.instrument.batches import mapped, tensors
from equipoise.instrument.memory import pass_on_lack_of_memory
from equipoise.instrument.recording.graph import Given, Graph, Made, Node
from equipoise.records.finding import Finding

# Of fewer samples, outputs may change beside their targets by chance, and of more not rather.
_SAMPLES, _ENOUGH = 6, 16
# Which samples are replaced, and the share of the places of either that outputs and targets change
# at together, at most, where targets are those of others; else it is all of them.
_EVERY, _MOST = 4, 0.5
_ERRORS = {"binary_cross_entropy", "binary_cross_entropy_with_logits"}
# What may put samples into another order, or their axis into another place.
_MOVING = {"transpose", "permute", "t", "index", "index_select", "gather", "roll", "flip"}
_SORTING = {"sort", "topk", "argsort"}


def of_pairing(traced: TracedPass) -> list[Finding]:
    """Outputs of one sample that meet targets of others.

    As of time-major outputs that are flattened beside targets with samples first, axes that CTC
    takes for each other, and targets that alone were shuffled. Every fourth sample is replaced by
    another throughout the batch, and outputs are to change where targets do. Nothing is said
    where nothing is moved on the way, where outputs are sorted, as of distributions that are
    compared, and of graphs.

    Args:
        traced: The pass on a batch whose first axes are those of samples. Some of them are traced
            twice more, in evaluation.
    """
    given = [x for x in tensors(traced.batch) if x.ndim]
    samples = len(given[0]) if given else 0
    if samples < _SAMPLES or not any(_moves(node, traced) for node in traced.graph.nodes):
        return []
    if any(node.name in _SORTING for node in traced.after_layers):
        return []
    if holds_pairs(traced, given, samples):
        return []
    fewer = samples > _ENOUGH and all(len(x) == samples for x in given)
    return traced.afterwards(partial(_by_replacing, samples, _ENOUGH if fewer else samples))


def _by_replacing(samples: int, some: int, traced: TracedPass) -> list[Finding]:
    """Replace every fourth sample, of some of the batch if the model takes fewer."""
    batch = traced.batch
    if some < samples:
        batch = mapped(lambda x: x[:some] if x.ndim else x, batch)
    replaced = torch.arange(1, some, _EVERY)

    def exchange(x: Tensor) -> Tensor:
        if not x.ndim or len(x) != some:
            return x
        found = x.clone()
        found[replaced] = x[(replaced + some // 2) % some]
        return found

    part = replace(traced, batch=batch)
    try:
        passes = with_other_data(part, mapped(exchange, batch), evaluation=True)
    except Exception as error:  # one that does not run in evaluation, as without targets
        pass_on_lack_of_memory(error)
        # A loss may hold a recurrent state for as many samples as the batch has.
        return [] if some == samples else _by_replacing(samples, samples, traced)
    if passes is None:
        return []
    evaluated = replace(part, graph=passes[0])
    shares: dict[frozenset[int], list[tuple[Node, float | None]]] = {}
    for node, output, target in _compared(evaluated):
        layers = _layers_behind(output, evaluated)
        shares.setdefault(layers, []).append(
            (node, _share(node, output, target, evaluated, passes[1]))
        )
    for found in shares.values():
        # Of a mixture of samples, one comparison of its outputs is with the targets of others.
        if all(share is not None and share <= _MOST for _, share in found):
            return [_finding(found[0][0], evaluated)]
    return []


def _layers_behind(output: Made, traced: TracedPass) -> frozenset[int]:
    """The last layers that have made an output."""
    behind = leading_to(traced.graph, output.node)
    return frozenset(node.number for node in traced.last_layers if node.number in behind)


def _finding(node: Node, traced: TracedPass) -> Finding:
    shapes = [list(traced.tensor(one).shape) for one in node.inputs[:2]]
    return Finding(
        "critical",
        "Outputs meet the targets of other samples",
        f"{node.name.strip('_')}{place_of(node)} compares {shapes[0]} with {shapes[1]}. Where "
        "samples of the batch are replaced, outputs change at other places than targets.",
        "Bring both into one order before axes are joined: outputs.transpose(0, 1) where time "
        "comes first. CTC takes [steps, samples, classes]. Shuffle inputs and targets together.",
    )


def _moves(node: Node, traced: TracedPass) -> bool:
    """Whether it moves the first axis of data, or what lies along it."""
    if node.name not in _MOVING or not node.inputs:
        return False
    source = node.inputs[0]
    if not any(one.kind == "data" for one in traced.given_of(source)):
        return False
    axes = traced.tensor(source).ndim
    if node.name == "transpose":
        return 0 in (axis % axes for axis in node.arguments[1:3])
    if node.name == "permute":
        return bool(node.arguments[1][0] % axes)
    return node.name != "t" or axes == 2


def _compared(traced: TracedPass) -> Iterator[tuple[Node, Made, Made | Given]]:
    for node in traced.after_layers:
        if node.name in {*LIKELIHOODS, *_ERRORS, *CTC} or traced.is_error(node):
            for output, target in either_way(node):
                if not isinstance(output, Made) or not traced.tensor(output).requires_grad:
                    continue
                if traced.is_of_data_alone(target):
                    yield node, output, target


def _share(
    node: Node,
    output: Made,
    target: Made | Given,
    traced: TracedPass,
    after: Graph,
) -> float | None:
    """Where outputs and targets change together: of either's places, the larger part.

    Outputs may stay where targets change, as of one code for all samples, and still be theirs.

    Returns:
        None if that tells nothing.
    """
    other = replace(traced, graph=after)

    def change(place: int) -> Tensor:
        now = after.nodes[node.number].inputs[place]
        return traced.tensor(node.inputs[place]).detach() != other.tensor(now).detach()

    if any(source != traced.before_expanding(source) for source in node.inputs[:2]):
        return None  # each with every other
    sides = {source: place for place, source in enumerate(node.inputs[:2])}
    moved, wanted = change(sides[output]), change(sides[target])
    if node.name in CTC:
        if wanted.ndim != 2 or len(wanted) != moved.shape[1]:
            return None
        moved = moved.any(2)
        wanted = wanted.any(1).expand_as(moved)
    elif node.name in LIKELIHOODS and moved.ndim > 1:
        moved = moved.any(1)
    if moved.shape != wanted.shape or not bool(wanted.any()) or not bool(moved.any()):
        return None
    return max(float(moved[wanted].double().mean()), float(wanted[moved].double().mean()))
