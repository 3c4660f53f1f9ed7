"""Measure loss and gradient along one step of an optimiser, on one batch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from equipoise import probes
from equipoise.diagnosis.smoothness.record import SmoothnessMeasurement
from equipoise.instrument.modules import own_parameters
from equipoise.instrument.optimizer_step import parameters_after_step, trained_parameters
from equipoise.instrument.replay import Replay, used_gradients
from equipoise.instrument.snapshot import parameters_restored
from equipoise.instrument.types import LossFunction
from equipoise.probes.record import Landscape

Direction = Literal["gradient"] | Sequence[Tensor]


def measure_along_step(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Any,
    *,
    steps: Sequence[float],
    step: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
) -> SmoothnessMeasurement:
    """Measure loss and gradient along a step and, with an optimiser, its covariate shift.

    Args:
        model: In the mode that it is trained in. Model and optimiser stay bit-identical.
        loss_fn: ``loss_fn(model, batch)``.
        batch: What the loss takes.
        steps: η, rising, above zero. Steps that are lost in rounding are left out.
        step: Steps of training taken before.
        optimizer: Whose step to follow; by default the gradient is followed.
    """
    direction: Direction = "gradient"
    if optimizer is not None and not _is_plain(optimizer):
        direction = _own_step(model, loss_fn, batch, optimizer)
    found = probes.landscape(model, loss_fn, batch, steps=steps, direction=direction)
    shift = math.nan if optimizer is None else _shift(model, loss_fn, batch, optimizer)
    chosen = _resolved(found)
    changes, betas = found.gradient_changes or (), found.betas or ()
    return SmoothnessMeasurement(
        step=step,
        loss=found.initial_loss,
        gradient_norm=found.gradient_norm,
        steps=tuple(found.steps[i] for i in chosen),
        losses=tuple(found.losses[i] for i in chosen),
        gradient_changes=tuple(changes[i] for i in chosen),
        beta=float(np.max([betas[i] for i in chosen])),  # nan if one is
        shift_cosine=shift,
    )


def _resolved(found: Landscape) -> list[int]:
    """Indices of steps that are not lost in the rounding of the parameters; all, if all are."""
    resolved = [i for i, error in enumerate(found.step_errors) if error < 1]
    return resolved or list(range(len(found.steps)))


def _is_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step is the gradient times the rate."""
    defaults = optimizer.defaults
    return isinstance(optimizer, torch.optim.SGD) and not (
        defaults["momentum"] or defaults["weight_decay"] or defaults["maximize"]
    )


def _own_step(
    model: nn.Module, loss_fn: LossFunction, batch: Any, optimizer: torch.optim.Optimizer
) -> list[Tensor]:
    """The optimiser's next step, divided by its learning rate."""
    rate = float(optimizer.defaults["lr"])
    replay = Replay(model, loss_fn, batch)
    with parameters_restored(model, trained_parameters(optimizer)) as saved:
        with replay.replayed():
            gradients = used_gradients(replay.evaluate(), replay.parameters)
        targets = parameters_after_step(replay, saved, gradients, optimizer)
        here = saved.values(replay.parameters)
        return [(before - after) / rate for before, after in zip(here, targets, strict=True)]


def _shift(
    model: nn.Module, loss_fn: LossFunction, batch: Any, optimizer: torch.optim.Optimizer
) -> float:
    """Mean cosine over layers with weights, which every variant of the model has."""
    names = [name for name, module in model.named_modules() if name and _has_weights(module)]
    try:
        shift = probes.covariate_shift(model, loss_fn, batch, optimizer, layers=names or None)
    except ValueError:  # a layer is unused, or shares its weights
        shift = probes.covariate_shift(model, loss_fn, batch, optimizer)
    known = [one.cosine for one in shift.layers[1:] if not math.isnan(one.cosine)]
    return statistics.fmean(known) if known else math.nan


def _has_weights(module: nn.Module) -> bool:
    return any(p.ndim > 1 and p.requires_grad for p in own_parameters(module))
