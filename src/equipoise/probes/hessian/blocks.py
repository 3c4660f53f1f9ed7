"""Group a model's trainable parameters: all, by layer in order of use, or as the caller does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from equipoise.instrument.modules import owner_name
from equipoise.instrument.recording.calls import Calls
from equipoise.instrument.replay import Replay


@dataclass(frozen=True, slots=True)
class ParameterBlock:
    """Some of a model's trainable parameters.

    Args:
        name: The caller's name, or the layer's.
        indices: Their indices in :attr:`Replay.parameters`.
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

    A shared parameter belongs to the module that registered it first. Layers that the loss does
    not use come last. The loss is evaluated once.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1, bias=False))
        >>> layers(Replay(model, lambda m, x: m(x).sum(), torch.ones(1, 2)))
        (ParameterBlock(name='0', indices=(0, 1)), ParameterBlock(name='2', indices=(2,)))
    """
    owned: dict[str, list[int]] = {}
    for index, name in enumerate(replay.names):
        owned.setdefault(owner_name(replay.model, name), []).append(index)
    calls = Calls(replay.model, replay.random_states)
    with replay.replayed(), calls.recording():
        replay.evaluate(graph=False)

    def first_use(owner: str) -> float:
        uses = [calls.uses.get(id(replay.parameters[index])) for index in owned[owner]]
        return min((use.time for use in uses if use is not None), default=math.inf)

    return tuple(
        ParameterBlock(owner, tuple(owned[owner])) for owner in sorted(owned, key=first_use)
    )


def named(
    replay: Replay, groups: Mapping[str, nn.Parameter | Iterable[nn.Parameter]]
) -> tuple[ParameterBlock, ...]:
    """The caller's own groups, which may overlap.

    Args:
        replay: The replay of the model.
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
