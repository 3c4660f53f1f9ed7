"""Parameters that the loss does not depend on."""

from __future__ import annotations

from collections.abc import Collection

import torch

from equipoise.diagnosis.mistakes.traced_pass import TracedPass, place_of
from equipoise.diagnosis.trainability.entrance import leading_to
from equipoise.instrument import untouched
from equipoise.instrument.forward import recording_gradients
from equipoise.instrument.recording.graph import Given, Graph, Made
from equipoise.records import wording
from equipoise.records.finding import Finding
from equipoise.theory.propagation.call import OF_SHAPES

# Shares of the parameters from which a part without gradient is no detail, and the larger part.
_MUCH, _MOST = 0.1, 0.5
MOST = "Most of the weights get no gradient"
_NAMES = 3
_NO_GRAD = "torch.no_grad()"
_BESIDE = (
    "They run without a gradient beside what is trained, and are trained by another loss, as a "
    "generator beside its critic, or follow the others, as target networks do. Check the other "
    "loss too."
)


def of_reach(traced: TracedPass) -> list[Finding]:
    """Parameters that the loss does not depend on, on any batch where they are many.

    Args:
        traced: The pass, with other batches, on which dropped layers and experts may be used.
    """
    graph, model = traced.graph, traced.model
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    missed = [name for name in trainable if name not in graph.weights]
    if not missed or not graph.weights:
        return []

    def share() -> float:
        sizes = [sum(trainable[name].numel() for name in names) for names in (missed, trainable)]
        return sizes[0] / max(1, sizes[1])

    if share() >= _MUCH:
        missed = _missed_by_all(traced, missed)
    if not missed:
        return []
    count = wording.count(len(missed), "parameter")
    title = f"{count} without a gradient"
    detail = (
        f"The loss does not depend on {wording.percent(share())} of the weights, in {count}: "
        f"{wording.listed(missed, _NAMES)}. "
    )
    if share() < _MUCH:
        return [Finding("note", title, detail + _why(graph, missed))]
    if _run_beside(traced, missed):
        return [Finding("note", title, detail + _BESIDE)]
    return [
        Finding(
            "warning",
            MOST if share() > _MOST else title,
            detail + _why(graph, missed),
            "Use them, look for detach() or no_grad() behind them, or freeze them with "
            "requires_grad_(False).",
        )
    ]


def _run_beside(traced: TracedPass, missed: Collection[str]) -> bool:
    """Whether all of these are used, and something that is trained is given the data without them.

    As a generator in the step of its critic, and the target network of a DQN; not as an encoder
    whose features are detached, behind which everything else is.
    """
    if traced.graph.result is None:
        return False
    after, used = set[int](), set[str]()  # operations that take what they have made, and names
    for node in traced.graph.nodes:
        given = {one.name for one in node.inputs if isinstance(one, Given)} & {*missed}
        used |= given
        if given or any(isinstance(one, Made) and one.node in after for one in node.inputs):
            after.add(node.number)
    leading = leading_to(traced.graph, traced.graph.result.node)
    return used == {*missed} and any(
        node.number in leading and node.number not in after for node in traced.last_layers
    )


def _why(graph: Graph, missed: Collection[str]) -> str:
    """Which operations let no gradient through, on the way from these weights to the loss."""
    leading = set() if graph.result is None else leading_to(graph, graph.result.node)
    after: set[int] = set()  # operations that depend on them
    ends: dict[str, None] = {}
    for node in graph.nodes:
        sources = [
            source
            for source in node.inputs
            if (source.node in after if isinstance(source, Made) else source.name in missed)
        ]
        if not sources or not node.outputs:
            continue
        if node.outputs[0].requires_grad:
            after.add(node.number)
        elif node.number in leading and node.name not in OF_SHAPES:
            what = node.name if node.records_gradients else _NO_GRAD
            ends[f"{what}{place_of(node)}"] = None
    if ends:
        unrecorded = any(what.startswith(_NO_GRAD) for what in ends)
        return f"Their gradients end at {wording.listed(list(ends), _NAMES)}." + (
            " A reentrant checkpoint whose inputs have no gradient runs so, too."
            if unrecorded
            else ""
        )
    return (
        "They were not used, as dropped layers and experts may be, or are detached, as by a "
        "reentrant checkpoint whose inputs have no gradient."
    )


def _missed_by_all(traced: TracedPass, missed: Collection[str]) -> list[str]:
    left, batches = list(missed), traced.more()
    with untouched(traced.model), recording_gradients():
        parameters = dict(traced.model.named_parameters())
        for batch in batches:
            loss = traced.loss_fn(traced.model, batch)
            if loss.requires_grad:
                found = torch.autograd.grad(loss, [parameters[n] for n in left], allow_unused=True)
                left = [name for name, one in zip(left, found, strict=True) if one is None]
            if not left:
                break
    return left
