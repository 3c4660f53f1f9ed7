"""Weight decay of preconditioned parameters: out of the optimizer, decoupled.

Inside the optimizer a decay becomes part of the step, which is then mapped by P; and P mixes it
into the bias. So for the time of one step the optimizer sees a decay of 0 for these parameters,
and afterwards they shrink by 1 − lr · decay. Between steps the parameter groups are the user's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


@dataclass(slots=True)
class TakenOut:
    """How to put the parameter groups back, and by how much each parameter shrinks.

    Args:
        shrink: lr · decay by the id of the parameter.
    """

    groups: list[tuple[dict[str, Any], Any, list[Tensor]]] = field(default_factory=list)
    added: int = 0
    shrink: dict[int, float | Tensor] = field(default_factory=dict)

    def restore(self, optimizer: Optimizer) -> None:
        """Make the groups the user's again."""
        if self.added:
            del optimizer.param_groups[-self.added :]
        for group, decay, parameters in self.groups:
            group["weight_decay"], group["params"] = decay, parameters
        self.groups, self.added = [], 0


def take_out(optimizer: Optimizer, mine: set[int]) -> TakenOut:
    """Set the decay of the given parameters to 0, splitting groups that hold others as well."""
    taken = TakenOut()
    extra = []
    for group in optimizer.param_groups:
        decay = group.get("weight_decay", 0)
        if not isinstance(decay, Tensor) and not decay:
            continue
        inside = [p for p in group["params"] if id(p) in mine]
        if not inside:
            continue
        taken.shrink |= dict.fromkeys((id(p) for p in inside), group["lr"] * decay)
        outside = [p for p in group["params"] if id(p) not in mine]
        taken.groups.append((group, decay, group["params"]))
        if outside:
            extra.append({**group, "params": inside, "weight_decay": 0.0})
            group["params"] = outside
        else:
            group["weight_decay"] = 0.0
    optimizer.param_groups.extend(extra)
    taken.added = len(extra)
    return taken
