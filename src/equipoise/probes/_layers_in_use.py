"""Which layer a parameter belongs to, and in which order layers are applied.

Both follow the operations of one recorded pass, not the order in which modules were registered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from equipoise.instrument import modules
from equipoise.instrument.recording.calls import Calls
from equipoise.instrument.replay import Replay

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Layer:
    """A module with the parameters that no earlier layer has used.

    Args:
        module: Which.
        name: Of the module.
        kind: Its class.
        places: Where its parameters stand among those of the replay.
        begins: Time of the first operation on one of them.
    """

    module: nn.Module
    name: str
    kind: str
    places: tuple[int, ...]
    begins: int

    def of(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """What belongs to the layer, out of one entry per parameter of the replay."""
        return tuple(values[place] for place in self.places)


def layers_in_use(replay: Replay, calls: Calls, chosen: Sequence[nn.Module]) -> list[Layer]:
    """All layers in the order of their first operation.

    A layer is the innermost of the chosen modules that runs when one of its parameters is first
    used, or, where none of them runs, the innermost module of all.

    Args:
        replay: Its parameters are assigned; those that no operation uses are in no layer.
        calls: The recorded pass.
        chosen: Modules that are layers whatever is inside them.
    """
    names = modules.names(replay.model)
    owners = {id(p): m for m in names for p in m.parameters(recurse=False)}
    members: dict[nn.Module, list[int]] = {}
    for place, parameter in enumerate(replay.parameters):
        use = calls.uses.get(id(parameter))
        if use is not None:
            running = [m for m in use.modules if m in names] or [
                owners.get(id(parameter), replay.model)
            ]
            owner = next((m for m in reversed(running) if m in chosen), running[-1])
            members.setdefault(owner, []).append(place)
    found = [
        Layer(
            module=module,
            name=plain_name(names[module]) or type(module).__name__,
            kind=type(module).__name__,
            places=tuple(places),
            begins=min(calls.uses[id(replay.parameters[i])].time for i in places),
        )
        for module, places in members.items()
    ]
    return sorted(found, key=lambda layer: layer.begins)


def plain_name(name: str) -> str:
    """The name that a module or parameter had before the model was compiled."""
    return name.replace("_orig_mod.", "").removesuffix("_orig_mod")
