"""Terms of a loss that hand no gradient back, though weights have made them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from equipoise.diagnosis.mistakes.traced_pass import TracedPass, place_of
from equipoise.diagnosis.sources import ARRANGING
from equipoise.diagnosis.trainability.entrance import leading_to
from equipoise.instrument.recording.graph import Given, Made, Node
from equipoise.records import wording
from equipoise.records.finding import Finding
from equipoise.theory.propagation.call import OF_SHAPES

_ADDING = ("add", "sub", "rsub")
_JOINING = ("stack", "cat")
_AVERAGING = ("sum", "mean")
_SCALING = ("mul", "div", "neg", *ARRANGING)
_NAMES = 3


def of_detached(traced: TracedPass) -> list[Finding]:
    """Terms of the loss without a gradient, made of weights that other terms train.

    Such as a penalty of a derivative that was taken without ``create_graph=True``, a term of
    ``argmax``, or one behind ``detach()``. Where another term was subtracted from it, or takes
    all that was detached as well, it corrects a value or its rounding, and is meant.
    """
    if traced.graph.result is None or not traced.graph.weights:
        return []
    terms = dict(_terms(traced.graph.result, traced))
    learnt = [one for one in terms if traced.tensor(one).requires_grad]
    lost = [one for one in terms if one not in learnt and _is_lost(one, learnt, traced)]
    if not learnt or not lost:
        return []
    values = [wording.number(float(traced.tensor(terms[one]))) for one in lost]
    return [
        Finding(
            "warning",
            "A part of the loss has no gradient",
            f"Training does not lower {wording.listed(values, _NAMES)} of the loss: weights have "
            f"made it, and it hands no gradient back to them. {_why(lost, traced)}",
            "Give torch.autograd.grad create_graph=True, and look for detach(), no_grad(), .data, "
            "argmax and comparisons on the way to that part. If it is for the record alone, leave "
            "it out of the loss.",
        )
    ]


def _terms(
    source: Made | Given, traced: TracedPass, weighted: Made | None = None
) -> Iterator[tuple[Made, Made]]:
    """The numbers that a loss adds up, before each is multiplied by its weight, and after."""
    if not isinstance(source, Made) or source.node not in traced.nodes:
        return
    weighted = weighted or source
    node = traced.nodes[source.node]
    tensors = [one for one in node.inputs if isinstance(one, Made)]
    if node.name in _JOINING or (node.name in _ADDING and _are_numbers(node.inputs, traced)):
        inner: Sequence[Made] = tensors
    elif node.name in _AVERAGING and _joins_numbers(tensors, traced):
        inner = tensors
    elif node.name in _SCALING and len(tensors) == 1 and _are_numbers(tensors, traced):
        inner = tensors if node.name != "detach" else ()
    else:
        inner = ()
    if not inner:
        yield source, weighted
    for one in inner:
        yield from _terms(one, traced, weighted if node.name in _SCALING else None)


def _are_numbers(sources: Sequence[Made | Given], traced: TracedPass) -> bool:
    return all(traced.tensor(one).numel() == 1 for one in sources)


def _joins_numbers(sources: Sequence[Made], traced: TracedPass) -> bool:
    joined = [traced.nodes[one.node] for one in sources]
    return all(node.name in _JOINING and _are_numbers(node.inputs, traced) for node in joined)


def _is_lost(term: Made, learnt: Sequence[Made], traced: TracedPass) -> bool:
    """Whether weights that are trained made a term, and it is there for its own sake."""
    tensor = traced.tensor(term)
    if tensor.numel() != 1 or tensor.is_meta or not tensor.is_floating_point():
        return False
    behind, ends = leading_to(traced.graph, term.node), _ends(term, traced)
    if any(one.node in behind for one in learnt):
        return False  # its gradient is that of another term
    taken = set[int]().union(*(leading_to(traced.graph, one.node) for one in learnt))
    return bool(ends) and not all(end.number in taken for end in ends)


def _ends(term: Made, traced: TracedPass) -> list[Node]:
    """Operations behind a term that took what weights of other terms have made, and lost them."""
    reached, ends = set[int](), []
    for number in sorted(leading_to(traced.graph, term.node)):
        node = traced.nodes[number]
        if not any(
            one.node in reached if isinstance(one, Made) else one.name in traced.graph.weights
            for one in node.inputs
        ):
            continue
        if any(one.requires_grad for one in node.outputs):
            reached.add(number)
        elif node.name not in OF_SHAPES:
            ends.append(node)
    return ends


def _why(lost: Sequence[Made], traced: TracedPass) -> str:
    ends = [end for one in lost for end in _ends(one, traced)]
    if not all(end.records_gradients for end in ends):
        return (
            "It is computed where no gradients are recorded, as in torch.no_grad() and in a "
            "derivative that is taken without create_graph=True."
        )
    names = dict.fromkeys(f"{end.name}{place_of(end)}" for end in ends)
    return f"That ends at {wording.listed([*names], _NAMES)}."
