"""Time steps of a recurrent layer that the loss hardly depends on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.instrument import untouched
from equipoise.instrument.forward import recording_gradients
from equipoise.instrument.modules import names
from equipoise.instrument.random_states import seeded
from equipoise.records import wording
from equipoise.records.finding import Finding

# Squared gradients below this part of the largest: a millionth, or the rounding of float32.
_FORGOTTEN = 1e-12
# Of shorter sequences, or if it is less of them, nothing is said.
_FEWEST_STEPS, _PART = 16, 0.5


def of_memory(traced: TracedPass) -> list[Finding]:
    """Early time steps whose gradient has vanished on the way back from the end.

    With PyTorch's weights the forget gate of an LSTM starts at about one half, so that the
    gradient of a loss at the end shrinks with every step back.
    """
    layers = [module for module in traced.model.modules() if isinstance(module, nn.RNNBase)]
    return traced.afterwards(partial(_forgotten, layers)) if layers else []


def _forgotten(layers: Sequence[nn.RNNBase], traced: TracedPass) -> list[Finding]:
    model = traced.model
    given: list[tuple[nn.RNNBase, Tensor]] = []

    def before(module: nn.Module, args: tuple[Any, ...]) -> Any:
        assert isinstance(module, nn.RNNBase)
        x = args[0] if args else None
        if not isinstance(x, Tensor) or x.ndim != 3 or any(one is module for one, _ in given):
            return None  # packed, unbatched, or called again
        x = x if x.requires_grad else x.detach().clone().requires_grad_()
        given.append((module, x))
        return (x, *args[1:])

    with untouched(model), recording_gradients(), seeded(0):
        with ExitStack() as handles:
            for layer in layers:
                handles.enter_context(layer.register_forward_pre_hook(before))
            loss = traced.loss_fn(model, traced.batch)
        if not given or not loss.requires_grad:
            return []
        gradients = torch.autograd.grad(loss, [x for _, x in given], allow_unused=True)
    known = names(model)
    found = [
        _judged(known[module], module, gradient)
        for (module, _), gradient in zip(given, gradients, strict=True)
        if gradient is not None
    ]
    return [finding for finding in found if finding is not None][:1]


def _judged(name: str, layer: nn.RNNBase, gradient: Tensor) -> Finding | None:
    sizes = gradient.detach().double().square().sum((0, 2) if layer.batch_first else (1, 2))
    steps, largest = len(sizes), float(sizes.max())
    if steps < _FEWEST_STEPS or not 0 < largest < float("inf"):
        return None
    early = int((sizes > _FORGOTTEN * largest).nonzero()[0, 0])
    if early < _PART * steps:
        return None
    kind = type(layer).__name__
    gate = {
        "LSTM": "Start the forget gate's bias at 1 or more: "
        "nn.init.constant_(lstm.bias_ih_l0[hidden_size : 2 * hidden_size], 1.0) "
        "[jozefowicz2015]. ",
        "GRU": "Start the update gate's bias at 1 or more: "
        "nn.init.constant_(gru.bias_ih_l0[hidden_size : 2 * hidden_size], 1.0). ",
    }
    return Finding(
        "warning",
        f"The first {early:,} of {steps:,} time steps are forgotten",
        f"The loss's derivative by what {name!r} ({kind}) is given there is below a millionth of "
        f"the largest: training hardly learns from {wording.count(early, 'step')}. It does not "
        "matter if later steps hold all that is needed.",
        gate.get(kind, "Take an LSTM or a GRU. ")
        + "Or take the mean over all steps, or attention, in the place of the last state; where "
        "sequences are padded at their end, take the state at their last real step.",
    )
