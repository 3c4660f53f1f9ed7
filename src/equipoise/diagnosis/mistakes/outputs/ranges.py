"""Outputs outside of the range that operations of the loss are made for.

The outputs of the last layers are replaced by numbers of both signs and any size, as weights may
make them, and the operations behind are repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from equipoise.diagnosis.mistakes.repeated import numbers_with
from equipoise.diagnosis.mistakes.traced_pass import TracedPass, one_of_each, place_of
from equipoise.diagnosis.sources import ARRANGING
from equipoise.instrument.recording.graph import Given, Made, Node
from equipoise.numerics.precision import widest
from equipoise.records import wording
from equipoise.records.finding import Finding

# Outputs that are tried for all samples, and at random for each.
_TRIED, _DRAWN = (-30.0, -3.0, 0.0, 3.0, 30.0), 2
# Which of them training soon reaches, and those before they are squashed to their bounds.
_SOON, _ENDS = slice(1, 4), ((0, 1), (4, 3))
# Part of the whole change that is left between both ends where outputs are squashed.
_LEFT = 0.1
# By which numbers may differ from those that operations are made for.
_ROUNDING = 1e-3
_SQUASHING = {"sigmoid": "Sigmoid", "log_sigmoid_forward": "Sigmoid", "_softmax": "Softmax"}
_CALLED = {"log_sigmoid_forward": "logsigmoid", "_softmax": "softmax"}
# What is squashed lies in a range of this length.
_SQUASHED = 1.0
_NOT_BELOW_ZERO = {"log", "log2", "log10", "sqrt"}
_CUTTING = {"relu", "clamp", "clamp_min"}
# Share of the parts of a hinge loss that can never be zero, from which it matters.
_NEVER = 0.1
_ORDERING = {"sort", "index", "gather", "unbind", "split"}


def of_ranges(traced: TracedPass) -> list[Finding]:
    """Losses that take logits for probabilities, or probabilities for logits.

    Sums of outputs that others are divided by, as in Dice's loss, and what logarithms and roots
    are taken of, may not change their sign; a sigmoid or softmax of what lies between 0 and 1 is
    nearly constant; and a hinge that no output satisfies has no right answer.
    """
    judged = [node for node in traced.after_layers if _is_judged(node, traced)]
    layers = traced.last_layers
    if traced.loss_is_assumed or not layers or not judged:
        return []
    made = [Made(node.number, 0) for node in layers]
    asked = {source for node in judged for source in _asked(node, traced)}
    passes: list[Mapping[Made, Tensor]] = []
    for values in zip(*(_outputs(node.outputs[0].detach()) for node in layers), strict=True):
        found = numbers_with(traced.graph, dict(zip(made, values, strict=True)))
        if found is None:
            return []
        passes.append({made: found[made] for made in asked if made in found})
    size = max(node.outputs[0].numel() for node in layers)

    def tried(source: object) -> Tensor | None:
        """What an operation is given in all passes; None if it is always the same."""
        if not isinstance(source, Made) or source not in passes[0]:
            return None
        shapes = {one[source].shape for one in passes}
        values = [one[source] for one in passes if one[source].is_floating_point()]
        values = [value.to(widest(value.device)) for value in values]
        return torch.stack(values) if len(shapes) == 1 and len(values) == len(passes) else None

    return one_of_each(
        one
        for node in judged
        for one in (
            _divides(node, tried, size),
            _has_no_logarithm(node, tried),
            _is_squashed_twice(node, tried),
            _never_satisfied(node, tried, traced),
        )
    )


def _is_judged(node: Node, traced: TracedPass) -> bool:
    """Whether its range matters, of what is learnt."""
    if node.name not in {"div", *_NOT_BELOW_ZERO, *_SQUASHING, *_CUTTING} or not node.inputs:
        return False
    if node.name == "div" and len(node.inputs) < 2:
        return False
    given = node.inputs[1] if node.name == "div" else node.inputs[0]
    return isinstance(given, Made) and traced.tensor(given).requires_grad


def _outputs(like: Tensor) -> Iterator[Tensor]:
    """The same number for all, and the largest with signs at random."""
    for number in _TRIED:
        yield torch.full_like(like, number)
    for seed in range(_DRAWN):
        drawn = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))
        yield _TRIED[-1] * drawn.sign().to(like)


def _divides(node: Node, tried: Callable[[object], Tensor | None], size: int) -> Finding | None:
    values = tried(node.inputs[1]) if node.name == "div" else None
    if values is None or not bool(torch.isfinite(values).all()):
        return None
    low, high = float(values.min()), float(values.max())
    if not low < -_ROUNDING < _ROUNDING < high:
        return None
    is_sum = 2 * values[0].numel() < size
    soon = values[_SOON]
    if not (is_sum or float(soon.min()) < -_ROUNDING < _ROUNDING < float(soon.max())):
        return None
    return Finding(
        "critical" if is_sum else "warning",
        "The loss divides by what outputs can make zero",
        f"{'The sum of outputs' if is_sum else 'What'}{place_of(node)} that others are divided by "
        f"goes from {wording.number(low)} to {wording.number(high)}, for outputs from "
        f"{_TRIED[0]:g} to {_TRIED[-1]:g}: near zero the loss has no bound.",
        "Dice, Tversky and Jaccard losses take probabilities: apply the sigmoid or softmax to the "
        "logits before them. Make other divisors positive, as by F.softplus.",
    )


def _has_no_logarithm(node: Node, tried: Callable[[object], Tensor | None]) -> Finding | None:
    values = tried(node.inputs[0]) if node.name in _NOT_BELOW_ZERO else None
    if values is None or not bool((values < -_ROUNDING).any()):
        return None
    what = "root" if node.name == "sqrt" else "logarithm"
    return Finding(
        "warning",
        f"The {what} of what may be negative",
        f"{node.name}{place_of(node)} is given outputs that nothing keeps above zero: at the "
        "first negative one the loss is nan.",
        "Let the model give the logarithm itself, or make its outputs positive by F.softplus.",
    )


def _is_squashed_twice(node: Node, tried: Callable[[object], Tensor | None]) -> Finding | None:
    values = tried(node.inputs[0]) if node.name in _SQUASHING else None
    if values is None:
        return None
    low, high = float(values.min()), float(values.max())
    if not _ROUNDING < high - low <= _SQUASHED + _ROUNDING:
        return None
    word = _SQUASHING[node.name]
    return Finding(
        "warning",
        f"{word} of what was squashed before",
        f"{_CALLED.get(node.name, node.name)}{place_of(node)} is given numbers between "
        f"{wording.number(low)} and {wording.number(high)}, whatever the outputs are: it hardly "
        "tells them apart, and gives no probability near 0 or 1.",
        f"Apply it once: return what goes into the first one, or leave the {word.lower()} out of "
        "the loss.",
    )


def _never_satisfied(
    node: Node, tried: Callable[[object], Tensor | None], traced: TracedPass
) -> Finding | None:
    if not _cuts_below_zero(node) or not _is_by_number(node, traced):
        return None
    values = tried(_before_ordering(node.inputs[0], traced))
    if values is None or node.outputs[0].numel() < 2:
        return None
    low, change = values.amin(0), values.amax(0) - values.amin(0)
    # Errors fall and rise again, or go on falling beyond what is tried.
    is_least = torch.zeros_like(low, dtype=torch.bool)
    for end, before in _ENDS:
        is_flat = (values[before] - values[end]).abs() <= _LEFT * change
        is_least |= (values[end] <= low + _ROUNDING) & is_flat
    # A difference of two outputs stays as it is where all are moved together.
    alike = values[: len(_TRIED)]
    is_of_one = alike.amax(0) - alike.amin(0) > _ROUNDING
    share = float((is_of_one & is_least & (low > _ROUNDING)).double().mean())
    if share < _NEVER:
        return None
    return Finding(
        "warning",
        "A hinge that no output can satisfy",
        f"{node.name}{place_of(node)} cuts what is below zero, and {wording.percent(share)} of "
        "what it is given never is, whatever the outputs are: these have no right answer.",
        "Hinge losses, and Lovász's with a hinge, take logits: leave the sigmoid away, or take "
        "the form of the loss for probabilities.",
    )


def _before_ordering(source: Made | Given, traced: TracedPass) -> Made | Given:
    """What was put in order: then, the largest are never below zero."""
    while isinstance(source, Made) and (made := traced.nodes[source.node]).name in _ORDERING:
        source = made.inputs[0]
    return source


def _asked(node: Node, traced: TracedPass) -> Iterator[Made]:
    """What is looked at of an operation's inputs."""
    given = node.inputs[1] if node.name == "div" else node.inputs[0]
    for source in (given, _before_ordering(given, traced)):
        if isinstance(source, Made):
            yield source


def _cuts_below_zero(node: Node) -> bool:
    if node.name == "relu":
        return True
    given = {"min": node.arguments[1] if len(node.arguments) > 1 else None, **node.keywords}
    return node.name in _CUTTING and given["min"] == 0 and given.get("max") is None


def _is_by_number(node: Node, traced: TracedPass) -> bool:
    """Whether each number that it is given is made of one output."""
    ends = {layer.number for layer in traced.last_layers}
    waiting, seen = [one for one in node.inputs if isinstance(one, Made)], set[int]()
    while waiting:
        source = waiting.pop()
        made = traced.nodes[source.node]
        if made.number in ends or made.number in seen or not traced.tensor(source).requires_grad:
            continue
        seen.add(made.number)
        if not (made.is_pointwise or made.name in {*ARRANGING, *_ORDERING}):
            return False
        waiting += [one for one in made.inputs if isinstance(one, Made)]
    return True
