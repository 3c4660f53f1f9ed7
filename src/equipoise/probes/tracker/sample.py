"""Measure one sample of a tracker: run the probes, one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.optim import Optimizer

from equipoise.instrument.replay import Replay
from equipoise.instrument.snapshot import write_values
from equipoise.instrument.types import LossFunction
from equipoise.probes.activations import activations
from equipoise.probes.conditioning import conditioning
from equipoise.probes.covariate_shift import covariate_shift
from equipoise.probes.gradient_growth import gradient_growth
from equipoise.probes.landscape import landscape
from equipoise.probes.tracker import flatten
from equipoise.probes.tracker.flatten import Values
from equipoise.probes.tracker.plan import Plan
from equipoise.probes.tracker.steps import Moment

Timed = Callable[[str], AbstractContextManager[None]]


def measure_before_step(
    plan: Plan,
    model: nn.Module,
    loss_fn: LossFunction | None,
    optimizer: Optimizer | None,
    batch: Any,
    timed: Timed,
) -> Values:
    """Measure what does not depend on where the step leads."""
    values: Values = {}
    if loss_fn is not None and plan.uses_loss:
        values |= _measure_loss(plan, model, loss_fn, plan.etas(optimizer), batch, timed)
    if plan.activations:
        with timed("activations"):
            values |= flatten.activations(activations(model, batch, forward=loss_fn))
    if plan.conditioning:
        with timed("conditioning"):
            values |= flatten.conditioning(conditioning(model, batch, forward=loss_fn))
    return values


def _measure_loss(
    plan: Plan,
    model: nn.Module,
    loss_fn: LossFunction,
    etas: list[float],
    batch: Any,
    timed: Timed,
) -> Values:
    with timed("landscape" if plan.landscape else "growth" if plan.growth else "ics"):
        if plan.landscape:
            values = flatten.landscape(landscape(model, loss_fn, batch, steps=etas))
        else:
            values = {"loss": float(Replay(model, loss_fn, batch).loss(graph=False))}
    # gradient_growth refuses a loss that is not finite, but a diverging training may go on.
    if plan.growth and math.isfinite(values["loss"]):
        with timed("growth"):
            values |= flatten.growth(gradient_growth(model, loss_fn, [batch]))
    return values


def measure_after_step(model: nn.Module, loss_fn: LossFunction, moment: Moment) -> Values:
    """Covariate shift under the step that the training itself has taken."""
    with moment.revisited() as (parameters, stepped):

        def step(_: nn.Module) -> None:
            write_values(parameters, stepped)

        return flatten.covariate_shift(covariate_shift(model, loss_fn, moment.batch, step))
