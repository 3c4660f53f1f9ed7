"""Random numbers that cannot be predicted, or that let no gradient through."""

from __future__ import annotations

from collections.abc import Callable, Set

from equipoise.diagnosis.mistakes.traced_pass import TracedPass, one_of_each, place_of
from equipoise.diagnosis.sources import ARRANGING, DIFFERENCES, DRAWN, PRODUCTS, either_way
from equipoise.diagnosis.trainability.entrance import leading_to
from equipoise.instrument.recording.graph import Given, Graph, Made, Node
from equipoise.records import wording
from equipoise.records.finding import Finding
from equipoise.theory.propagation.call import OF_SHAPES

# What takes the size of a difference: else noise may have been added to outputs on purpose.
_SIZES = {"pow", "abs", "norm", "linalg_vector_norm"}
# What may be made of noise by scaling it.
_SCALED = {*ARRANGING, *OF_SHAPES, "mul", "div", "add", "sub", "neg", "empty", "empty_like"}
# Standard deviations from zero at which a mean is what there is to learn.
_CENTRED = 0.5


def of_draws(traced: TracedPass) -> list[Finding]:
    """Targets that are noise, and samples of a law that weights make.

    A loss that the user has not given may be the distance to noise on purpose, without targets.
    """
    graph = traced.graph
    return one_of_each(
        _without_gradient(node, traced)
        if node.number in traced.before_layers
        else None
        if traced.loss_is_assumed
        else _noise_as_target(node, traced, graph)
        for node in graph.nodes
    )


def _noise_as_target(node: Node, traced: TracedPass, graph: Graph) -> Finding | None:
    """A difference to noise that is all that the loss is made of."""
    if node.name not in DIFFERENCES or not _is_judged(node, traced):
        return None
    for output, target in either_way(node):
        if not (isinstance(output, Made) and isinstance(target, Made)):
            continue
        if traced.shape(output) != traced.shape(target) or not traced.depends_on_weights(output):
            continue
        draws = _draws_alone(target, traced)
        if not draws or draws & leading_to(graph, output.node):
            continue
        values = traced.tensor(target).detach().double()
        if values.numel() < 2 or not abs(values.mean()) < _CENTRED * values.std():
            continue
        if graph.result is None or _takes_more(graph.result.node, traced, node.number):
            return None  # noise beside a target, or a distance to other points among others
        drawn = wording.listed(sorted({traced.nodes[number].name for number in draws}), 3)
        return Finding(
            "critical",
            "The targets are noise that the model is not given",
            f"Outputs of shape {list(traced.shape(output))} are compared with numbers that "
            f"{drawn} draws anew in every pass, and that nothing of the model's input depends "
            "on: the best that it can learn is their mean.",
            "Draw them once, and compare with the numbers that went into the input: noise = "
            "torch.randn_like(x), model(x + noise), and the error to that noise.",
        )
    return None


def _is_judged(node: Node, traced: TracedPass) -> bool:
    """Whether it is a loss, or a difference whose size is taken."""
    waiting, seen = [node], set[int]()
    while waiting:
        one = waiting.pop()
        if one.number in seen:
            continue
        seen.add(one.number)
        if one.name in _SIZES or (one.name != "sub" and one.name in DIFFERENCES):
            return True
        if one is node or one.name in {*ARRANGING, "mul", "div"}:
            users = traced.users_of(one.number)
            squares = (x.name == "mul" and len(set(x.inputs)) < len(x.inputs) for x in users)
            if any(squares):
                return True
            waiting += users
    return False


def _takes_more(end: int, traced: TracedPass, closed: int) -> bool:
    """Whether an operation takes weights, or numbers for samples, on ways around another one."""
    seen, left = {closed}, [] if end == closed else [end]
    while left:
        node = traced.nodes[left.pop()]
        if (
            not (node.inputs or node.name in DRAWN)
            and node.outputs
            and _varies(Made(node.number, 0), traced)
        ):
            return True  # as arange
        for source in node.inputs:
            if isinstance(source, Given):
                if source.value.requires_grad or source.value.numel() > 1:
                    return True
            elif source.node not in seen:
                seen.add(source.node)
                left.append(source.node)
    return False


