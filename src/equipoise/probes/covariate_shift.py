"""Internal covariate shift: how a layer's gradient changes when earlier layers take a step."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor, nn

from equipoise.instrument import modules
from equipoise.instrument.compiled import uncompiled_name
from equipoise.instrument.observers import observers_paused
from equipoise.instrument.optimizer_step import (
    Stateful,
    Update,
    check_update,
    parameters_after_step,
    states_restored,
    trained_parameters,
)
from equipoise.instrument.recording.calls import Calls, DivergedError
from equipoise.instrument.replay import Replay, dense, differentiate, used_gradients
from equipoise.instrument.snapshot import parameters_restored, write_values
from equipoise.instrument.types import LossFunction
from equipoise.numerics.options import named_options
from equipoise.numerics.vectors import Reference
from equipoise.probes.landscape import resolution
from equipoise.probes.record import CovariateShift, LayerShift

Value = TypeVar("Value")


@named_options
def covariate_shift(
    model: nn.Module | Sequence[nn.Module],
    loss_fn: LossFunction,
    batch: Any,
    update: Update,
    *,
    layers: Sequence[nn.Module | str] | None = None,
    stateful: Sequence[Stateful] | None = None,
    share_prefix: bool = True,
) -> CovariateShift:
    r"""Change of every layer's gradient caused by the step of the layers before it.

    With :math:`W_1, \dots, W_k` the layers in the order in which they are applied, and
    :math:`W_i'` their values after the optimiser's step on the same batch,

    .. math:: G_i &= \nabla_{W_i}\mathcal L(W_1, \dots, W_k), \\
              G_i' &= \nabla_{W_i}\mathcal L(W_1', \dots, W_{i-1}', W_i, \dots, W_k),

    measured as :math:`\|G_i - G_i'\|` and :math:`\cos(G_i, G_i')`. Batch statistics are those
    of each pass. Parameters, buffers, gradients, modes, random states and the optimiser's state
    are left bit-identical, whatever happens.

    The pass for layer i reuses the outputs of all layers before those that moved since the pass
    before it. For a chain of k equal layers, this takes the time of about k/3 passes. Modules
    that do more than compute their output run every time. If the model takes another path once
    it has moved, whole passes are taken.

    Args:
        model: Any module, in the mode that it is trained in, or an ordered list of blocks whose
            composition is the model; each block is a layer then.
        loss_fn: ``loss_fn(model, batch)`` returns a scalar.
        batch: What the user's loader yields.
        update: The step: a learning rate for plain gradient descent; the optimiser, which takes
            a step with the gradients of this batch; or a function of the model that takes the
            step, called when the parameters have these gradients.
        layers: Modules to report, or their names, each as one layer with all that is inside
            it; other layers move in their turn without being reported. By default every innermost
            module that uses trainable parameters, in order of first use. A shared parameter
            belongs to the first layer that uses it.
        stateful: Objects that the step changes beside model and optimiser, such as
            :class:`equipoise.BNP`; they must be between two steps. What their ``state_dict()``
            holds is put back with ``load_state_dict()``.
        share_prefix: Whether to reuse outputs; otherwise every layer takes a whole pass.

    Returns:
        One entry per layer, in order. The first is not shifted. For a zero gradient the cosine
        is ``nan`` and ``zero_gradient`` is set.

    Raises:
        TypeError: If the update or an entry of ``stateful`` has the wrong type.
        ValueError: If ``loss_fn`` returns anything but a tensor with one real number and a graph,
            if the learning rate is not finite, if the model has no trainable parameter or split
            or lazy ones, if the optimiser does not train it or has step hooks without
            ``stateful``, or if a layer is unknown or has no parameter of its own.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
        >>> for layer in model:
        ...     _ = nn.init.ones_(layer.weight)
        >>> half_square = lambda model, x: 0.5 * model(x).square().sum()
        >>> shift = covariate_shift(model, half_square, torch.ones(1, 1), update=0.5)
        >>> [(layer.layer, layer.l2, layer.cosine) for layer in shift.layers]
        [('0', 0.0, 1.0), ('1', 0.75, 1.0)]

    References:
        [santurkar2018], Definition 2.1 and Figure 3.
    """
    model, blocks = _as_module(model)
    chosen = blocks if layers is None else _find_modules(model, layers)
    replay = Replay(model, loss_fn, batch)
    check_update(update, stateful, replay.parameters)
    # With an optimiser, observers take part in the step; stateful restores them.
    plain = isinstance(update, int | float)
    with (
        observers_paused(model) if plain else contextlib.nullcontext(),
        parameters_restored(model, trained_parameters(update)) as saved,
        states_restored(stateful or ()),
    ):
        passes = _Passes(replay, share=share_prefix)
        order = _layers_in_order(replay, passes.calls, chosen)
        reported = _reported(order, chosen, named=layers is not None)
        stepped = parameters_after_step(replay, saved, passes.gradients, update)
        shifts = []
        for layer in order:
            if layer in reported:
                shifts.append(_shift(layer, passes, first=layer is order[0]))
            write_values(layer.of(replay.parameters), layer.of(stepped))
    return CovariateShift(
        layers=tuple(shifts),
        loss=float(passes.loss),
        relative_floor=resolution((passes.loss, *replay.parameters)),
        shared_prefix=passes.shared,
    )


@dataclass(frozen=True, slots=True)
class _Layer:
    """A module with the parameters that no earlier layer has used.

    Args:
        module: The module.
        name: Its name in the model.
        indices: Indices of its parameters among those of the replay.
        begins: Time of the first operation on one of them.
    """

    module: nn.Module
    name: str
    indices: tuple[int, ...]
    begins: int

    def of(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """The layer's entries, out of one entry per parameter of the replay."""
        return tuple(values[index] for index in self.indices)


