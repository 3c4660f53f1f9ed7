"""Another activation in the place of every activation before weights.

Modules are exchanged for modules, and what forward() calls as a function for another function.
What stays, because it is a gate or makes the output, is listed in the edit.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from equipoise.diagnosis.fix.kinds.kind import Undo, UnsuitableRemedyError
from equipoise.diagnosis.fix.remedy import Edit, Remedy
from equipoise.instrument.activation_calls import (
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


def words(edit: Edit) -> str:
    """Name the activation."""
    rest = " but gates and outputs" if edit.kept else ""
    return f"{edit.choice} instead of every activation{rest}"


def code(edit: Edit) -> tuple[str, ...]:
    """The line that exchanges them."""
    return (f'model = equipoise.apply(model, "{Remedy((edit,)).name}").model',)


def change_model(model: nn.Module, edit: Edit) -> Undo:
    """Exchange activation modules, and the functions that other modules call."""
    if edit.choice not in CLASSES:
        raise ValueError(f"activation is one of {', '.join(CLASSES)}, got {edit.choice!r}.")
    wanted = CLASSES[edit.choice]
    named = names(model)
    _check_kept(edit, named.values())
    found = {
        name: module
        for name, module in places(model).items()
        if type(module) in _MODULES
        and type(module) is not wanted
        and named.get(module) not in edit.kept
    }
    if "" in found or not (found or any(map(calls_functions, model.modules()))):
        raise UnsuitableRemedyError(
            f"the model has no activation that could become {edit.choice}: neither a module of "
            "PyTorch's inside, nor a module of its own that may call one as a function."
        )
    new: dict[nn.Module, nn.Module] = {}
    hooks = ActivationCalls(edit.choice).attach(model, edit.kept, certain=bool(found))
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
    placed = _placed(graph, model)
    among = {number for number, place in placed.items() if place not in edit.kept}
    return with_activation(graph, edit.choice, among)


def activations_of(graph: Graph, model: nn.Module) -> tuple[set[str], tuple[str, ...]]:
    """The activations that could be others, as operations, and the places of those that stay.

    A place that has both stays.
    """
    hidden, placed = exchangeable(graph), _placed(graph, model)
    kept = {place for number, place in placed.items() if number not in hidden}
    found = {graph.nodes[number].name for number, place in placed.items() if place not in kept}
    return found, tuple(sorted(kept))


def _placed(graph: Graph, model: nn.Module) -> dict[int, str]:
    """Where activations are called that :func:`change_model` can exchange, by their numbers."""
    owners = {name: module for module, name in names(model).items()}
    placed = {}
    for node in filter(is_activation, graph.nodes):
        owner = owners.get(node.module)
        if isinstance(owner, _MODULES):
            placed[node.number] = node.module
        elif owner is not None and calls_functions(owner) and node.name in CALLED:
            placed[node.number] = f"{node.module}:{node.name}"
    return placed


def _check_kept(edit: Edit, known: Collection[str]) -> None:
    """Refuse names of modules that the model does not have."""
    for place in edit.kept:
        name, _, call = place.partition(":")
        if name not in known or (call and call not in CALLED):
            raise ValueError(
                f"no activation stands at {place!r}: name a module of the model, or one with what "
                f"it calls, such as 'block:sigmoid' (one of {', '.join(sorted(CALLED))})."
            )
