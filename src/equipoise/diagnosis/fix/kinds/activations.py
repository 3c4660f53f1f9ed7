"""Another activation in the place of every activation before weights.

Modules are exchanged for modules, and what forward() calls as a function for another function.
What stays, because it is a gate or makes the output, is listed in the edit.
"""

from __future__ import annotations

import copy
from collections.abc import Collection

import torch
from torch import Tensor, nn

from equipoise.diagnosis.fix.kinds.kind import Undo, UnsuitableRemedyError
from equipoise.diagnosis.fix.remedy import Edit, Remedy
from equipoise.instrument.activation_calls import (
    AMBIGUOUS,
    CALLED,
    ActivationCalls,
    calls_functions,
)
from equipoise.instrument.modules import names, places, put
from equipoise.instrument.recording.graph import Graph
from equipoise.theory.propagation.what_if.activations import (
    exchangeable,
    is_activation,
    with_activation,
)

# By the name that theory knows them by; each is made without arguments.
CLASSES: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "mish": nn.Mish,
    "softplus": nn.Softplus,
}
# What else is exchanged.
_OTHERS = (nn.ReLU6, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.CELU, nn.SELU, nn.PReLU)
_MODULES = (*CLASSES.values(), *_OTHERS)


def code(edit: Edit) -> tuple[str, ...]:
    """The line that exchanges them."""
    return (f'model = equipoise.apply(model, "{Remedy((edit,)).name}").model',)


def change_model(model: nn.Module, edit: Edit) -> Undo:
    """Exchange activation modules, and the functions that other modules call."""
    if edit.choice not in CLASSES:
        raise ValueError(f"activation is one of {', '.join(CLASSES)}, got {edit.choice!r}.")
    wanted, named = CLASSES[edit.choice], names(model)
    _check_places(edit, named.values())
    exchanged = _activation_modules(model)
    found = {
        name: module
        for name, module in places(model).items()
        if module in exchanged and type(module) is not wanted and named[module] not in edit.kept
    }
    if "" in found or not (found or any(map(calls_functions, model.modules()))):
        raise UnsuitableRemedyError(
            f"the model has no activation that could become {edit.choice}: neither a module of "
            "PyTorch's inside, nor a module of its own that may call one as a function."
        )
    new: dict[nn.Module, nn.Module] = {}
    kept = {*edit.kept, *(named[module] for module in exchanged)}
    hooks = ActivationCalls(edit.choice).attach(model, kept, edit.also, certain=bool(found))
    for name, module in found.items():
        made = new.setdefault(module, wanted().train(module.training))
        put(model, name, made)

    def undo() -> None:
        for hook in hooks:
            hook.remove()
        for name, module in found.items():
            put(model, name, module)

    return undo


def change_graph(graph: Graph, edit: Edit, model: nn.Module) -> Graph:
    """Exchange activations in the trace."""
    among = {
        number
        for number, place in _placed(graph, model).items()
        if place not in edit.kept and (not _is_ambiguous(place) or place in edit.also)
    }
    return with_activation(graph, edit.choice, among)


def activations_of(graph: Graph, model: nn.Module) -> tuple[set[str], Edit]:
    """The activations that could be others, as operations, and an edit that names no choice yet.

    A place that also has a gate or an output stays.
    """
    within = {n for one in exchangeable(graph) for n in (one.number, *one.inner)}
    placed = _placed(graph, model)
    kept = {place for number, place in placed.items() if number not in within}
    exchanged = {number: place for number, place in placed.items() if place not in kept}
    edit = Edit(
        "activation",
        kept=tuple(sorted(place for place in kept if not _is_ambiguous(place))),
        also=tuple(sorted({place for place in exchanged.values() if _is_ambiguous(place)})),
    )
    return {graph.nodes[number].name for number in exchanged}, edit


def _placed(graph: Graph, model: nn.Module) -> dict[int, str]:
    """Where activations are called that :func:`change_model` can exchange, by their numbers."""
    owners = {name: module for module, name in names(model).items()}
    whole = _activation_modules(model)
    formulas = {n for one in exchangeable(graph) if one.inner for n in (one.number, *one.inner)}
    placed = {}
    for node in graph.nodes:
        owner = owners.get(node.module)
        if owner is None or not (is_activation(node) or node.number in formulas):
            continue
        if owner in whole:
            placed[node.number] = node.module
        elif calls_functions(owner) and node.name in CALLED and node.number not in formulas:
            placed[node.number] = f"{node.module}:{node.name}"
    return placed


def _is_ambiguous(place: str) -> bool:
    return place.partition(":")[2] in AMBIGUOUS


def _activation_modules(model: nn.Module) -> set[nn.Module]:
    """Modules that are one activation: PyTorch's, and those of the model's own."""
    return {
        module
        for module in model.modules()
        if isinstance(module, _MODULES) or (calls_functions(module) and _is_elementwise(module))
    }


def _is_elementwise(module: nn.Module) -> bool:
    """Whether a module without state is a function of single elements that bends; tried out."""
    if any(True for _ in module.children()) or module.state_dict():
        return False
    rows = torch.linspace(-3.0, 3.0, 24).reshape(2, 3, 4)
    turned = rows.flatten().flip(0).reshape(4, 3, 2)
    with torch.no_grad(), torch.random.fork_rng(devices=()):
        try:
            copied = copy.deepcopy(module)
            results = copied(rows), copied(turned), copied(rows)
        except Exception:  # whatever it takes, it is no such function
            return False
    if any(
        not isinstance(y, Tensor) or y.shape != x.shape
        for y, x in zip(results, (rows, turned, rows), strict=True)
    ):
        return False
    values = results[0].flatten()
    # Vectors and what is left over beside them may round differently.
    turned_back = results[1].flatten().flip(0)
    alike = torch.allclose(values, turned_back, rtol=1e-5, atol=1e-6) and torch.equal(
        results[0], results[2]
    )
    return alike and not torch.allclose(values.diff().diff(), torch.zeros(22), atol=1e-5)


def _check_places(edit: Edit, known: Collection[str]) -> None:
    """Refuse names of modules that the model does not have."""
    for place in (*edit.kept, *edit.also):
        name, _, call = place.partition(":")
        if name not in known or (call and call not in CALLED):
            raise ValueError(
                f"no activation stands at {place!r}: name a module of the model, or one with what "
                f"it calls, such as 'block:sigmoid' (one of {', '.join(sorted(CALLED))})."
            )
