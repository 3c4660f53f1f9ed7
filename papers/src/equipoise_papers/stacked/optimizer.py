"""One optimiser step for K models, each at its own learning rate."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RAdam, RMSprop

from equipoise_papers.stacked.stack import Stack

MakeOptimizer = Callable[[Any, float], Optimizer]

# Optimisers that move every weight by the rate times a function of its own gradients.
_PROPORTIONAL = (SGD, RMSprop, Adam, NAdam, RAdam, Adagrad)
# Besides, it takes the rate times the decay off each weight, whatever the gradients are.
_DECOUPLED = (AdamW,)


class Stepper(Protocol):
    """Takes the optimiser's steps for a stack."""

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Take a step with gradients in the order of ``Stack.trained``."""

    def keep(self, rows: Sequence[int]) -> None:
        """Drop the states of all other rows, as the stack did."""


def stepper(make: MakeOptimizer, rates: Sequence[float], stack: Stack) -> Stepper:
    """Make the optimiser of a stack whose models are attached.

    Optimisers that move each weight by the rate times a function of its gradients take one step
    for all models. Others (weight decay reads the weights, a step hook may read anything) step
    model by model.

    Args:
        make: Called with the parameters and the rate of every model, as for a model alone.
        rates: One per model.
        stack: Of all models.

    Raises:
        ValueError: If an optimiser needs a closure.
    """
    parameters = [stack.parameters_of(member) for member in range(len(rates))]
    optimizers = [make(iter(own), rate) for own, rate in zip(parameters, rates, strict=True)]
    check_closures(optimizers)
    if _proportional(optimizers, parameters):
        return _AllAtOnce(optimizers, stack)
    return _MemberByMember(optimizers, stack)


def check_closures(optimizers: Sequence[Optimizer]) -> None:
    """Refuse optimisers whose step evaluates the loss again.

    Raises:
        ValueError: Naming the class.
    """
    for optimizer in optimizers:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ValueError(
                f"train_many cannot use {type(optimizer).__name__}, whose step needs a closure "
                "that computes the loss again. Train each model in a loop of your own, or take "
                "an optimiser that steps by one gradient."
            )


class _MemberByMember:
    """One optimiser per model, on the model's own parameters, which are views of the stack."""

    def __init__(self, optimizers: Sequence[Optimizer], stack: Stack) -> None:
        self._optimizers, self._stack = optimizers, stack

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        for row, member in enumerate(self._stack.members):
            trained = _trained(self._stack.parameters_of(member))
            for parameter, gradient in zip(trained, gradients, strict=True):
                parameter.grad = None if gradient is None else gradient[row]
            self._optimizers[member].step()

    def keep(self, rows: Sequence[int]) -> None:
        """Nothing to do: the parameters of the models that stay are views of the new stack."""


class _AllAtOnce:
    r"""One optimiser at rate 1 for all models, on shadow parameters s that are 0 before its step.

    After it they hold the step, which each model takes at its own rate:

    .. math:: p_k \leftarrow (1 - \eta_k w)\,p_k + \eta_k s_k, \quad s \leftarrow 0

    The decay w of AdamW, which does not depend on gradients, acts on the weights themselves.
    """

    def __init__(self, optimizers: Sequence[Optimizer], stack: Stack) -> None:
        self._stack = stack
        self._shadows = [torch.zeros_like(p, requires_grad=True) for p in stack.trained]
        self._optimizer = _at_rate_one(optimizers[0], self._shadows)
        decay = self._optimizer.param_groups[0]["weight_decay"]
        self._optimizer.param_groups[0]["weight_decay"] = 0.0
        rates = [float(optimizer.param_groups[0]["lr"]) for optimizer in optimizers]
        self._rates = [
            torch.tensor(rates, dtype=p.dtype, device=p.device).reshape(-1, *(1,) * (p.ndim - 1))
            for p in stack.trained
        ]
        self._kept = [1 - decay * rate for rate in self._rates] if decay else None

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None]) -> None:
        for shadow, gradient in zip(self._shadows, gradients, strict=True):
            shadow.grad = gradient
        self._optimizer.step()
        if self._kept:
            for p, gradient, kept in zip(self._stack.trained, gradients, self._kept, strict=True):
                if gradient is not None:
                    p.mul_(kept)
        for p, shadow, rate in zip(self._stack.trained, self._shadows, self._rates, strict=True):
            p.addcmul_(shadow, rate)
            shadow.zero_()

    @torch.no_grad()
    def keep(self, rows: Sequence[int]) -> None:
        for shadow in self._shadows:
            state = self._optimizer.state[shadow]
            for name, value in state.items():
                # Counts of steps are the same for all models, and have no rows.
                if isinstance(value, Tensor) and value.ndim:
                    state[name] = value[rows]
            shadow.grad = None
            shadow.data = shadow.data[rows]
        self._rates = [rate[rows] for rate in self._rates]
        self._kept = self._kept and [kept[rows] for kept in self._kept]


def _proportional(
    optimizers: Sequence[Optimizer], model_parameters: Sequence[Sequence[Tensor]]
) -> bool:
    """Whether all optimisers move all weights of their model in the same way, but for the rate."""
    if not all(map(_steps_by_gradients_alone, optimizers)):
        return False
    groups = [optimizer.param_groups[0] for optimizer in optimizers]
    first = _options(groups[0])
    return (
        all(type(optimizer) is type(optimizers[0]) for optimizer in optimizers)
        and all(_options(group) == first for group in groups)
        and (first["weight_decay"] == 0 or type(optimizers[0]) in _DECOUPLED)
        and all(
            {id(p) for p in _trained(group["params"])} == {id(p) for p in _trained(parameters)}
            for group, parameters in zip(groups, model_parameters, strict=True)
        )
    )


def _steps_by_gradients_alone(optimizer: Optimizer) -> bool:
    """Whether it is of a known class, has one group, and no hook or wrapper acts on its steps."""
    return (
        type(optimizer) in (*_PROPORTIONAL, *_DECOUPLED)
        and len(optimizer.param_groups) == 1
        and not optimizer._optimizer_step_pre_hooks
        and not optimizer._optimizer_step_post_hooks
        # Schedulers, for example, wrap it.
        and "step" not in vars(optimizer)
    )


def _at_rate_one(like: Optimizer, parameters: Sequence[Tensor]) -> Optimizer:
    """An optimiser with the same options; the user's function could choose others at rate 1."""
    make: Callable[..., Optimizer] = type(like)
    options = _options(like.param_groups[0])
    return make([{**options, "params": list(parameters), "lr": 1.0}])


def _trained(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [parameter for parameter in parameters if parameter.requires_grad]


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in ("params", "lr")}
