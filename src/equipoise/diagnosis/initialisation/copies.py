"""Blocks and units that start as copies of each other, and whether they stay it.

Blocks one after the other have different inputs and different gradients, and part at the first
step. Side by side on one input, as heads or experts, they may get equal gradients and stay copies.
Units of a layer with one number for all weights do, unless biases, dropout or later weights
differ.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from equipoise.diagnosis.initialisation.record import Initialisation, InitialisationFault
from equipoise.diagnosis.sources import ARRANGING, PRODUCTS
from equipoise.instrument import LossFunction, untouched
from equipoise.instrument.compiled import uncompiled_name
from equipoise.instrument.forward import recording_gradients
from equipoise.instrument.recording.graph import Given, Graph, Made

# They hand the output of each layer of a list to the next one.
_STACKS = (nn.TransformerEncoder, nn.TransformerDecoder)
# Numbers that are compared; that all are equal was seen before.
_FEW = 8
# Part of the largest gradient by which those of equal units may differ.
_ROUNDING = 1e-3


def in_sequence(fault: InitialisationFault) -> InitialisationFault:
    """The same copies, of which it is known that they run one after the other."""
    detail = (
        f"{fault.detail} They run one after the other, so that their inputs and gradients differ; "
        "nn.TransformerEncoder and nn.TransformerDecoder copy their layer like this."
    )
    return replace(fault, kind="copied in sequence", detail=detail)


def run_in_sequence(groups: Iterable[Sequence[str]], model: nn.Module) -> bool:
    """Whether the containers of copied parameters say that they run one after the other.

    Args:
        groups: Names of parameters with the same values.
        model: That has them.
    """
    modules = dict(model.named_modules())

    def are_ordered(one: str, other: str) -> bool:
        pairs = zip(one.split("."), other.split("."), strict=True)
        at = next(place for place, (mine, its) in enumerate(pairs) if mine != its)
        inside = one.split(".")[:at]
        parent = modules.get(".".join(inside[:-1]))
        return isinstance(modules.get(".".join(inside)), nn.Sequential) or (
            isinstance(parent, _STACKS) and inside[-1:] == ["layers"]
        )

    return all(are_ordered(*pair) for names in groups for pair in combinations(names, 2))


def told_by_order(found: Initialisation, graph: Graph) -> Initialisation:
    """Tell copies that a pass has run one after the other.

    Args:
        found: A record of initial weights.
        graph: A traced pass.
    """
    copied = {
        name for fault in found.faults if fault.kind == "copied" for name in fault.parameters
    }
    if not copied:
        return found
    before = _before(graph, copied)
    parameters = graph.parameters
    alike = _alike({name: parameters[name] for name in before})

    def is_ordered(fault: InitialisationFault) -> bool:
        groups = [names for names in alike if names[0] in fault.parameters]
        return bool(groups) and all(
            one in before[other] or other in before[one]
            for names in groups
            for one, other in combinations(names, 2)
        )

    faults = tuple(
        in_sequence(fault) if fault.kind == "copied" and is_ordered(fault) else fault
        for fault in found.faults
    )
    return replace(found, faults=faults)


def told_by_gradients(
    found: Initialisation, model: nn.Module, loss_fn: LossFunction, batch: Any, graph: Graph
) -> Initialisation:
    """Tell constant layers whose units have different gradients from those that stay alike.

    Of a last layer units may start alike where their gradients differ, as where DLinear starts at
    the average of the past: no layer takes them, and each learns its own target.

    Args:
        found: A record of initial weights.
        model: That has them; left bit for bit as it is.
        loss_fn: Its loss on a batch.
        batch: On this batch.
        graph: A pass on it.
    """
    faults: list[InitialisationFault] = []
    for fault in found.faults:
        parting = _parting(fault.parameters, model, loss_fn, batch) if _is_constant(fault) else ()
        kept = tuple(name for name in fault.parameters if name not in parting)
        if kept:
            faults.append(replace(fault, parameters=kept))
        parting = tuple(name for name in parting if _goes_into_layers(name, graph))
        if parting:
            detail = (
                "Their units start alike, but not with equal gradients, as where dropout, biases "
                "or later weights differ: they part while the model trains, which costs time."
            )
            faults.append(InitialisationFault("constant at first", parting, fault.of, detail))
    return replace(found, faults=tuple(faults))


def _is_constant(fault: InitialisationFault) -> bool:
    return fault.kind == "constant"


def _parting(
    names: Sequence[str], model: nn.Module, loss_fn: LossFunction, batch: Any
) -> tuple[str, ...]:
    """Which parameters have gradients that differ from unit to unit."""
    with untouched(model), recording_gradients():
        parameters = {uncompiled_name(n): p for n, p in model.named_parameters()}
        trained = [name for name in names if parameters[name].requires_grad]
        loss = loss_fn(model, batch)
        if not trained or not loss.requires_grad:
            return ()
        weights = [parameters[name] for name in trained]
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    modules = {uncompiled_name(name): module for name, module in model.named_modules()}
    return tuple(
        name
        for name, gradient in zip(trained, gradients, strict=True)
        if gradient is not None
        and gradient.layout is torch.strided
        and _differs(gradient, axis=_axis_of_units(modules[name.rpartition(".")[0]]))
    )


def _goes_into_layers(name: str, graph: Graph) -> bool:
    """Whether other layers take what a layer with these weights gives."""
    weights, outputs = set[int](), set[int]()
    for node in graph.nodes:
        made = {source.node for source in node.inputs if isinstance(source, Made)}
        if made & outputs:
            if node.name in PRODUCTS:
                return True
            outputs.add(node.number)
        elif made & weights or name in {x.name for x in node.inputs if isinstance(x, Given)}:
            (weights if node.name in ARRANGING else outputs).add(node.number)
    return False


def _axis_of_units(module: nn.Module) -> int:
    """The axis of a weight along which a layer's outputs are."""
    return 1 if isinstance(module, _ConvTransposeNd | nn.Embedding | nn.EmbeddingBag) else 0


def _differs(gradient: Tensor, axis: int) -> bool:
    """Whether units have different gradients, by more than rounding."""
    first = gradient.narrow(axis, 0, 1)
    return bool((gradient - first).abs().max() > _ROUNDING * gradient.abs().max())


def _alike(parameters: Mapping[str, Tensor]) -> list[list[str]]:
    """Names at one place of repeated blocks, with the same values."""
    found: dict[object, list[str]] = defaultdict(list)
    for name, value in parameters.items():
        few = value.detach().reshape(-1)[:_FEW].tolist()
        found[re.sub(r"\d+", "*", name), tuple(value.shape), *few].append(name)
    return [names for names in found.values() if len(names) > 1]


def _before(graph: Graph, names: Collection[str]) -> Mapping[str, set[str]]:
    """Of each of these parameters that runs, those that its first input was made by."""
    made_by: list[set[str]] = []  # of each operation
    are_data: list[bool] = []
    found: dict[str, set[str]] = {}
    for node in graph.nodes:
        weights, data, any_data = set[str](), set[str](), not node.inputs
        for source in node.inputs:
            if isinstance(source, Made):
                (data if are_data[source.node] else weights).update(made_by[source.node])
                any_data |= are_data[source.node]
            elif isinstance(source, Given) and source.name in names:
                weights.add(source.name)
            elif source.kind == "data":
                any_data = True
        if any_data:
            for name in weights - found.keys():
                found[name] = data
        made_by.append(weights | data)
        are_data.append(any_data)
    return found
