"""Mistakes that a traced pass shows, whatever theory says of the network."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from equipoise.instrument.recording.graph import Given, Graph, Made, Node
from equipoise.records import wording
from equipoise.records.finding import Finding

_CROSS_ENTROPY, _BINARY = "_log_softmax", "binary_cross_entropy_with_logits"
# Losses that normalise what they are given, in words.
_LOSSES = {_CROSS_ENTROPY: "cross-entropy", _BINARY: "binary cross-entropy of logits"}
_NORMALISED_TWICE = {(_CROSS_ENTROPY, "_softmax"): "softmax", (_BINARY, "sigmoid"): "sigmoid"}
# Where bounded activations leave logits between.
_BOUNDED = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0)}
_NLL = ("nll_loss_forward", "nll_loss2d_forward")
# What makes numbers that are no logarithms of probabilities.
_NO_LOGARITHMS = (
    "addmm",
    "mm",
    "bmm",
    "baddbmm",
    "convolution",
    "_softmax",
    "sigmoid",
    "tanh",
    "relu",
)
# Operations that compare or join numbers one by one.
_BY_ELEMENT = ("sub", "rsub", "mul", "div", "mse_loss", "smooth_l1_loss", "huber_loss")
# Operations that only arrange their input anew.
_ARRANGING = {
    "view",
    "_unsafe_view",
    "reshape",
    "permute",
    "transpose",
    "t",
    "squeeze",
    "unsqueeze",
}
_ARRANGING |= {"flatten", "clone", "_to_copy", "alias", "detach", "contiguous", "slice", "select"}
# Share of the parameters from which a part without gradient is no detail.
_MUCH = 0.1
# Share of the units from which a dropout is more probably one minus what was meant.
_MOST_DROPPED = 0.75
_NAMES = 3


def mistakes(graph: Graph, model: nn.Module) -> list[Finding]:
    """Outputs that do not fit the loss, parts that it does not reach, and too much dropout."""
    nodes = {node.number: node for node in graph.nodes}
    found = {}
    for node in graph.nodes:
        origin = _origin(node, nodes)
        for one in (
            _before_a_loss(node, origin),
            _no_logarithms(node, origin),
            _crossed(node, nodes),
        ):
            if one is not None:
                found[one.title] = one
    return [*found.values(), *_without_gradient(graph, model), *_dropped(model)]


def _before_a_loss(node: Node, origin: Node | None) -> Finding | None:
    """An activation whose outputs are taken as logits."""
    loss = _LOSSES.get(node.name)
    if loss is None or origin is None:
        return None
    word = _NORMALISED_TWICE.get((node.name, origin.name))
    if word is not None:
        return Finding(
            "warning",
            f"{word.capitalize()} before {loss}",
            f"{loss.capitalize()} applies its own {word}: after another one its gradients are "
            "small, and the loss cannot come near zero.",
            f"Return what goes into the {word}, and apply it only where probabilities are needed.",
        )
    if origin.name in _BOUNDED:
        low, high = _BOUNDED[origin.name]
        others = _classes(node) - 1 if node.name == _CROSS_ENTROPY else 1
        reach = high - low if node.name == _CROSS_ENTROPY else high
        least = wording.number(math.log1p(others * math.exp(-reach)))
        return Finding(
            "warning",
            f"{origin.name.capitalize()} before {loss}",
            f"{loss.capitalize()} takes any numbers as logits, and these lie between {low:g} and "
            f"{high:g}: it cannot come below {least}.",
            f"Return what goes into the {origin.name}.",
        )
    if origin.name == "relu" and node.name == _BINARY:
        return Finding(
            "warning",
            f"ReLU before {loss}",
            "Logits that are never negative mean probabilities of one half or more, and where "
            "they are cut there is no gradient.",
            "Return what goes into the ReLU.",
        )
    return None


def _classes(node: Node) -> int:
    shape = node.outputs[0].shape
    return int(shape[1]) if len(shape) > 1 else 1


def _no_logarithms(node: Node, origin: Node | None) -> Finding | None:
    """A likelihood of what is no logarithm of a probability."""
    if node.name not in _NLL or origin is None or origin.name not in _NO_LOGARITHMS:
        return None
    return Finding(
        "warning",
        "NLL of what is no logarithm of a probability",
        "The negative log-likelihood only picks one number per sample and turns its sign: it "
        "falls without bound, and the classes do not compete.",
        "Apply log_softmax before it, or take cross-entropy, which does both.",
    )


def _crossed(node: Node, nodes: Mapping[int, Node]) -> Finding | None:
    """A column of outputs that meets a row of targets: each is compared with every other."""
    if node.name not in _BY_ELEMENT or len(node.inputs) < 2:
        return None
    outputs, targets = (_before_expanding(source, nodes) for source in node.inputs[:2])
    pairs = ((outputs, targets), (targets, outputs))
    for (column, made), (row, other) in pairs:
        count = row[0] if len(row) == 1 else 0
        if made and not other and count > 1 and column == (count, 1):
            return Finding(
                "warning",
                "Every output is compared with every target",
                f"Outputs of shape [{count}, 1] meet targets of shape [{count}], which makes "
                f"[{count}, {count}]: the best that a model can learn is the targets' mean.",
                "Give both one shape: squeeze the output, output.squeeze(1), or unsqueeze the "
                "targets.",
            )
    return None


def _before_expanding(
    source: Made | Given, nodes: Mapping[int, Node]
) -> tuple[tuple[int, ...], bool]:
    """The shape of an operand, and whether it depends on weights."""
    while isinstance(source, Made):
        made = nodes.get(source.node)
        if made is None:
            return (), False
        if made.name != "expand" or not made.inputs:
            output = made.outputs[source.index]
            return tuple(output.shape), output.requires_grad
        source = made.inputs[0]
    return tuple(source.value.shape), False


def _origin(node: Node, nodes: dict[int, Node]) -> Node | None:
    """The operation that made the numbers of a node's first input."""
    while node.inputs and isinstance(source := node.inputs[0], Made):
        made = nodes.get(source.node)
        if made is None or made.name not in _ARRANGING:
            return made
        node = made
    return None


