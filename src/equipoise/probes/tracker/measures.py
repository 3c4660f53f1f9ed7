"""One sample of a tracker: the probes, one after the other."""

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
from equipoise.probes.tracker import names
from equipoise.probes.tracker.names import Values
from equipoise.probes.tracker.plan import Plan
from equipoise.probes.tracker.steps import Moment

Timed = Callable[[str], AbstractContextManager[None]]


def before_the_step(
    plan: Plan,
    model: nn.Module,
    loss_fn: LossFunction | None,
    optimizer: Optimizer | None,
    batch: Any,
    timed: Timed,
) -> Values:
    """Everything that does not depend on where the step leads."""
    values: Values = {}
    if loss_fn is not None and plan.asks_the_loss:
        values |= _of_the_loss(plan, model, loss_fn, plan.etas(optimizer), batch, timed)
    if plan.activations:
        with timed("activations"):
            values |= names.activations(activations(model, batch, forward=loss_fn))
    if plan.conditioning:
        with timed("conditioning"):
            values |= names.conditioning(conditioning(model, batch, forward=loss_fn))
    return values


def _of_the_loss(
    plan: Plan,
    model: nn.Module,
    loss_fn: LossFunction,
    etas: list[float],
    batch: Any,
    timed: Timed,
) -> Values:
    with timed("landscape" if plan.landscape else "growth" if plan.growth else "ics"):
        if plan.landscape:
            values = names.landscape(landscape(model, loss_fn, batch, steps=etas))
        else:
            values = {"loss": float(Replay(model, loss_fn, batch).loss(graph=False))}
    # A training that diverges is the user's to stop; of such a loss there is no growth.
    if plan.growth and math.isfinite(values["loss"]):
        with timed("growth"):
            values |= names.growth(gradient_growth(model, loss_fn, [batch]))
    return values


def after_the_step(model: nn.Module, loss_fn: LossFunction, moment: Moment) -> Values:
    """Covariate shift under the step that the training itself has taken."""
    with moment.revisited() as (parameters, now):

        def step(_: nn.Module) -> None:
            write_values(parameters, now)

        return names.covariate_shift(covariate_shift(model, loss_fn, moment.batch, step))