class _Passes:
    """One recorded pass, and one more for each layer, which differentiates that layer alone."""

    def __init__(self, replay: Replay, *, share: bool) -> None:
        states = replay.random_states
        self.replay = replay
        self.calls = Calls(replay.model, states)
        with replay.replayed():
            with self.calls.recording():
                loss = replay.evaluate()
            self.loss = loss.detach()
            self.gradients = used_gradients(loss, replay.parameters)
            # Only PyTorch's generators are followed from call to call.
            self.shared = share and not states.others_than_torch_were_used()
        self._check_uses()

    def gradient(self, layer: _Layer) -> tuple[Tensor, ...]:
        """Differentiate the loss with respect to one layer, at the parameters' present values."""
        parameters = layer.of(self.replay.parameters)
        for parameter in self.replay.parameters:
            parameter.requires_grad_(False)  # no graph before the layer, no gradients after it
        for parameter in parameters:
            parameter.requires_grad_(True)
        if self.shared:
            try:
                return self._differentiate(parameters, self.calls.reusing(layer.begins))
            except DivergedError:
                self.shared = False
                self.calls.clear_cache()
        return self._differentiate(parameters, contextlib.nullcontext())

    def _differentiate(
        self,
        parameters: tuple[nn.Parameter, ...],
        forward: contextlib.AbstractContextManager[None],
    ) -> tuple[Tensor, ...]:
        with self.replay.replayed():
            with forward:
                loss = self.replay.evaluate()
            if not loss.requires_grad:
                return tuple(dense(None, p) for p in parameters)
            return differentiate(loss, parameters)

    def _check_uses(self) -> None:
        """Refuse parameters with a gradient but no recorded use, which have no place."""
        pairs = zip(self.replay.names, self.replay.parameters, self.gradients, strict=True)
        for name, parameter, gradient in pairs:
            if gradient is not None and id(parameter) not in self.calls.uses:
                raise ValueError(
                    f"parameter {name!r} has a gradient, but no operation on it was recorded, so "
                    "its layer has no place in the order. Freeze it, or give the model as blocks."
                )


