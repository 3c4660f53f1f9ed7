"""Which layers are preconditioned, and why the others are not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, cast

from torch import nn
from torch.nn.utils import parametrize

from equipoise.instrument.normalisers import kind_of
from equipoise.preconditioners.bnp.layer import WatchedLayer
from equipoise.preconditioners.bnp.maps import is_sharded, split_by_columns
from equipoise.preconditioners.bnp.moments import Geometry, Layer

# Names (with * and ?), or a function that decides by name and module.
Choice: TypeAlias = Iterable[str] | Callable[[str, nn.Module], bool]

_Named: TypeAlias = tuple[str, nn.Module]
_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A module with parameters that is left alone, and the reason."""

    name: str
    kind: str
    reason: str


def unwrapped(model: nn.Module) -> nn.Module:
    """Strip wrappers, so that names are those of the model's own checkpoint.

    Raises:
        TypeError: If it is no module.
        ValueError: If the wrapper runs copies of the layers, or flattens their weights.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}.")
    while True:
        kind = type(model).__name__
        if kind == "DataParallel":
            raise ValueError(
                "BNP cannot watch DataParallel, which runs throw-away copies of the layers. "
                "Use DistributedDataParallel."
            )
        if any(type(m).__name__ == "FullyShardedDataParallel" for m in model.modules()):
            raise ValueError(
                "BNP cannot precondition FullyShardedDataParallel, which flattens weights. "
                "Use torch.distributed.fsdp.fully_shard, which splits them by rows."
            )
        if kind == "DistributedDataParallel":
            model = cast(nn.Module, model.module)
        elif hasattr(model, "_orig_mod"):
            model = cast(nn.Module, model._orig_mod)
        else:
            return model


def select(
    model: nn.Module, *, include: Choice | None, exclude: Choice | None, exact: bool
) -> tuple[list[WatchedLayer], list[Skipped]]:
    """Split the modules that own parameters into layers to use, one per weight, and the rest.

    Raises:
        ValueError: If a name of ``include`` or ``exclude`` fits no module.
    """
    not_chosen = _not_chosen(model, include, exclude)
    inside_attention = {
        id(m) for a in model.modules() if isinstance(a, nn.MultiheadAttention) for m in a.modules()
    }
    elsewhere = _other_owners(model)
    users, rest = _owners(model)
    layers: list[WatchedLayer] = []
    skipped: list[Skipped] = []
    for together in users:
        reason = (
            _unusable_user(together, inside_attention)
            or _differing_users([m for _, m in together])
            or _shared_elsewhere(together[0][1], elsewhere)
            or next((r for n, m in together if (r := not_chosen(n, m))), None)
        )
        if reason is None:
            modules = [cast(Layer, m) for _, m in together]
            layers.append(
                WatchedLayer(together[0][0], modules, Geometry.of(modules[0], exact=exact))
            )
        else:
            skipped += [Skipped(n, type(m).__name__, reason) for n, m in together]
    for name, module in rest:
        reason = _unusable(module, inside_attention) or "it has no weight"
        skipped.append(Skipped(name, type(module).__name__, reason))
    order = {name: i for i, (name, _) in enumerate(model.named_modules())}
    return layers, sorted(skipped, key=lambda s: order[s.name])


def _owners(model: nn.Module) -> tuple[list[list[_Named]], list[_Named]]:
    """Modules that own a weight, those of one weight together, and those with other parameters."""
    users: dict[int, list[_Named]] = {}
    rest: list[_Named] = []
    for name, module in model.named_modules():
        if isinstance(module, parametrize.ParametrizationList):
            continue  # listed with the module that they parametrise
        weight = module._parameters.get("weight")
        if weight is not None:
            users.setdefault(id(weight), []).append((name, module))
        elif any(p is not None for p in module._parameters.values()) or _parametrised(module):
            rest.append((name, module))
    return list(users.values()), rest


# Each of the following functions returns the reason to skip a weight's modules, or None.


def _unusable_user(together: list[_Named], inside_attention: set[int]) -> str | None:
    for name, module in together:
        reason = _unusable(module, inside_attention)
        if reason is not None:
            return reason if len(together) == 1 else f"shares its weight with {name}: {reason}"
    return None


def _unusable(module: nn.Module, inside_attention: set[int]) -> str | None:
    if kind_of(module) is not None:
        return "a normaliser acts on single features"
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return "transposed convolutions need statistics of their own"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "an embedding has no features to standardise"
    if isinstance(module, nn.modules.rnn.RNNBase | nn.modules.rnn.RNNCellBase):
        return "recurrent layers do not show their inputs"
    if id(module) in inside_attention:
        return "packed attention uses its weights without calling layers"
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        return "lazy weights have no shape yet; run one batch first"
    if _parametrised(module):
        return "its weight is computed from other parameters"
    if not isinstance(module, _KINDS) or _overrides_forward(module):
        return "not a linear layer or convolution of PyTorch"
    if module.weight.is_complex():
        return "complex weights"
    if split_by_columns(module.weight):
        return "its weight is split by columns over processes"
    if is_sharded(module.weight) and getattr(module, "groups", 1) > 1:
        return "its groups may be split over processes"
    return None


def _differing_users(modules: list[nn.Module]) -> str | None:
    """A shared weight needs one shape of features and one bias."""
    first, *others = modules
    for other in others:
        if type(other) is not type(first) or _shape(other) != _shape(first):
            return "shares its weight with a layer of another shape"
        if other._parameters.get("bias") is not first._parameters.get("bias"):
            return "shares its weight but not its bias"
    return None


def _shared_elsewhere(module: nn.Module, elsewhere: dict[int, set[str]]) -> str | None:
    for parameter in (module._parameters["weight"], module._parameters.get("bias")):
        owners = sorted(elsewhere.get(id(parameter), ()))
        if owners:
            return f"shares a parameter with {owners[0]}"
    return None


def _not_chosen(
    model: nn.Module, include: Choice | None, exclude: Choice | None
) -> Callable[[str, nn.Module], str | None]:
    wanted = _matcher(model, include, "include", default=True)
    unwanted = _matcher(model, exclude, "exclude", default=False)

    def reason(name: str, module: nn.Module) -> str | None:
        if unwanted(name, module):
            return "excluded"
        return None if wanted(name, module) else "not included"

    return reason


def _other_owners(model: nn.Module) -> dict[int, set[str]]:
    """Owners of parameters that are neither weights nor a bias always beside the same weight."""
    found: dict[int, set[str]] = {}
    beside: dict[int, int] = {}
    for prefix, module in model.named_modules():
        weight = id(module._parameters.get("weight"))
        for name, parameter in module._parameters.items():
            if parameter is None or name == "weight":
                continue
            if name != "bias" or beside.setdefault(id(parameter), weight) != weight:
                found.setdefault(id(parameter), set()).add(f"{prefix}.{name}".lstrip("."))
    return found


def _shape(module: nn.Module) -> tuple[Any, ...]:
    return getattr(module, "kernel_size", ()), getattr(module, "groups", 1)


def _parametrised(module: nn.Module) -> bool:
    old_style = "weight" not in module._parameters and isinstance(module, _KINDS)
    return bool(parametrize.is_parametrized(module)) or old_style


def _overrides_forward(module: nn.Module) -> bool:
    return not any(type(module).forward is kind.forward for kind in _KINDS)


def _matcher(
    model: nn.Module, choice: Choice | None, option: str, *, default: bool
) -> Callable[[str, nn.Module], bool]:
    if choice is None:
        return lambda name, module: default
    if callable(choice):
        return choice
    if isinstance(choice, str):
        raise TypeError(
            f"{option} must be several names, got the one name {choice!r}. Use a list."
        )
    patterns = [*choice] if isinstance(choice, Iterable) else [choice]
    if not isinstance(choice, Iterable) or not all(isinstance(p, str) for p in patterns):
        raise TypeError(
            f"{option} must be names of modules, such as ['head'], or a function of name and "
            f"module, got {choice!r:.40}."
        )
    names = [name for name, _ in model.named_modules()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            known = ", ".join(repr(name) for name in [n for n in names if n][:8])
            raise ValueError(
                f"{option} names {pattern!r}, which fits no module. There are {known}."
            )
    return lambda name, module: any(fnmatchcase(name, pattern) for pattern in patterns)
