"""Another activation in the place of every activation module before weights."""

from __future__ import annotations

from torch import nn

from equipoise.diagnosis.fix.kinds.kind import Undo, UnsuitableRemedyError
from equipoise.diagnosis.fix.remedy import Edit
from equipoise.instrument.modules import places, put
from equipoise.instrument.recording.graph import Graph
from equipoise.theory.propagation.what_if.answer import Changes

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


def words(edit: Edit) -> str:
    """Name the activation."""
    return f"{edit.choice} instead of every activation"


def code(edit: Edit) -> tuple[str, ...]:
    """The line that exchanges them."""
    return (f'model = equipoise.apply(model, "activation={edit.choice}").model',)


def change_model(model: nn.Module, edit: Edit) -> Undo:
    """Exchange activation modules."""
    if edit.choice not in CLASSES:
        raise ValueError(f"activation is one of {', '.join(CLASSES)}, got {edit.choice!r}.")
    wanted = CLASSES[edit.choice]
    found = {
        name: module
        for name, module in places(model).items()
        if type(module) in (*CLASSES.values(), *_OTHERS) and type(module) is not wanted
    }
    if not found or "" in found:
        raise UnsuitableRemedyError(
            f"the model has no activation module that could become {edit.choice}; functions such "
            "as torch.relu, called in forward(), have to be changed by hand."
        )
    new: dict[nn.Module, nn.Module] = {}
    for name, module in found.items():
        made = new.setdefault(module, wanted().train(module.training))
        put(model, name, made)

    def undo() -> None:
        for name, module in found.items():
            put(model, name, module)

    return undo


def change_graph(graph: Graph, edit: Edit, model: nn.Module) -> Graph:
    """Exchange activations in the trace."""
    return Changes(activation=edit.choice).made_to(graph)
