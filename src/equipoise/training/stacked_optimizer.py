"""One optimiser step for K models, each at its own learning rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, NAdam, Optimizer, RAdam, RMSprop

from equipoise.training.stacked_state import Stack

MakeOptimizer = Callable[[Any, float], Optimizer]

# They move every number by the rate times something that depends on its own gradients alone.
_PROPORTIONAL = (SGD, RMSprop, Adam, NAdam, RAdam, Adagrad)


class Stepper(Protocol):
    """Moves the weights of a stack."""

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Step by gradients in the order of ``Stack.trained``."""

    def keep(self, rows: Sequence[int]) -> None:
        """Follow the stack, which has kept only these rows."""


def stepper(make: MakeOptimizer, rates: Sequence[float], stack: Stack) -> Stepper:
    """The optimiser of a stack whose models are attached.

    Optimisers that move each number by the rate times a function of its gradients take one step
    for all members. Others (weight decay reads the weights, L-BFGS mixes numbers) step member by
    member.

    Args:
        make: Called with the parameters and the rate of every member.
        rates: One per member.
        stack: Of all members.
    """
    optimizers = [make(stack.trained_of(member), rate) for member, rate in enumerate(rates)]
    if _proportional(optimizers, stack):
        factors = [float(optimizer.param_groups[0]["lr"]) for optimizer in optimizers]
        return _AllAtOnce(make, factors, stack)
    return _MemberByMember(optimizers, stack)


class _MemberByMember:
    """One optimiser per member, on the member's own window."""

    def __init__(self, optimizers: Sequence[Optimizer], stack: Stack) -> None:
        self._optimizers, self._stack = optimizers, stack

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        for row, member in enumerate(self._stack.members):
            parameters = self._stack.trained_of(member)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = None if gradient is None else gradient[row]
            self._optimizers[member].step()

    def keep(self, rows: Sequence[int]) -> None:
        """Nothing: each window leads to its member's weights wherever they are."""


class _AllAtOnce:
    r"""One optimiser at rate 1 on shadows that stand at 0, and so end where its step points.

    .. math:: p_k \leftarrow p_k + \eta_k s_k, \quad s \leftarrow 0
    """

    def __init__(self, make: MakeOptimizer, rates: Sequence[float], stack: Stack) -> None:
        self._stack = stack
        self._shadows = [torch.zeros_like(p, requires_grad=True) for p in stack.trained]
        self._optimizer = make(self._shadows, 1.0)
        self._optimizer.param_groups[0]["lr"] = 1.0
        self._rates = [
            torch.tensor(rates, dtype=p.dtype, device=p.device).reshape(-1, *(1,) * (p.ndim - 1))
            for p in stack.trained
        ]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None]) -> None:
        for shadow, gradient in zip(self._shadows, gradients, strict=True):
            shadow.grad = gradient
        self._optimizer.step()
        for p, shadow, rate in zip(self._stack.trained, self._shadows, self._rates, strict=True):
            p.addcmul_(shadow, rate)
            shadow.zero_()

    @torch.no_grad()
    def keep(self, rows: Sequence[int]) -> None:
        for shadow in self._shadows:
            state = self._optimizer.state[shadow]
            for name, value in state.items():
                # Counts of steps are the same for all members, and have no rows.
                if isinstance(value, Tensor) and value.ndim:
                    state[name] = value[rows]
            shadow.grad = None
            shadow.data = shadow.data[rows]
        self._rates = [rate[rows] for rate in self._rates]


def _proportional(optimizers: Sequence[Optimizer], stack: Stack) -> bool:
    """Whether all do the same to every weight, but for the rate."""
    groups = [optimizer.param_groups for optimizer in optimizers]
    options = [_options(of_one[0]) for of_one in groups]
    everything = all(
        len(of_one) == 1
        and {id(p) for p in of_one[0]["params"]} == {id(p) for p in stack.trained_of(member)}
        for member, of_one in enumerate(groups)
    )
    return (
        everything
        and all(type(optimizer) in _PROPORTIONAL for optimizer in optimizers)
        and all(of_one == options[0] for of_one in options)
        and options[0]["weight_decay"] == 0
    )


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in ("params", "lr")}
