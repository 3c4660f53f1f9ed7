"""Group a model's trainable parameters: all, by layer in order of use, or as the caller says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from equipoise.instrument.replay import Replay

# What torch.nn.utils.parametrize calls the modules that it puts into a layer.
_PARAMETRIZATIONS = "parametrizations"


@dataclass(frozen=True, slots=True)
class ParameterBlock:
    """Some of a model's trainable parameters.

    Args:
        name: What the caller or the model calls them.
        indices: Their places among :attr:`Replay.parameters`.
    """

    name: str
    indices: tuple[int, ...]


def whole(replay: Replay) -> ParameterBlock:
    """All trainable parameters.

    Examples:
        >>> import torch
        >>> whole(Replay(nn.Linear(2, 1), lambda m, x: m(x).sum(), torch.ones(1, 2)))
        ParameterBlock(name='whole', indices=(0, 1))
    """
    return ParameterBlock("whole", tuple(range(len(replay.parameters))))


def layers(replay: Replay) -> tuple[ParameterBlock, ...]:
    """One block per module that owns parameters, in the order in which the loss uses them.

    A shared parameter belongs to the module that has it first. What the loss does not use comes
    last. The loss is evaluated once.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1, bias=False))
        >>> layers(Replay(model, lambda m, x: m(x).sum(), torch.ones(1, 2)))
        (ParameterBlock(name='0', indices=(0, 1)), ParameterBlock(name='2', indices=(2,)))
    """
    owned: dict[str, list[int]] = {}
    for index, name in enumerate(replay.names):
        owned.setdefault(_owner(replay.model, name), []).append(index)
    with _UseOrder(replay.parameters) as uses:
        replay.loss(graph=False)
    never = len(uses.order)
    first = {
        owner: min(uses.order.get(id(replay.parameters[i]), never) for i in indices)
        for owner, indices in owned.items()
    }
    return tuple(
        ParameterBlock(owner, tuple(owned[owner]))
        for owner in sorted(owned, key=first.__getitem__)
    )


def named(
    replay: Replay, groups: Mapping[str, nn.Parameter | Iterable[nn.Parameter]]
) -> tuple[ParameterBlock, ...]:
    """The caller's own groups, which may overlap.

    Args:
        replay: Whose parameters they are.
        groups: Parameters by name, one or several each.

    Raises:
        ValueError: If a group is empty, or holds something else than the model's trainable
            parameters.
    """
    return tuple(
        ParameterBlock(name, _indices(replay, name, group)) for name, group in groups.items()
    )


def _indices(
    replay: Replay, name: str, group: nn.Parameter | Iterable[nn.Parameter]
) -> tuple[int, ...]:
    places = {id(parameter): index for index, parameter in enumerate(replay.parameters)}
    members = [group] if isinstance(group, Tensor) else list(group)
    found = {places.get(id(member)) for member in members}
    if None in found or not found:
        what = "no parameter" if not members else "something else"
        raise ValueError(
            f"block {name!r} needs trainable parameters of the model, such as layer.parameters(), "
            f"and holds {what}."
        )
    return tuple(sorted(index for index in found if index is not None))


def _owner(model: nn.Module, name: str) -> str:
    """Name of the layer that a parameter belongs to."""
    path = name.split(".")[:-1]
    if _PARAMETRIZATIONS in path:
        path = path[: path.index(_PARAMETRIZATIONS)]
    return ".".join(path) or type(model).__name__


class _UseOrder(TorchFunctionMode):
    """Notes the order in which torch functions meet parameters for the first time.

    Hooks on modules would miss those that are never called, such as the output projection inside
    attention or a list of parameters.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__()
        self.order: dict[int, int] = {}
        self._watched = {id(parameter) for parameter in parameters}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") != "__get__":  # reading an attribute is no use
            for tensor in _tensors((*args, *kwargs.values())):
                if id(tensor) in self._watched:
                    self.order.setdefault(id(tensor), len(self.order))
        return func(*args, **kwargs)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)