def _draws_alone(source: Made, traced: TracedPass) -> set[int]:
    """The draws that a tensor is made of; none if it is made of anything else as well."""
    found, seen, left = set[int](), set[int](), [source]
    while left:
        node = traced.nodes[left.pop().node]
        if node.number in seen:
            continue
        seen.add(node.number)
        if node.name in DRAWN:
            if _of_a_law(node):
                return set()
            found.add(node.number)
        elif node.name not in _SCALED or any(not isinstance(one, Made) for one in node.inputs):
            return set()
        else:
            left += [one for one in node.inputs if isinstance(one, Made)]
    return found


def _of_a_law(node: Node) -> bool:
    """Whether mean or deviation are tensors."""
    operator = node.operator
    return not isinstance(operator, type) and "Tensor" in operator._overloadname


def _without_gradient(node: Node, traced: TracedPass) -> Finding | None:
    """A draw whose law learns from elsewhere than data, and which layers take.

    None is to pass where the probability of what was drawn is weighed by what came of it, as of
    actions, where the law is fitted to data, or where it learns nothing from this draw's place, as
    a target's. Weighed by one number, as in SAC, it teaches a policy to be random, and no more.
    """
    if node.name != "normal" or not _of_a_law(node):
        return None
    laws = [_before_drawing(one, traced) for one in node.inputs if isinstance(one, Made)]
    if not any(_has_gradient(one, traced) for one in laws):
        return None
    scored = _ending_in("sub", {node.number}, traced, lambda one: one.name not in PRODUCTS)
    fitted = _ending_in(
        "sub", {one.node for one in laws}, traced, lambda one: one.name in {*ARRANGING, "expand"}
    )
    weighed = _ending_in("mul", {node.number}, traced, lambda one: one.name not in PRODUCTS)
    is_scored = any(traced.depends_on_weights(one) for one in scored)
    if is_scored and any(
        not traced.tensor(one).requires_grad and _varies(one, traced) for one in weighed
    ):
        return None  # the logarithm of its probability: a score function
    data = [one for one in fitted if traced.origin_of(one) is not node]
    if any(not traced.depends_on_weights(one) and _varies(one, traced) for one in data):
        return None
    return Finding(
        "critical" if is_scored else "warning",
        "No gradient passes what is drawn",
        f"normal{place_of(node)} draws numbers whose mean or deviation weights make, and layers "
        "take them: through these numbers, the weights before get no gradient.",
        "Take mean + std * torch.randn_like(std), or rsample() of a torch.distributions.Normal "
        "instead of sample().",
    )


def _before_drawing(source: Made, traced: TracedPass) -> Made:
    """What made a law, which is expanded to be drawn from, also without a gradient."""
    node = traced.nodes[source.node]
    while node.name in {*ARRANGING, "expand"} and isinstance(first := node.inputs[0], Made):
        source, node = first, traced.nodes[first.node]
    return source


def _has_gradient(source: Made, traced: TracedPass) -> bool:
    gradients = traced.nodes[source.node].gradients
    return (
        traced.depends_on_weights(source)
        and source.index < len(gradients)
        and gradients[source.index] is not None
    )


def _ending_in(
    name: str, starts: Set[int], traced: TracedPass, passes: Callable[[Node], bool]
) -> list[Made | Given]:
    """What else operations of a name take, on ways from others through those that pass."""
    reached, others = set(starts), []
    for node in traced.nodes.values():
        made = [one for one in node.inputs if isinstance(one, Made) and one.node in reached]
        if not made:
            continue
        if node.name == name:
            others += [one for one in node.inputs if one not in made]
        if passes(node):
            reached.add(node.number)
    return others


def _varies(source: Made | Given, traced: TracedPass) -> bool:
    values = traced.tensor(source).detach()
    return bool((values != values.flatten()[:1]).any()) if values.numel() else False
