"""Generators that a critic's loss trains toward the wrong side."""

from __future__ import annotations

from equipoise.diagnosis.mistakes.traced_pass import TracedPass, sign_of
from equipoise.diagnosis.sources import PRODUCTS, is_trained, kinds_of
from equipoise.instrument.recording.graph import Made, Node
from equipoise.records.finding import Finding
from equipoise.theory.propagation.call import OF_SHAPES


def of_adversaries(traced: TracedPass) -> list[Finding]:
    """Generators whose outputs are made easier to tell from real data.

    A critic is a network that runs on data alone, and on what other weights have made, and whose
    outputs the loss moves to opposite sides. What it says of generated data moves to the side of
    real data where the generator learns by it, and to the other where the critic does. Where no
    run is cut off from the generator, both may be wanted, as of watermarks: that is a note.
    """
    last = [] if traced.graph.has_functions else _last_layers(traced)
    signs = [sign_of(node) for node in last]
    if not {1.0, -1.0} <= set(signs):
        return []  # functions may turn gradients on purpose
    behind = _weights_behind(traced)
    runs = [(sign, *behind[node.number]) for sign, node in zip(signs, last, strict=True)]
    own = min((every for _, _, every in runs), key=len)
    if not own or not all(own <= learnt for _, learnt, _ in runs):
        return []
    real = {sign for sign, _, every in runs if every == own}
    cut_off = {sign for sign, learnt, every in runs if every > own and learnt == own}
    attached = {sign for sign, learnt, _ in runs if learnt > own}
    (side, *others) = real
    if others or not side or cut_off - {-side} or -side not in attached or 0.0 in attached:
        return []
    if cut_off and attached == {-side}:
        return [
            Finding(
                "critical",
                "The generator learns to be told from real data",
                "The critic's outputs for what it makes are moved away from those for data by "
                "both of their losses: the generator helps the critic that it is to mislead.",
                "Give the generator's loss the label of real data, "
                "as in bce(critic(fake), ones), or the other sign, as in -critic(fake).mean().",
            )
        ]
    return [
        Finding(
            "note",
            "The critic's loss has a gradient by the generator",
            "It makes what the generator gives easier to tell from data. That does no harm where "
            "another optimiser moves the generator, and its gradients are set to zero before "
            "its own loss.",
            "critic(fake.detach()) in the critic's loss.",
        )
    ]


def _last_layers(traced: TracedPass) -> list[Node]:
    """Products with weights that lead to no other; what they take may be drawn, and no data."""
    leading, last = set[int](), []
    for node in reversed(traced.graph.nodes):
        if node.number not in leading:
            has_gradient = bool(node.gradients) and node.gradients[0] is not None
            kinds = [kinds_of(source, traced.kinds) for source in node.inputs]
            if node.name not in PRODUCTS or not has_gradient or {"parameter"} not in kinds:
                continue
            last.append(node)
        leading |= {one.node for one in node.inputs if isinstance(one, Made)}
    return last


def _weights_behind(traced: TracedPass) -> dict[int, tuple[frozenset[str], frozenset[str]]]:
    """Trained parameters by which operations have a gradient, and all that they are made of."""
    found: dict[int, tuple[frozenset[str], frozenset[str]]] = {}
    for node in traced.graph.nodes:
        learnt = every = frozenset[str]()
        for source in node.inputs:
            has_gradient = traced.tensor(source).requires_grad
            if isinstance(source, Made):
                through, made_of = found[source.node]
            else:
                through = made_of = frozenset({source.name} if is_trained(source) else ())
            learnt = _both(learnt, through) if has_gradient else learnt
            every = every if node.name in OF_SHAPES else _both(every, made_of)
        found[node.number] = learnt, every
    return found


def _both(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    """The union, without a new set where one holds the other."""
    return one if other <= one else other if one <= other else one | other