def _shift(layer: _Layer, passes: _Passes, *, first: bool) -> LayerShift:
    parameters = layer.of(passes.replay.parameters)
    before = Reference(tuple(map(dense, layer.of(passes.gradients), parameters)))
    after = before.vector if first else passes.gradient(layer)
    found = before.compare(after)
    return LayerShift(
        layer=layer.name,
        kind=type(layer.module).__name__,
        parameters=sum(p.numel() for p in parameters),
        l2=found.distance,
        # The cosine of a vector with itself is 1, but norms are rounded.
        cosine=1.0 if first and before.length > 0 else found.cosine,
        gradient_norm=before.length,
        moved_gradient_norm=found.length,
        zero_gradient=before.length == 0 or found.length == 0,
    )


def _layers_in_order(replay: Replay, calls: Calls, chosen: Sequence[nn.Module]) -> list[_Layer]:
    """All layers, in the order of the first operation on their parameters.

    A layer is the innermost of the chosen modules that runs when one of its parameters is first
    used, or the innermost module that runs, if none is chosen. Parameters that no operation uses
    are in no layer.
    """
    names = modules.names(replay.model)
    owners = {id(p): m for m in names for p in modules.own_parameters(m)}
    members: dict[nn.Module, list[int]] = {}
    for index, parameter in enumerate(replay.parameters):
        use = calls.uses.get(id(parameter))
        if use is not None:
            running = [m for m in use.modules if m in names] or [
                owners.get(id(parameter), replay.model)
            ]
            layer = next((m for m in reversed(running) if m in chosen), running[-1])
            members.setdefault(layer, []).append(index)
    layers = [
        _Layer(
            module=module,
            name=names[module],
            indices=tuple(indices),
            begins=min(calls.uses[id(replay.parameters[i])].time for i in indices),
        )
        for module, indices in members.items()
    ]
    return sorted(layers, key=lambda layer: layer.begins)


def _as_module(model: nn.Module | Sequence[nn.Module]) -> tuple[nn.Module, list[nn.Module]]:
    """The model as one module, and its blocks if it was given as a list of them."""
    if isinstance(model, nn.Module) and not isinstance(model, nn.ModuleList):
        return model, []
    blocks = list(model)
    if not blocks or not all(isinstance(block, nn.Module) for block in blocks):
        kinds = ", ".join(type(block).__name__ for block in blocks[:3]) or "an empty list"
        raise TypeError(f"model must be a module or a list of modules, got {kinds}.")
    return nn.Sequential(*blocks), blocks


def _find_modules(model: nn.Module, layers: Sequence[nn.Module | str]) -> list[nn.Module]:
    """The modules that the caller gave, some of them by name."""
    by_name = {uncompiled_name(name): module for name, module in model.named_modules()}
    known = set(by_name.values())
    found = [
        by_name.get(uncompiled_name(layer)) if isinstance(layer, str) else layer
        for layer in layers
    ]
    for module, layer in zip(found, layers, strict=True):
        if module not in known:
            given = repr(layer) if isinstance(layer, str) else f"a {type(layer).__name__}"
            some = ", ".join(name for name in list(by_name)[:6] if name)
            raise ValueError(f"layers names {given}, which the model lacks. It has {some}, …")
    if not found:
        raise ValueError("layers must hold at least one module or name, got none.")
    return [module for module in found if module is not None]


def _reported(order: list[_Layer], chosen: Sequence[nn.Module], *, named: bool) -> list[_Layer]:
    """The layers to report, among which those that the caller named must be."""
    if not chosen:
        return order
    found = {layer.module: layer for layer in order}
    for module in chosen:
        if named and module not in found:
            raise ValueError(
                f"a {type(module).__name__} among layers uses no trainable parameter that no "
                "earlier layer has used. Leave it out, or unfreeze it."
            )
    return [layer for layer in order if layer.module in chosen]
