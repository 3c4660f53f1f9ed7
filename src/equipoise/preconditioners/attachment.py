r"""Two-sided preconditioning of any optimizer, through its step hooks.

Before the step the optimizer gets :math:`P^T g / q`, the gradients of the standardised layers;
after it, what it did to the parameters, Δ, is replaced by :math:`P \Delta / q`. An adaptive
optimizer therefore scales coordinates in which scaling makes sense. Fed :math:`PP^T g / q^2`
instead, it would cancel the scales and break the coupling of bias and weight.

Between steps nothing is changed: gradients and parameter groups are given back as found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import ASGD, LBFGS, SGD, Optimizer
from torch.utils.hooks import RemovableHandle

from equipoise.preconditioners.bank import Banks
from equipoise.preconditioners.decay import TakenOut, take_out
from equipoise.preconditioners.gradients import Map, clip, exactly, map_in_place, mapped
from equipoise.preconditioners.layer import WatchedLayer
from equipoise.preconditioners.transform import (
    Factors,
    from_standardised,
    precondition,
    to_standardised,
)


@dataclass(slots=True)
class _Part:
    """What one optimizer holds of a layer."""

    layer: WatchedLayer
    weight: nn.Parameter | None
    bias: nn.Parameter | None


@dataclass(slots=True)
class _Flight:
    """What has to be undone or finished after the step."""

    raw: list[tuple[nn.Parameter, Tensor]] = field(default_factory=list)
    parts: list[tuple[_Part, Factors]] = field(default_factory=list)
    before: dict[int, Tensor] = field(default_factory=dict)
    decay: TakenOut = field(default_factory=TakenOut)


class Attachment:
    """One optimizer under preconditioning, until removed.

    Args:
        banks: Layers and statistics.
        optimizer: Any first-order optimizer.
        leads: Whether its steps are the ones that are counted.
        run_closure: Whether a closure is run once, before the step, instead of refused.

    Raises:
        TypeError: If it is no optimizer, or one that cannot be preconditioned from outside.
        ValueError: If it trains no parameter of a preconditioned layer.
    """

    def __init__(
        self, banks: Banks, optimizer: Optimizer, *, leads: bool, run_closure: bool
    ) -> None:
        _check(optimizer)
        self.banks = banks
        self.optimizer = optimizer
        self.leads = leads
        self.run_closure = run_closure
        self._flight: _Flight | None = None
        self._parts: tuple[tuple[int, ...], list[_Part]] | None = None
        if not self.parts():
            raise ValueError(
                "The optimizer trains no weight of a layer that BNP preconditions. Attach the "
                "optimizer that was given this model's parameters."
            )
        self._handles: list[RemovableHandle] = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def remove(self) -> None:
        """Undo everything."""
        self._land()
        for handle in self._handles:
            handle.remove()

    def owned(self) -> set[int]:
        """Ids of all parameters of the optimizer."""
        return {id(p) for group in self.optimizer.param_groups for p in group["params"]}

    def parts(self) -> list[_Part]:
        """The layers, or halves of layers, that the optimizer trains."""
        sizes = tuple(len(group["params"]) for group in self.optimizer.param_groups)
        if self._parts is None or self._parts[0] != sizes:
            owned = self.owned()
            parts = [
                _Part(
                    layer,
                    layer.weight if id(layer.weight) in owned else None,
                    layer.bias if id(layer.bias) in owned else None,
                )
                for layer in self.banks.layers
            ]
            self._parts = sizes, [p for p in parts if p.weight is not None or p.bias is not None]
        return self._parts[1]

    def _before(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._land()  # an earlier step may have failed half-way
        if self.banks.clock.paused:
            return None
        replaced = self._closure(args, kwargs)
        with torch.no_grad(), exactly(self.banks.layers[0].weight.device):
            self.banks.advance(tick=self.leads)
            if self._is_linear():
                self._flight = self._gradient_only()
            else:
                self._flight = self._two_sided()
        return replaced

    def _after(self, *_: object) -> None:
        flight, self._flight = self._flight, None
        if flight is None:
            return
        flight.decay.restore(self.optimizer)
        for parameter, gradient in flight.raw:
            parameter.grad = gradient
        with torch.no_grad(), exactly(self.banks.layers[0].weight.device):
            for part, factors in flight.parts:
                self._map_step(part, factors, flight)

    def _land(self) -> None:
        """Give gradients and groups back after a step that raised."""
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.decay.restore(self.optimizer)
            for parameter, gradient in flight.raw:
                parameter.grad = gradient

    def _is_linear(self) -> bool:
        """Whether the step is −lr·g, for which both forms agree and one is cheaper.

        Weight decay is then already outside of the transformation.
        """
        return (
            type(self.optimizer) is SGD
            and self.banks.settings.max_norm is None
            and all(group["momentum"] == 0 for group in self.optimizer.param_groups)
            and all(p.weight is not None and p.bias is p.layer.bias for p in self.parts())
        )

    def _gradient_only(self) -> _Flight:
        flight = _Flight()
        for part, factors in self._active(squared=True):
            self._swap(part, factors, precondition, flight)
        return flight

    def _two_sided(self) -> _Flight:
        flight = _Flight()
        active = self._active(squared=False)
        stepped = [p for part, _ in active for p in (part.weight, part.bias) if p is not None]
        flight.before = {id(p): p.detach().clone() for p in stepped}
        flight.parts = active
        for part, factors in active:
            self._swap(part, factors, to_standardised, flight)
        flight.decay = take_out(self.optimizer, set(flight.before))
        max_norm = self.banks.settings.max_norm
        if max_norm is not None:
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            clip(parameters, max_norm, getattr(self.optimizer, "grad_scale", None))
        return flight

    def _active(self, *, squared: bool) -> list[tuple[_Part, Factors]]:
        """Parts whose layer has gradients; a frozen or unused layer is left alone."""
        factors = self.banks.factors(squared=squared)
        return [
            (part, factors[part.layer.name])
            for part in self.parts()
            if part.layer.weight.grad is not None
            and (part.bias is None or part.bias.grad is not None or part.weight is not None)
        ]

    def _swap(
        self,
        part: _Part,
        factors: Factors,
        mapping: Map,
        flight: _Flight,
    ) -> None:
        """Give the optimizer mapped gradients, and keep the raw ones."""
        bias = part.layer.bias
        raw_bias = None if bias is None else bias.grad
        if part.weight is None:
            if bias is not None and raw_bias is not None:
                flight.raw.append((bias, raw_bias))
                bias.grad = raw_bias * factors.bias.to(raw_bias.dtype)
            return
        raw = part.weight.grad
        assert raw is not None
        part.weight.grad, new_bias = mapped(mapping, raw, raw_bias, factors)
        flight.raw.append((part.weight, raw))
        if part.bias is not None and raw_bias is not None:
            flight.raw.append((part.bias, raw_bias))
            part.bias.grad = new_bias

    def _map_step(self, part: _Part, factors: Factors, flight: _Flight) -> None:
        """Replace Δ = new − old by P Δ / q, and let the decay act beside it."""
        mine = [p for p in (part.weight, part.bias) if p is not None]
        for p in mine:
            p.sub_(flight.before[id(p)])
        bias = part.bias
        if part.weight is None:
            assert bias is not None
            bias.mul_(factors.bias.to(bias.dtype))
        else:
            if bias is None and factors.mean is not None:
                # Another optimizer trains the bias; the weight's step moves it all the same.
                assert part.layer.bias is not None
                moved = torch.zeros_like(part.layer.bias)
                map_in_place(from_standardised, part.weight, moved, factors)
                part.layer.bias.add_(moved)
            else:
                map_in_place(from_standardised, part.weight, bias, factors)
        for p in mine:
            p.add_(self._shrunk(flight.before[id(p)], flight.decay.shrink.get(id(p))))

    def _shrunk(self, parameter: Tensor, by: float | Tensor | None) -> Tensor:
        if by is None:
            return parameter
        found_inf = getattr(self.optimizer, "found_inf", None)
        if found_inf is not None:  # a fused optimizer skips such a step by itself
            by = by * (1 - found_inf.reshape(()))
        return parameter.mul_(1 - by)

    def _closure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            return None
        if not self.run_closure:
            raise RuntimeError(
                "BNP cannot precondition step(closure): the closure recomputes gradients after "
                "the hook. Call backward(), then step()."
            )
        with torch.enable_grad():
            loss = closure()
        return (args[0], lambda: loss), {k: v for k, v in kwargs.items() if k != "closure"}


def _check(optimizer: Optimizer) -> None:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"attach needs a torch.optim.Optimizer, got {type(optimizer).__name__}. Give the "
            "optimizer itself, not a wrapper or scheduler."
        )
    if isinstance(optimizer, LBFGS):
        raise TypeError(
            "BNP cannot precondition LBFGS: its closure recomputes gradients inside the step. "
            "Use a first-order optimizer."
        )
    if isinstance(optimizer, ASGD):
        raise TypeError(
            "BNP cannot attach to ASGD, which averages parameters inside the step. "
            "Call BNP.step() before optimizer.step() instead."
        )
