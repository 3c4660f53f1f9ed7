"""Internal covariate shift: how a layer's gradient moves when earlier layers take their step."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

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
from equipoise.numerics.vectors import Reference
from equipoise.probes._layers_in_use import Layer, layers_in_use, plain_name
from equipoise.probes.landscape import resolution


@dataclass(frozen=True, slots=True)
class LayerShift:
    r"""How far the gradient of one layer moves when all earlier layers take their step.

    Args:
        layer: Name of the layer in the model.
        kind: Its class.
        parameters: How many trainable numbers it holds; shared ones count in the first layer
            that uses them.
        l2: :math:`\|G_i - G_i'\|`.
        cosine: Between :math:`G_i` and :math:`G_i'`, ideally 1; ``nan`` where one is zero.
        gradient_norm: :math:`\|G_i\|`, before the earlier layers moved.
        moved_gradient_norm: :math:`\|G_i'\|`, after.
        zero_gradient: Whether one of the two is exactly zero.
    """

    layer: str
    kind: str
    parameters: int
    l2: float
    cosine: float
    gradient_norm: float
    moved_gradient_norm: float
    zero_gradient: bool


@dataclass(frozen=True, slots=True)
class CovariateShift:
    """Internal covariate shift of every layer, for one batch and one step of the optimiser.

    Args:
        layers: In the order in which they are applied.
        loss: Before the step.
        relative_floor: Resolution of the coarsest type among parameters and loss. A difference
            of less than this times the gradient's norm is rounding.
        shared_prefix: Whether the passes shared the work of the layers that had moved already.
    """

    layers: tuple[LayerShift, ...]
    loss: float
    relative_floor: float
    shared_prefix: bool


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
    :math:`W_i'` where the optimiser's step on the same batch takes them,

    .. math:: G_i &= \nabla_{W_i}\mathcal L(W_1, \dots, W_k), \\
              G_i' &= \nabla_{W_i}\mathcal L(W_1', \dots, W_{i-1}', W_i, \dots, W_k),

    measured as :math:`\|G_i - G_i'\|` and :math:`\cos(G_i, G_i')`. Batch statistics are those
    of each pass. Parameters, buffers, gradients, modes, random states and the optimiser's state
    are left bit-identical, whatever happens.

    Layer i takes a pass from the first layer that moved since the pass before it: what lies
    further ahead is known by then and not computed again, which takes about k/3 passes for a
    chain of k equal layers. Modules that leave more behind than their output run every time, and
    a model that takes another path once it has moved falls back to whole passes.

    Args:
        model: Any module, in the mode that it is trained in, or an ordered list of blocks whose
            composition is the model; each block is a layer then.
        loss_fn: ``loss_fn(model, batch)`` returns a scalar.
        batch: What the user's loader yields.
        update: The step: a learning rate for plain gradient descent; the optimiser, which takes
            a step with the gradients of this batch; or a function of the model, called when its
            parameters have these gradients, which does whatever training does.
        layers: Modules, or names of modules, to report, each as one layer with all that is
            inside it; the others move in their turn. By default every innermost module that
            uses trainable parameters, in order of first use. A shared parameter belongs to the
            first layer that uses it.
        stateful: Objects that the step changes beside model and optimiser, such as
            :class:`equipoise.BNP`; they must be between two steps. What their ``state_dict()``
            holds is put back with ``load_state_dict()``.
        share_prefix: Whether to leave out what is known already; otherwise every layer takes a
            whole pass.

    Returns:
        One entry per layer, in order. The first is not shifted. Of a zero gradient the cosine is
        ``nan`` and ``zero_gradient`` is set.

    Raises:
        TypeError: If the update or an entry of ``stateful`` is of no use, or ``loss_fn`` returns
            something else than a tensor of real numbers.
        ValueError: If that has several numbers or no graph, if the model has no trainable
            parameter or split or lazy ones, if the optimiser does not train it or has step
            hooks without ``stateful``, or if a layer is unknown or has no parameter of its own.

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
    model, blocks = _joined(model)
    chosen = blocks if layers is None else _resolved(model, layers)
    replay = Replay(model, loss_fn, batch)
    check_update(update, stateful, replay.parameters)
    restored = parameters_restored(model, trained_parameters(update))
    with restored as saved, states_restored(stateful or ()):
        passes = _Passes(replay, share=share_prefix)
        order = layers_in_use(replay, passes.calls, chosen)
        wanted = _wanted(order, chosen, named=layers is not None)
        targets = parameters_after_step(replay, saved, passes.gradients, update)
        shifts = []
        for layer in order:
            if layer in wanted:
                shifts.append(_shift(layer, passes, first=layer is order[0]))
            write_values(layer.of(replay.parameters), layer.of(targets))
    return CovariateShift(
        layers=tuple(shifts),
        loss=float(passes.loss),
        relative_floor=resolution((passes.loss, *replay.parameters)),
        shared_prefix=passes.shared,
    )


class _Passes:
    """One pass that is recorded, then one for each layer that differentiates it alone."""

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

    def gradient(self, layer: Layer) -> tuple[Tensor, ...]:
        """Differentiate one layer with all parameters where they are."""
        parameters = layer.of(self.replay.parameters)
        for parameter in self.replay.parameters:
            parameter.requires_grad_(False)  # no graph before the layer, no gradients after it
        for parameter in parameters:
            parameter.requires_grad_(True)
        if self.shared:
            try:
                return self._differentiated(parameters, self.calls.reusing(layer.begins))
            except DivergedError:
                self.shared = False
                self.calls.forget()
        return self._differentiated(parameters, contextlib.nullcontext())

    def _differentiated(
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
        pairs = zip(self.replay.names, self.replay.parameters, self.gradients, strict=True)
        for name, parameter, gradient in pairs:
            if gradient is not None and id(parameter) not in self.calls.uses:
                raise ValueError(
                    f"parameter {name!r} has a gradient, but no operation on it was seen, so its "
                    "layer has no place in the order. Freeze it, or give the model as blocks."
                )


def _shift(layer: Layer, passes: _Passes, *, first: bool) -> LayerShift:
    parameters = layer.of(passes.replay.parameters)
    before = Reference(tuple(map(dense, layer.of(passes.gradients), parameters)))
    after = before.vector if first else passes.gradient(layer)
    found = before.compare(after)
    return LayerShift(
        layer=layer.name,
        kind=layer.kind,
        parameters=sum(p.numel() for p in parameters),
        l2=found.distance,
        # Rounding of the lengths aside, a vector has the cosine 1 with itself.
        cosine=1.0 if first and before.norm > 0 else found.cosine,
        gradient_norm=before.norm,
        moved_gradient_norm=found.norm,
        zero_gradient=before.norm == 0 or found.norm == 0,
    )


def _joined(model: nn.Module | Sequence[nn.Module]) -> tuple[nn.Module, list[nn.Module]]:
    """The model, and its blocks if it was given as such."""
    if isinstance(model, nn.Module) and not isinstance(model, nn.ModuleList):
        return model, []
    blocks = list(model)
    if not blocks or not all(isinstance(block, nn.Module) for block in blocks):
        kinds = ", ".join(type(block).__name__ for block in blocks[:3]) or "an empty list"
        raise TypeError(f"model must be a module or a list of modules, got {kinds}.")
    return nn.Sequential(*blocks), blocks


def _resolved(model: nn.Module, layers: Sequence[nn.Module | str]) -> list[nn.Module]:
    """Modules of the model by themselves or by name."""
    names = {plain_name(name): module for name, module in model.named_modules()}
    modules = set(names.values())
    found = [names.get(layer) if isinstance(layer, str) else layer for layer in layers]
    for module, layer in zip(found, layers, strict=True):
        if module not in modules:
            given = repr(layer) if isinstance(layer, str) else f"a {type(layer).__name__}"
            some = ", ".join(name for name in list(names)[:6] if name)
            raise ValueError(f"layers names {given}, which the model lacks. It has {some}, …")
    if not found:
        raise ValueError("layers must hold at least one module or name, got none.")
    return [module for module in found if module is not None]


def _wanted(order: list[Layer], chosen: Sequence[nn.Module], *, named: bool) -> list[Layer]:
    """The layers to report; what the caller named must be among them."""
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
