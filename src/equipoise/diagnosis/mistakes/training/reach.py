"""Parameters that the loss does not depend on."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from equipoise.diagnosis.mistakes.traced_pass import TracedPass, place_of
from equipoise.diagnosis.trainability.entrance import leading_to
from equipoise.instrument import untouched
from equipoise.instrument.forward import recording_gradients
from equipoise.instrument.modules import in_idle_networks
from equipoise.instrument.recording.graph import Given, Graph, Made
from equipoise.records import wording
from equipoise.records.finding import Finding
from equipoise.theory.propagation.call import OF_SHAPES

# Shares of the parameters from which a part without gradient is no detail, and the larger part.
_MUCH, _MOST = 0.1, 0.5
MOST = "Most of the weights get no gradient"
_NAMES = 3
_NO_GRAD = "torch.no_grad()"
_IDLE = (
    "They are all those of networks that this loss does not run, in a model without a forward() "
    "of its own: another loss trains them, or they follow the others, as target networks do. Use "
    "them if it is this loss that is to train them."
)
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
    graph = traced.graph
    trainable = traced.stepped
    missed = [name for name in trainable if name not in graph.weights]
    if not missed or not graph.weights:
        return []

    def share_of(names: Collection[str]) -> float:
        sizes = [sum(trainable[one].numel() for one in some) for some in (names, trainable)]
        return sizes[0] / max(1, sizes[1])

    def finding(names: Sequence[str], why: str, worse: str = "") -> Finding:
        count = wording.count(len(names), "parameter")
        title = f"{count} without a gradient"
        detail = (
            f"The loss does not depend on {wording.percent(share_of(names))} of the weights, in "
            f"{count}: {wording.listed(names, _NAMES)}. {why}"
        )
        if not worse:
            return Finding("note", title, detail)
        return Finding("warning", MOST if share_of(names) > _MOST else title, detail, worse)

    if share_of(missed) < _MUCH:
        return [finding(missed, _why(graph, missed))]
    missed = _missed_by_all(traced, missed)
    idle = [name for name in in_idle_networks(traced.model, _run(graph)) if name in missed]
    found = [finding(idle, _IDLE)] if idle else []
    rest = [name for name in missed if name not in idle]
    if not rest:
        return found
    if share_of(rest) < _MUCH:
        return [*found, finding(rest, _why(graph, rest))]
    if _run_beside(traced, rest):
        return [*found, finding(rest, _BESIDE)]
    return [
        *found,
        finding(
            rest,
            _why(graph, rest),
            "Use them, look for detach() or no_grad() behind them, or freeze them with "
            "requires_grad_(False).",
        ),
    ]


def _run(graph: Graph) -> set[str]:
    """Names of the parameters that operations take, with a gradient or without."""
    given = [one for node in graph.nodes for one in node.inputs if isinstance(one, Given)]
    return {one.name for one in given}


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
