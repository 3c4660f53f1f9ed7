"""Layers that no optimizer sees, or that hand nothing or nearly nothing on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sized
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from equipoise.diagnosis.mistakes.traced_pass import TracedPass, place_of
from equipoise.diagnosis.sources import PRODUCTS, is_same
from equipoise.diagnosis.trainability.entrance import leading_to
from equipoise.instrument.batches import tensors
from equipoise.instrument.normalisers import is_batch_norm
from equipoise.instrument.recording.graph import Given, Graph, Made, Node
from equipoise.records import wording
from equipoise.records.finding import Finding

# Share of the units from which a dropout is more probably one minus what was meant.
_MOST_DROPPED = 0.75
# Beyond which, and with so few units kept in each of two layers, noise hides what is to be learnt:
# after 800 steps with 0.95 twice, at a width of 128 (6 kept) half of the digits are told apart,
# with 13 kept 92 %, and after one such layer 95 %.
_DROWNED, _FEW_KEPT, _IN_A_ROW = 0.9, 8, 2
_NAMES = 3
# Of fewer rows the gradient of batch norm has no finite variance.
_FEWEST = 4
# What every module keeps.
_OWN = frozenset(vars(nn.Module()))
# Containers in containers that are looked into.
_DEEPEST = 3
# Longer ones hold data.
_LONGEST = 1000


def of_layers(traced: TracedPass) -> list[Finding]:
    """Parts of a model that cannot do what they are for."""
    graph, model = traced.graph, traced.model
    return [
        *_unregistered(graph, model),
        *_norms_of_one(graph),
        *_norms_of_nothing(graph, model),
        *_norms_of_two(traced),
        *_dropped(graph, model),
    ]


def _unregistered(graph: Graph, model: nn.Module) -> list[Finding]:
    """Layers in a plain list, or weights in a plain attribute, that a pass would train."""
    trained = {
        id(source.value)
        for node in graph.nodes
        if any(gradient is not None for gradient in node.gradients)
        for source in node.inputs
        if isinstance(source, Given) and source.kind == "data" and source.value.requires_grad
    }
    found = [
        name
        for prefix, module in model.named_modules()
        for attribute, value in vars(module).items()
        if attribute not in _OWN
        for name, weights in _hidden(f"{prefix}.{attribute}" if prefix else attribute, value)
        if any(id(weight) in trained for weight in weights)
    ]
    if not found:
        return []
    return [
        Finding(
            "warning",
            f"{wording.count(len(found), 'layer')} that no optimizer sees",
            f"Weights are used and would be trained, but model.parameters() leaves them out: "
            f"{wording.listed(found, _NAMES)}. Lists, dictionaries and plain attributes of a "
            "module are not searched.",
            "Hold layers in nn.ModuleList or nn.ModuleDict, and tensors in nn.Parameter; freeze "
            "with requires_grad_(False) what is not to be trained, such as a loss's own network.",
        )
    ]


def _hidden(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, list[Tensor]]]:
    """Modules and tensors in a plain attribute or in the containers of one, with their weights."""
    if isinstance(value, nn.Module):
        yield name, list(value.parameters())
    elif isinstance(value, Tensor):
        yield name, [value]
    elif depth == _DEEPEST or (isinstance(value, Sized) and len(value) > _LONGEST):
        return
    elif isinstance(value, list | tuple):
        for place, part in enumerate(value):
            yield from _hidden(f"{name}[{place}]", part, depth + 1)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _hidden(f"{name}[{key!r}]", part, depth + 1)


def _dropped(graph: Graph, model: nn.Module) -> list[Finding]:
    """Dropout of nearly everything, as where the share to keep was meant."""
    found = {
        name or type(module).__name__: module.p
        for name, module in model.named_modules()
        if isinstance(module, _DropoutNd) and module.training and module.p >= _MOST_DROPPED
    }
    for node in graph.nodes:  # those of torch.nn.functional
        p = _share_dropped(node, graph)
        if p is not None and _MOST_DROPPED <= p < 1 and node.module not in found:
            found[node.module] = p
    if not found:
        return []
    most = max(found.values())
    drowning = [node for node in graph.nodes if _drowns(node, graph)]
    return [
        Finding(
            "critical" if len(drowning) >= _IN_A_ROW else "warning",
            f"Dropout with p = {most:g}",
            f"PyTorch's p is the share that is removed, here nearly everything: "
            f"{wording.listed(list(found), _NAMES)}.",
            f"If p is what was to be kept, write {1 - most:.3g}.",
        )
    ]


def _share_dropped(node: Node, graph: Graph) -> float | None:
    """Of an operation that dropout is made of: a mask that is divided by what it keeps."""
    if node.name == "native_dropout":
        return float(node.arguments[1])
    if node.name != "bernoulli" or len(node.arguments) < 2:
        return None
    keep, after = node.arguments[1], graph.nodes[node.number + 1 : node.number + 2]
    is_scaled = [one.name == "div" and one.arguments[1:2] == (keep,) for one in after]
    return round(1 - keep, 6) if isinstance(keep, float) and any(is_scaled) else None


def _drowns(node: Node, graph: Graph) -> bool:
    """Whether a dropout keeps but a few units, and nothing goes around it."""
    p = _share_dropped(node, graph)
    if p is None or not _DROWNED < p < 1:
        return False
    x = node.outputs[0]
    if (1 - p) * x.numel() / max(1, len(x)) >= _FEW_KEPT:
        return False
    end = node.number
    if node.name == "bernoulli":  # the mask, before it is divided and multiplied with
        end = next((one.number for one in graph.nodes[end + 2 : end + 3] if one.name == "mul"), -1)
    if end < 0 or graph.result is None:
        return False
    around = leading_to(graph, graph.result.node, {end})
    return not any(
        number in around and graph.nodes[number].name in PRODUCTS
        for number in leading_to(graph, end)
    )


def _norms_of_one(graph: Graph) -> list[Finding]:
    """Norms over a single number, which is its own mean."""
    found = [node.module for node in graph.nodes if _is_over_one(node)]
    if not found:
        return []
    return [
        Finding(
            "critical",
            "A norm of one number gives its bias alone",
            f"A number less its own mean is zero: {wording.listed(found, _NAMES)} "
            f"hand{'s' if len(found) == 1 else ''} nothing of the input on.",
            "Normalise over more features, with fewer groups, or not there.",
        )
    ]


def _is_over_one(node: Node) -> bool:
    if node.name == "native_layer_norm":
        return bool(math.prod(node.arguments[1]) == 1)
    if node.name == "native_group_norm":
        channels, positions, groups = node.arguments[4:7]
        return bool(channels * positions == groups)
    return False


def _norms_of_nothing(graph: Graph, model: nn.Module) -> list[Finding]:
    """Batch norms in evaluation mode whose statistics no batch has ever changed."""
    ran = {node.module for node in graph.nodes}
    found = [
        name
        for name, module in model.named_modules()
        if name in ran and is_batch_norm(module) and _is_fresh(module)
    ]
    if not found:
        return []
    return [
        Finding(
            "warning",
            f"{wording.count(len(found), 'batch norm')} in evaluation mode, with fresh statistics",
            f"Running means are 0 and variances 1, as they were made: "
            f"{wording.listed(found, _NAMES)} normalise{'s' if len(found) == 1 else ''} nothing.",
            "Train with model.train(), and freeze batch norms only once they have statistics, "
            "such as those of a pretrained model.",
        )
    ]


def _is_fresh(norm: nn.Module) -> bool:
    mean, variance = norm.running_mean, norm.running_var
    if norm.training or not (isinstance(mean, Tensor) and isinstance(variance, Tensor)):
        return False
    return not bool(mean.any()) and bool((variance == 1).all())


def _norms_of_two(traced: TracedPass) -> list[Finding]:
    """Batch norms over so few rows that hardly a sign is left, on all ways to the outputs.

    Skip connections around them, as of a U-Net's deepest level, hand the rest on.
    """
    few = {node.number: rows for node in traced.graph.nodes if 1 < (rows := _rows(node)) < _FEWEST}
    given, reached = tensors(traced.batch), set[int]()
    for node in traced.graph.nodes if few else ():
        is_given = any(
            source.node in reached
            if isinstance(source, Made)
            else source.kind == "data" and any(is_same(source.value, x) for x in given)
            for source in node.inputs
        )
        if is_given and node.number not in few:
            reached.add(node.number)
    layers = traced.last_layers
    if not few or not layers or any(node.number in reached for node in layers):
        return []
    return [
        Finding(
            "critical",
            f"All that outputs depend on passes batch norms of {min(few.values())} rows",
            f"{wording.count(len(few), 'batch norm')}, the first"
            f"{place_of(traced.nodes[min(few)])}, leave of each number little more than which row "
            "has the larger one, and what that is compared with changes from batch to batch.",
            "Larger batches, virtual ones included, or norms of single samples: "
            'model = equipoise.layers.convert(model, "batch", "group").model',
        )
    ]


def _rows(node: Node) -> int:
    """Rows that a batch norm in training averages over; 0 of other operations."""
    if "batch_norm" not in node.name or not node.outputs or node.outputs[0].ndim < 2:
        return 0
    training = [one for one in node.arguments if isinstance(one, bool)]
    x = node.outputs[0]
    return x.numel() // x.shape[1] if training[:1] == [True] else 0
