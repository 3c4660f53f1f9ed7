r"""Two-sided preconditioning of any optimizer, through its step hooks.

Before the step the optimizer gets :math:`P^T g / q`, the gradients of the standardised layers;
after it, what it did to the parameters, Δ, is replaced by :math:`P \Delta / q`. An adaptive
optimizer therefore scales coordinates in which scaling makes sense. Fed :math:`PP^T g / q^2`
instead, it would cancel the scales and break the coupling of bias and weight.

Between steps nothing is changed: gradients and parameter groups are given back as found. PyTorch
runs no post hooks when a step raises, so ``optimizer.step`` of the instance is wrapped as well, as
learning rate schedulers do. Of a step that fails it undoes whatever was changed about gradients,
groups, counters of the state and preconditioned parameters. Moments and parameters that are not
preconditioned stay as PyTorch leaves them: copies would cost as much as half of a step. Plain SGD
has no state, and its parameters are not copied either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.optim import ASGD, LBFGS, SGD, Optimizer
from torch.utils.hooks import RemovableHandle

from equipoise.numerics.precision import without_autocast
from equipoise.preconditioners.bnp.banks import Banks
from equipoise.preconditioners.bnp.maps import (
    Factors,
    Map,
    clip_gradients,
    from_standardised,
    map_in_place,
    mapped,
    precondition,
    to_standardised,
)
from equipoise.preconditioners.bnp.step import Part, Step


class Attachment:
    """One optimizer under preconditioning, until removed.

    Args:
        banks: Layers and statistics.
        optimizer: Any first-order optimizer.
        leads: Whether its steps are the ones that are counted.
        run_closure: Whether a closure is run once, before the step, instead of refused.
        divided: Called before a step if the optimizer trains other parameters than before it.

    Attributes:
        parts: The layers, or halves of layers, that the optimizer trains.
        moves: Whether the rate of a parameter is not 0, by its id.

    Raises:
        TypeError: If it is no optimizer, or one that cannot be preconditioned from outside.
        ValueError: If it trains no parameter of a preconditioned layer.
    """

    def __init__(
        self,
        banks: Banks,
        optimizer: Optimizer,
        *,
        leads: bool,
        run_closure: bool,
        divided: Callable[[], None],
    ) -> None:
        _check(optimizer, banks)
        self.banks = banks
        self.optimizer = optimizer
        self.leads = leads
        self.run_closure = run_closure
        self._step: Step | None = None
        self._divided = divided
        self.moves: dict[int, bool] = {}
        self._other_groups: list[tuple[int, int]] = []  # of weights, and of their biases
        self._groups = _groups_of(optimizer)
        self.parts = self._divide()
        if not self.parts:
            raise ValueError(
                "The optimizer trains no weight of a layer that BNP preconditions. Attach the "
                "optimizer that was given this model's parameters."
            )
        self._handles: list[RemovableHandle] = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]
        self._step_of_instance = optimizer.__dict__.get("step")  # a scheduler's, if any
        self._guarded_step = self._guard(optimizer.step)
        optimizer.step = self._guarded_step  # type: ignore[method-assign]

    def remove(self) -> None:
        """Remove the hooks and the wrapper of ``step``."""
        self._abandon()
        for handle in self._handles:
            handle.remove()
        # A scheduler made after attach() has wrapped it once more; then it stays, without effect.
        if self.optimizer.__dict__.get("step") is self._guarded_step:
            if self._step_of_instance is None:
                del self.optimizer.step
            else:
                self.optimizer.step = self._step_of_instance  # type: ignore[method-assign]

    def _divide(self) -> list[Part]:
        """Find the parts. A bias whose rate is 0, beside a weight's that is not, is frozen.

        Where both are 0, as in the first step of a warm-up, nothing moves anyway.
        """
        groups = self.optimizer.param_groups
        place = {id(p): i for i, group in enumerate(groups) for p in group["params"]}
        self.moves = {key: not self._groups[i][1] for key, i in place.items()}
        self._other_groups = []
        parts = []
        for layer in self.banks.layers:
            weight = layer.weight if id(layer.weight) in place else None
            bias = layer.bias if id(layer.bias) in place else None
            if weight is not None and bias is not None:
                if self.moves[id(weight)] and not self.moves[id(bias)]:
                    bias = None
                elif place[id(weight)] != place[id(bias)]:
                    self._other_groups.append((place[id(weight)], place[id(bias)]))
            if weight is not None or bias is not None:
                parts.append(Part(layer, weight, bias))
        return parts

    def _follow_groups(self) -> None:
        """Find the parts anew if groups were added, or frozen by their rate, since."""
        groups = _groups_of(self.optimizer)
        if groups != self._groups:
            self._groups = groups
            self.parts = self._divide()
            self._divided()

    def _guard(self, call: Callable[..., Any]) -> MethodType:
        """``optimizer.step``, which undoes what a failing step leaves behind."""

        # Keeps the signature, which gradient scalers read, and the mark of schedulers.
        @functools.wraps(getattr(call, "__func__", call))
        def step(_: Optimizer, *args: Any, **kwargs: Any) -> Any:
            try:
                return call(*args, **kwargs)
            except BaseException:
                self._undo()
                raise

        return MethodType(step, self.optimizer)  # a method, since schedulers ask for `__func__`

    def _before(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._step is not None:
            self._abandon()
        if self.banks.schedule.paused:
            return None
        replaced = self._closure(args, kwargs) if kwargs or len(args) > 1 else None
        self._follow_groups()
        with torch.no_grad(), without_autocast(self.banks.layers[0].weight.device):
            self.banks.update()
            self._step = Step()  # known before anything is changed, so that all can be undone
            if self._is_linear():
                self._map_gradients(self._step)
            else:
                self._standardise(self._step)
        return replaced

    def _after(self, *_: object) -> None:
        step = self._step
        if step is None:
            return
        step.give_back(self.optimizer)
        if step.parts:
            with torch.no_grad(), without_autocast(self.banks.layers[0].weight.device):
                for part, factors in step.parts:
                    self._map_change(part, factors, step)
        self._step = None
        if self.leads:
            self.banks.schedule.count_step()

    def _undo(self) -> None:
        """Restore parameters, gradients, groups and state after a step that raised."""
        step, self._step = self._step, None
        if step is not None:
            step.undo(self.optimizer)

    def _abandon(self) -> None:
        """Forget a step that failed earlier, after its caller had got round the wrapper.

        Gradient scaling of accelerate, for one, calls the ``step`` that it fetched before
        attach(). Parameters may have been loaded or trained since, so they are left alone.
        """
        step, self._step = self._step, None
        if step is not None:
            step.give_back(self.optimizer, only_ours=True)

    def _is_linear(self) -> bool:
        """Whether the step is −lr·g, for which both forms agree and one is cheaper.

        Weight decay is then already outside of the transformation.
        """
        return (
            type(self.optimizer) is SGD
            and self.banks.settings.max_norm is None
            and all(group["momentum"] == 0 for group in self.optimizer.param_groups)
            and all(self._have_one_rate(*groups) for groups in self._other_groups)
            and all(p.weight is not None and p.bias is p.layer.bias for p in self.parts)
        )

    def _have_one_rate(self, first: int, second: int) -> bool:
        """Whether a weight and its bias move at one rate; otherwise the two forms differ."""
        one, other = (self.optimizer.param_groups[i]["lr"] for i in (first, second))
        return one is other or (_is_here(one) and _is_here(other) and bool(one == other))

    def _map_gradients(self, step: Step) -> None:
        """Show the optimizer PPᵀg/q²."""
        for part, factors in self._active(squared=True):
            self._show(part, factors, precondition, step)

    def _standardise(self, step: Step) -> None:
        """Show the optimizer Pᵀg/q and no weight decay, and remember the parameters."""
        active = self._active(squared=False)
        for part, factors in active:
            step.remember(part, factors)
        step.remember_the_rest(self.optimizer)
        step.parts = active
        for part, factors in active:
            self._show(part, factors, to_standardised, step)
        step.decay.hide(self.optimizer, step.before.keys())
        max_norm = self.banks.settings.max_norm
        if max_norm is not None:
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            shown = {id(p) for p, _, _ in step.gradients}
            for p in parameters:  # clipping is in place, and the gradients are the user's
                if p.grad is not None and id(p) not in shown:
                    step.show(p, p.grad.clone())
            clip_gradients(parameters, max_norm, getattr(self.optimizer, "grad_scale", None))

    def _active(self, *, squared: bool) -> list[tuple[Part, Factors]]:
        """Parts whose layer has gradients; a frozen or unused layer is left alone."""
        factors = self.banks.factors(squared=squared)
        return [
            (part, factors[part.layer.name])
            for part in self.parts
            if part.layer.weight.grad is not None
            and (part.bias is None or part.bias.grad is not None or part.weight is not None)
        ]

    def _show(self, part: Part, factors: Factors, mapping: Map, step: Step) -> None:
        """Show the optimizer mapped gradients of one layer."""
        bias = part.layer.bias
        raw_bias = None if bias is None else bias.grad
        if part.weight is None:
            if bias is not None and raw_bias is not None:
                step.show(bias, raw_bias * factors.bias)
            return
        raw = part.weight.grad
        assert raw is not None
        new, new_bias = mapped(mapping, raw, raw_bias, factors)
        step.show(part.weight, new)
        if part.bias is not None and new_bias is not None:
            step.show(part.bias, new_bias)

    def _map_change(self, part: Part, factors: Factors, step: Step) -> None:
        """Replace Δ = new − old by P Δ / q, and let the decay act beside it."""
        mine = [p for p in (part.weight, part.bias) if p is not None]
        for p in mine:
            p.sub_(step.before[id(p)].value)
        bias = part.bias
        if part.weight is None:
            assert bias is not None
            bias.mul_(factors.bias)
        elif part.moves_foreign_bias(factors):
            assert part.layer.bias is not None
            moved = torch.zeros_like(part.layer.bias)
            map_in_place(from_standardised, part.weight, moved, factors)
            part.layer.bias.add_(moved)
        else:
            map_in_place(from_standardised, part.weight, bias, factors)
        for p in mine:
            p.add_(self._shrunk(step.before[id(p)].value, step.decay.shrink.get(id(p))))

    def _shrunk(self, parameter: Tensor, by: float | Tensor | None) -> Tensor:
        if by is None:
            return parameter
        found_inf = getattr(self.optimizer, "found_inf", None)
        if found_inf is not None:  # a fused optimizer skips such a step by itself
            by = by * (1 - found_inf.reshape(()))
        return parameter * (1 - by)  # a new tensor: an interrupted step needs the old one

    def _closure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            return None
        if not self.run_closure:
            raise TypeError(
                "BNP cannot precondition step(closure): the closure recomputes gradients after "
                "the hook. Call backward(), then step(), or attach(optimizer, run_closure=True)."
            )
        with torch.enable_grad():
            loss = closure()
        return (args[0], lambda: loss), {k: v for k, v in kwargs.items() if k != "closure"}


def _groups_of(optimizer: Optimizer) -> tuple[tuple[int, bool], ...]:
    """How many parameters each group has, and whether its rate is 0.

    A rate on an accelerator is not waited for.
    """
    rates = [group.get("lr") for group in optimizer.param_groups]
    still = [rate is not None and _is_here(rate) and bool(rate == 0) for rate in rates]
    sizes = (len(group["params"]) for group in optimizer.param_groups)
    return tuple(zip(sizes, still, strict=True))


def _is_here(rate: object) -> bool:
    """Whether a rate can be read without waiting for an accelerator."""
    return not isinstance(rate, Tensor) or rate.device.type == "cpu"


def attached_to(optimizer: Optimizer) -> Attachment | None:
    """What preconditions the steps of an optimizer now."""
    owners = (getattr(h, "__self__", None) for h in optimizer._optimizer_step_pre_hooks.values())
    return next((owner for owner in owners if isinstance(owner, Attachment)), None)


def _check(optimizer: Optimizer, banks: Banks) -> None:
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
    if any(group.get("weight_decay") and "lr" not in group for group in optimizer.param_groups):
        raise ValueError(
            f"a parameter group of this {type(optimizer).__name__} has a weight_decay and no lr, "
            "and BNP decays weights by lr · weight_decay. Give the group an lr, or call "
            "BNP.step() before optimizer.step() instead."
        )
    other = attached_to(optimizer)
    if other is not None and other.banks is banks:
        raise ValueError("This optimizer is attached already. Call detach() first.")
    if other is not None:
        raise ValueError(
            "Another BNP preconditions this optimizer already, and two would do it twice. Call "
            "detach() of the first, or build the optimizer anew if the first is out of reach."
        )
