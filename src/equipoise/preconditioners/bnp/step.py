"""One step of an optimizer under preconditioning: what is changed for it, and given back."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from equipoise.instrument.optimizer_step import optimizer_saved
from equipoise.instrument.saved_objects import SavedObjects
from equipoise.preconditioners.bnp.layer import WatchedLayer
from equipoise.preconditioners.bnp.maps import Factors, local


@dataclass(slots=True)
class Part:
    """What one optimizer holds of a layer."""

    layer: WatchedLayer
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def moves_foreign_bias(self, factors: Factors) -> bool:
        """Whether the weight's step also moves a bias that another optimizer trains."""
        return self.weight is not None and self.bias is None and factors.mean is not None


@dataclass(slots=True)
class Decay:
    """Weight decay of preconditioned parameters, which is hidden from the optimizer for a step.

    Inside the optimizer a decay becomes part of the step, which is then mapped by P; and P mixes
    it into the bias. So the optimizer sees a decay of 0 for these parameters, and they shrink by
    1 − lr · decay afterwards.

    Args:
        groups: Each changed group with its weight decay and its parameters.
        split_off: Preconditioned parameters of groups that hold others as well.
        shrink: lr · decay by the id of the parameter.
    """

    groups: list[tuple[dict[str, Any], Any, list[Tensor]]] = field(default_factory=list)
    split_off: list[dict[str, Any]] = field(default_factory=list)
    shrink: dict[int, float | Tensor] = field(default_factory=dict)

    def hide(self, optimizer: Optimizer, preconditioned: Collection[int]) -> None:
        """Set the decay of parameters with these ids to 0, splitting mixed groups."""
        for group in optimizer.param_groups:
            decay = group.get("weight_decay", 0)
            if not isinstance(decay, Tensor) and not decay:
                continue
            inside = [p for p in group["params"] if id(p) in preconditioned]
            if not inside:
                continue
            self.shrink |= dict.fromkeys((id(p) for p in inside), group["lr"] * decay)
            outside = [p for p in group["params"] if id(p) not in preconditioned]
            self.groups.append((group, decay, group["params"]))
            if outside:
                self.split_off.append({**group, "params": inside, "weight_decay": 0.0})
                group["params"] = outside
            else:
                group["weight_decay"] = 0.0
        optimizer.param_groups.extend(self.split_off)

    def give_back(self, optimizer: Optimizer) -> None:
        """Make the groups the user's again."""
        if self.split_off:
            split_off = {id(group) for group in self.split_off}
            optimizer.param_groups[:] = [
                group for group in optimizer.param_groups if id(group) not in split_off
            ]
        for group, decay, parameters in self.groups:
            group["weight_decay"], group["params"] = decay, parameters


class Value(NamedTuple):
    """A parameter or gradient before the step: a copy of its value, and the version copied."""

    tensor: Tensor
    value: Tensor
    version: int

    @classmethod
    def of(cls, tensor: Tensor) -> Value:
        """Copy a tensor's value."""
        return cls(tensor, tensor.detach().clone(), tensor._version)

    def restore(self) -> None:
        """Write the copy back, if the value has changed."""
        # Fused optimizers write without a new version.
        if self.tensor._version != self.version or not torch.equal(
            local(self.tensor), local(self.value)
        ):
            self.tensor.copy_(self.value)


@dataclass(slots=True)
class Step:
    """One step of the optimizer: what is changed for it, and what its end has to do.

    Args:
        gradients: Parameter, the user's gradient, and the one that the optimizer sees.
        parts: Whose change is to be mapped.
        before: Parameters that the step may change, by id.
        decay: What the optimizer does not see.
        raw: Parameters that are not preconditioned, with their gradients, to undo a step that
            fails.
        optimizer: Groups and state of the optimizer but for moments, too.
    """

    gradients: list[tuple[nn.Parameter, Tensor, Tensor]] = field(default_factory=list)
    parts: list[tuple[Part, Factors]] = field(default_factory=list)
    before: dict[int, Value] = field(default_factory=dict)
    decay: Decay = field(default_factory=Decay)
    raw: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)
    optimizer: SavedObjects | None = None

    def show(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Show the optimizer another gradient than the user's."""
        raw = parameter.grad
        assert raw is not None
        self.gradients.append((parameter, raw, gradient))
        parameter.grad = gradient

    def remember(self, part: Part, factors: Factors) -> None:
        """Copy the parameters that the step of a part may change."""
        changed = [part.weight, part.bias]
        if part.moves_foreign_bias(factors):
            changed.append(part.layer.bias)
        for p in changed:
            if p is not None:
                self.before[id(p)] = Value.of(p)

    def remember_the_rest(self, optimizer: Optimizer) -> None:
        """Keep what else the step may change, if that is small: it may fail halfway."""
        self.optimizer = optimizer_saved(optimizer, moments=False)
        self.raw = [
            (p, p.grad)
            for group in optimizer.param_groups
            for p in group["params"]
            if id(p) not in self.before
        ]

    def give_back(self, optimizer: Optimizer, *, only_ours: bool = False) -> None:
        """Give groups and gradients back.

        Args:
            optimizer: Whose step it is.
            only_ours: Leave gradients alone that are no longer those shown to the optimizer.
        """
        self.decay.give_back(optimizer)
        for parameter, raw, shown in self.gradients:
            if not only_ours or parameter.grad is shown:
                parameter.grad = raw

    def undo(self, optimizer: Optimizer) -> None:
        """Undo what was changed, but for moments and parameters that are not preconditioned."""
        self.give_back(optimizer)
        with torch.no_grad():
            if self.optimizer is not None:
                self.optimizer.restore()
            for saved in self.before.values():
                saved.restore()
        for parameter, gradient in self.raw:
            parameter.grad = gradient
