"""Classes that compete along another axis than the one that a likelihood picks from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from equipoise.diagnosis.mistakes.traced_pass import TracedPass, one_of_each
from equipoise.diagnosis.sources import ARRANGING, LIKELIHOODS, PRODUCTS, axis_of, either_way
from equipoise.instrument.recording.graph import Made, Node
from equipoise.records.finding import Finding
from equipoise.theory.propagation.layout import Atom, Layout, LayoutError

_SOFTMAXES = {"_softmax": "Softmax", "_log_softmax": "Log-softmax"}
# What leaves each number where it is.
_IN_PLACE = {"log", "add", "clamp", "clamp_min", "neg", "mul"}
_SHAPING = {"view", "_unsafe_view", "reshape", "flatten", "squeeze", "unsqueeze"}
_COPYING = {"clone", "_to_copy", "alias", "contiguous"}


def of_classes(traced: TracedPass) -> list[Finding]:
    """A softmax over another axis than that of the classes, and logits in another order."""
    return one_of_each(
        one
        for node in traced.after_layers
        for one in (
            _looked_at(node, traced) if _picks_classes(node) else [_of_soft_targets(node, traced)]
        )
    )


def _looked_at(likelihood: Node, traced: TracedPass) -> Iterator[Finding | None]:
    """What is wrong with the softmax that a likelihood picks numbers of."""
    way = _way_to(_SOFTMAXES, likelihood, traced, _IN_PLACE | _SHAPING | _COPYING)
    if way and not _picks_pairs(likelihood, traced):
        yield _over_another_axis(way[0], traced.shape(likelihood.inputs[0]))
    if way and likelihood.name in LIKELIHOODS:
        yield _out_of_order(way[0], traced)


def _of_soft_targets(node: Node, traced: TracedPass) -> Finding | None:
    """A log-softmax over the samples that is multiplied with probabilities, as of a teacher.

    One number for each sample is a score, and samples may be a list to be ranked.
    """
    if node.name != "mul" or len(node.inputs) != 2:
        return None
    for source, target in either_way(node):
        made = traced.nodes[source.node] if isinstance(source, Made) else None
        if made is None or made.name != "_log_softmax" or traced.tensor(target).requires_grad:
            continue
        given = tuple(made.outputs[0].shape)
        if len(given) == 2 and given[1] > 1 and traced.shape(target) == given:
            return _over_another_axis(made, given)
    return None


def _picks_classes(node: Node) -> bool:
    """Whether it takes one number from each row, along axis 1."""
    if node.name in LIKELIHOODS:
        return True
    if node.name != "gather" or node.outputs[0].ndim != 2 or node.outputs[0].shape[1] != 1:
        return False
    return bool(node.arguments[1] % 2 == 1)


def _picks_pairs(node: Node, traced: TracedPass) -> bool:
    """Whether no two rows have the same class, as where each sample has a partner of its own."""
    numbers = [traced.tensor(source) for source in node.inputs[1:2]]
    return any(len(set(x.flatten().tolist())) == x.numel() > 1 for x in numbers)


def _way_to(
    names: Mapping[str, str], node: Node, traced: TracedPass, through: set[str]
) -> list[Node]:
    """Operations on the way from one of these names to a node's first input, that one first."""
    way: list[Node] = []
    while node.inputs and isinstance(source := node.inputs[0], Made):
        node = traced.nodes[source.node]
        way.insert(0, node)
        if node.name in names:
            return way
        if node.name not in through:
            break
    return []


def _over_another_axis(softmax: Node, picked: tuple[int, ...]) -> Finding | None:
    given = tuple(softmax.outputs[0].shape)
    axis = axis_of(softmax)
    word = _SOFTMAXES[softmax.name]
    if len(given) == 2:
        # Similarities of samples have one on either axis.
        is_wrong = axis == 0 and picked == given and given[0] != given[1]
    else:  # classes are on axis 1 of maps and of sequences
        is_wrong = len(given) > 2 and axis != 1 and given[:2] == picked[:2]
    if not is_wrong:
        return None
    if axis == 0:
        return Finding(
            "warning",
            f"{word} over the samples",
            "Its axis is 0, that of the samples: classes do not compete, and samples do.",
            "Take the axis of the classes: log_softmax(dim=1), or cross-entropy of the logits.",
        )
    return Finding(
        "warning",
        f"{word} over positions",
        f"Its axis is {axis} of {list(given)}, and the loss takes axis 1 for that of the "
        f"{given[1]} classes: they do not compete, and positions do.",
        "Take the axis of the classes: log_softmax(dim=1), or cross-entropy of the logits.",
    )


def _out_of_order(softmax: Node, traced: TracedPass) -> Finding | None:
    """Logits that were given another shape where their axes were to be exchanged."""
    products = dict.fromkeys(PRODUCTS, "")
    way = _way_to(products, softmax, traced, _IN_PLACE | ARRANGING)
    if not way:
        return None
    first = tuple(way[0].outputs[0].shape)
    feature = 1 if way[0].name == "convolution" else len(first) - 1
    classes = softmax.outputs[0].shape[axis_of(softmax)]
    if first[feature] < 2 or first[feature] != classes:
        return None
    layout = Layout(tuple((Atom.new("open", size),) for size in first))
    (atom,) = layout.axes[feature]
    try:
        for node in way[1:]:
            layout = _arranged(layout, node)
    except LayoutError:
        mixed = True
    except _UnknownError:
        return None
    else:
        mixed = atom not in layout.axes[axis_of(softmax)] and not any(
            axis == (atom,) for axis in layout.axes
        )
    if not mixed:
        return None
    last = tuple(softmax.outputs[0].shape)
    return Finding(
        "critical",
        "Logits lose their order before the loss",
        f"Outputs of shape {list(_before(way))} are given the shape {list(last)} by a view, "
        f"which leaves the numbers where they are: the {classes} numbers that compete as classes "
        "belong to several positions.",
        "Exchange axes instead: x.transpose(1, 2), or x.permute(0, 2, 3, 1) of maps before they "
        "are flattened.",
    )


def _before(way: Sequence[Node]) -> tuple[int, ...]:
    """The shape that logits had before the view that spoils them: the last but one on the way."""
    shapes = [tuple(node.outputs[0].shape) for node in way]
    return next((one for one in reversed(shapes) if one != shapes[-1]), shapes[-1])


def _arranged(layout: Layout, node: Node) -> Layout:
    """The axes after an operation.

    Raises:
        LayoutError: If an axis mixes parts of two.
    """
    last = tuple(node.outputs[0].shape)
    if node.name == "permute":
        return layout.permuted(axis % len(layout.axes) for axis in node.arguments[1])
    if node.name in ("transpose", "t"):
        order = list(range(len(layout.axes)))
        one, other = (0, 1) if node.name == "t" else node.arguments[1:3]
        order[one], order[other] = order[other], order[one]
        return layout.permuted(order)
    if layout.shape == last:
        return layout
    if node.name in _SHAPING:
        return layout.viewed(last)[0]
    # A part of it, whose axes are other ones of the same kinds.
    if node.name == "slice":
        return Layout(
            tuple(
                axis if length == size else (Atom.new("open", size),)
                for axis, length, size in zip(layout.axes, layout.shape, last, strict=True)
            )
        )
    if node.name == "select":
        axis = node.arguments[1] % len(layout.axes)
        return Layout(layout.axes[:axis] + layout.axes[axis + 1 :])
    raise _UnknownError


class _UnknownError(Exception):
    """An operation that is not followed."""
