"""Names of a model's modules, and which of them multiply by weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from equipoise.instrument.compiled import uncompiled_name
from equipoise.instrument.normalisers import is_normaliser

# The name that torch.nn.utils.parametrize gives to the modules that it puts into a layer.
_PARAMETRIZATIONS = "parametrizations"


def names(model: nn.Module) -> dict[nn.Module, str]:
    """Name every module once, as before compiling, without parametrisations inside layers."""
    return {
        module: uncompiled_name(name) or type(module).__name__
        for name, module in model.named_modules()
        if _PARAMETRIZATIONS not in name.split(".")
    }


def own_parameters(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that a module holds itself, also where its class overrides parameters().

    Examples:
        >>> [tuple(p.shape) for p in own_parameters(nn.Linear(3, 2))]
        [(2, 3), (2,)]
        >>> own_parameters(nn.Sequential(nn.Linear(3, 2)))
        []
    """
    return [p for p in module._parameters.values() if p is not None]


def places(model: nn.Module) -> dict[str, nn.Module]:
    """Every module by every name under which the model holds it."""
    return dict(model.named_modules(remove_duplicate=False))


def children_first(model: nn.Module) -> list[nn.Module]:
    """Every module once, in order, each after the modules inside it, as ``model.apply`` does.

    Examples:
        >>> inner = nn.Sequential(nn.ReLU())
        >>> [type(module).__name__ for module in children_first(nn.Sequential(inner, inner))]
        ['ReLU', 'Sequential', 'Sequential']
    """
    found: dict[nn.Module, None] = {}

    def visit(module: nn.Module) -> None:
        for child in module.children():
            if child not in found:
                visit(child)
        found[module] = None

    visit(model)
    return list(found)


def in_idle_networks(model: nn.Module, used: Collection[str]) -> list[str]:
    """Parameters of the networks of which none is used, in a model that only holds networks.

    Such a model has no ``forward()`` of its own. Losses call its networks, each some of them, as
    those of an actor and of its critic do; of any other model nothing is returned.

    Args:
        model: Its children are the networks.
        used: Names of parameters.

    Examples:
        >>> agent = nn.ModuleDict({"actor": nn.Linear(2, 1), "critic": nn.Linear(3, 1)})
        >>> in_idle_networks(agent, ["actor.weight"])
        ['critic.weight', 'critic.bias']
        >>> in_idle_networks(nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1)), ["0.weight"])
        []
    """
    if type(model).forward is not nn.Module.forward:
        return []
    networks = [
        [f"{name}.{inner}" for inner, _ in child.named_parameters()]
        for name, child in model.named_children()
    ]
    return [name for inside in networks if not set(inside) & set(used) for name in inside]


def put(model: nn.Module, name: str, module: nn.Module) -> None:
    """Let the model hold another module under a name."""
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)


@contextmanager
def running(model: nn.Module) -> Iterator[list[tuple[nn.Module, str]]]:
    """Keep a list of the modules that are running inside the block, outermost first."""
    stack: list[tuple[nn.Module, str]] = []

    def entering(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, _: Any) -> None:
            stack.append((module, name))

        return hook

    def leaving(module: nn.Module, *_: Any) -> None:
        # If a hook of the user's raises, the module was never entered.
        if stack and stack[-1][0] is module:
            stack.pop()

    with ExitStack() as hooks:
        for module, name in names(model).items():
            hooks.enter_context(module.register_forward_pre_hook(entering(name)))
            hooks.enter_context(module.register_forward_hook(leaving, always_call=True))
        yield stack


def unfreeze(model: nn.Module) -> None:
    """Let every parameter take part in the graph; frozen weights would cut it."""
    for parameter in model.parameters():
        if parameter.is_floating_point() and not parameter.requires_grad:
            parameter.requires_grad_(True)


def owner_name(model: nn.Module, parameter: str) -> str:
    """Name of the layer that owns a parameter, which may be that of a parametrisation.

    Examples:
        >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
        >>> owner_name(nn.Sequential(layer), "0.parametrizations.weight.original0")
        '0'
    """
    path = parameter.split(".")[:-1]
    if _PARAMETRIZATIONS in path:
        path = path[: path.index(_PARAMETRIZATIONS)]
    return ".".join(path) or type(model).__name__


def is_parametrised(module: nn.Module) -> bool:
    """Whether a module multiplies its input by a weight matrix or kernel."""
    if isinstance(module, nn.RNNBase):
        return True
    weight = _weight(module)
    return (
        not is_normaliser(module)
        and not isinstance(module, nn.Embedding | nn.EmbeddingBag)
        and isinstance(weight, Tensor)
        and weight.ndim >= 2
    )


def without_shortcuts(model: nn.Module) -> Callable[[], None]:
    """Make PyTorch's transformer layers run the modules that they hold; returns what undoes it.

    In evaluation without gradients they call one fused kernel with the numbers of their norms,
    as if these were layer norms, and with the activation that they were built with.

    Examples:
        >>> layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        >>> undo = without_shortcuts(layer)
        >>> layer.activation_relu_or_gelu
        0
    """
    found: list[tuple[nn.Module, str, Any]] = []
    for module in model.modules():
        for kind, name, off in (
            (nn.TransformerEncoderLayer, "activation_relu_or_gelu", 0),
            (nn.TransformerEncoder, "use_nested_tensor", False),
        ):
            if isinstance(module, kind) and hasattr(module, name):
                found.append((module, name, getattr(module, name)))
                setattr(module, name, off)

    def undo() -> None:
        for module, name, before in found:
            setattr(module, name, before)

    return undo


def _weight(module: nn.Module) -> object:
    """The weight, or the largest tensor that it is computed from."""
    if parametrize.is_parametrized(module, "weight"):
        # Reading the attribute computes it, and moves spectral norm's power iteration on.
        parts = module.get_submodule("parametrizations.weight").parameters()
        return max(parts, key=lambda part: part.ndim, default=None)
    return getattr(module, "weight", None)


def unwatched(model: nn.Module) -> dict[str, int]:
    """Modules with weight matrices that no probe reads, and how many numbers these hold.

    Attention's packed projections multiply by weights of their own, without a linear layer that
    could be watched.

    Examples:
        >>> unwatched(nn.Sequential(nn.Linear(2, 2), nn.MultiheadAttention(2, 1)))
        {'1 (MultiheadAttention)': 12}
    """
    found = {}
    for module, name in names(model).items():
        if is_normaliser(module) or is_parametrised(module):
            continue
        matrices = [p for p in own_parameters(module) if p.ndim >= 2]
        if matrices and not isinstance(module, nn.Embedding | nn.EmbeddingBag):
            label = f"{name} ({type(module).__name__})"
            found[label] = sum(matrix.numel() for matrix in matrices)
    return found