def _without_gradient(graph: Graph, model: nn.Module) -> list[Finding]:
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    missed = [name for name in trainable if name not in graph.weights]
    if not missed or not graph.weights:
        return []
    numbers = sum(p.numel() for p in trainable.values())
    share = sum(trainable[name].numel() for name in missed) / max(1, numbers)
    much = share >= _MUCH
    return [
        Finding(
            "warning" if much else "note",
            f"{wording.count(len(missed), 'parameter')} without a gradient",
            f"The loss of this batch does not depend on {wording.percent(share)} of the weights: "
            f"{wording.listed(missed, _NAMES)}. They were not "
            "used in this pass, as dropped layers and experts are, or are detached.",
            "Use them, look for detach() or no_grad() behind them, or freeze them with "
            "requires_grad_(False)."
            if much
            else None,
        )
    ]


def _dropped(model: nn.Module) -> list[Finding]:
    """Dropout of nearly everything, as where the share to keep was meant."""
    found = {
        name or "the model": module.p
        for name, module in model.named_modules()
        if isinstance(module, _DropoutNd) and module.training and module.p >= _MOST_DROPPED
    }
    if not found:
        return []
    most = max(found.values())
    return [
        Finding(
            "warning",
            f"Dropout of {wording.percent(most)}",
            f"{wording.capital(wording.listed(list(found), _NAMES))}: PyTorch's p is the share "
            f"that is removed, and {wording.percent(1 - most)} of the units remain.",
            f"If {wording.percent(most)} was to be kept, write p={1 - most:.3g}.",
        )
    ]
