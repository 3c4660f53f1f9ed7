"""Look at what the user's optimiser holds, and try some of its steps."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from equipoise.diagnosis.optimizer.given import Stepping, left_out
from equipoise.diagnosis.optimizer.record import OptimizerCheck
from equipoise.diagnosis.optimizer.schedule import peak_rate
from equipoise.diagnosis.optimizer.trial import NeedsClosureError, Trainee, try_rates
from equipoise.diagnosis.problem import Problem
from equipoise.diagnosis.refusals import in_words
from equipoise.instrument.memory import lacks_memory, let_go
from equipoise.instrument.modules import in_idle_networks
from equipoise.instrument.progress import silent
from equipoise.instrument.snapshot import surroundings_kept
from equipoise.instrument.types import Progress

# Seconds for steps at other learning rates than the user's, where the loss does not fall at that.
_PATIENCE = 20.0


def check_optimizer(
    problem: Problem,
    stepping: Stepping,
    report: Progress = silent,
    *,
    unused: Collection[str] = (),
) -> OptimizerCheck:
    """Judge an optimiser by what it holds, and by what a few of its steps do to the loss.

    Args:
        problem: Model, data and loss. Steps are taken by copies of the model.
        stepping: How the user's training takes its steps.
        report: Called with a stage, finished and total steps.
        unused: Parameters that the loss does not depend on.

    Raises:
        ValueError: If the user's function raises or returns no optimiser.
    """
    model = problem.fresh(problem.seed)
    optimizers = stepping.make(model)
    found = replace(_described(model, optimizers, unused), schedule=stepping.schedule)
    reason = _obstacle(found, stepping, optimizers)
    if reason:
        return replace(found, reason=reason)

    def trainee() -> Trainee:
        copy = problem.fresh(problem.seed)
        (optimizer,) = stepping.make(copy)
        return Trainee(copy, optimizer, stepping.clip, stepping.warms_up)

    try:
        with surroundings_kept(model):
            outcome, trials, unmoved = try_rates(problem, trainee, report, _PATIENCE)
    except NeedsClosureError as error:
        return replace(found, reason=str(error))
    except Exception as error:  # of the user's code; it is not to cost the rest of the check-up
        let_go(error)
        if lacks_memory(error):  # a training holds one copy less
            return replace(found, reason=in_words(error).rstrip("."))
        return replace(found, outcome="fails", reason=in_words(error))
    return replace(found, outcome=outcome, trials=trials, unmoved=unmoved)


def _described(
    model: nn.Module, optimizers: tuple[torch.optim.Optimizer, ...], unused: Collection[str]
) -> OptimizerCheck:
    groups = [group for one in optimizers for group in one.param_groups]
    held = {id(tensor) for group in groups for tensor in group["params"]}
    wanted = tuple(name for name, p in model.named_parameters() if p.requires_grad)
    missing = left_out(model, optimizers)
    of_others = {*unused, *in_idle_networks(model, {*wanted} - {*missing})}
    return OptimizerCheck(
        optimizer=" and ".join(dict.fromkeys(type(one).__name__ for one in optimizers)),
        rate=max((rate for rate in map(peak_rate, groups) if rate >= 0), default=math.nan),
        parameters=wanted,
        left_out=missing,
        of_others=tuple(name for name in missing if name in of_others),
        held=len(held),
        climbs=any(group.get("maximize", False) for group in groups),
        half_life=min(map(_half_life, groups), default=math.inf),
    )


def _half_life(group: Mapping[str, Any]) -> float:
    r"""Steps in which weight decay alone halves weights, :math:`\ln 2/(\eta\lambda/(1-\mu))`.

    Only decay whose size is known counts: that of AdamW and Muon is subtracted beside the step,
    that of SGD goes through its momentum μ. Adam's own goes through its normalisation.

    Examples:
        >>> sgd = {"lr": 0.1, "weight_decay": 0.1, "dampening": 0.0}
        >>> [round(_half_life({**sgd, "momentum": momentum})) for momentum in (0.0, 0.5)]
        [69, 35]
        >>> round(_half_life({"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}))
        69
        >>> _half_life({"lr": 0.1, "weight_decay": 0.1, "betas": (0.9, 0.999)})
        inf
    """
    is_of_sgd, is_of_muon = "dampening" in group, "ns_coefficients" in group
    if not (is_of_sgd or is_of_muon or group.get("decoupled_weight_decay", False)):
        return math.inf
    kept = float(group.get("momentum", 0.0)) if is_of_sgd else 0.0
    rate = peak_rate(group) * float(group.get("weight_decay", 0.0)) / max(1 - kept, 1e-3)
    return math.log(2) / rate if rate > 0 else math.inf


def _obstacle(
    found: OptimizerCheck, stepping: Stepping, optimizers: tuple[torch.optim.Optimizer, ...]
) -> str:
    """Why no steps can be tried; empty if they can."""
    if found.is_of_another_model:
        return "it holds none of the model's parameters"
    if stepping.obstacle:
        return stepping.obstacle
    if len(optimizers) > 1:
        return "there are several, which take turns"
    if found.climbs:
        return "it maximises"
    if any(math.isnan(peak_rate(group)) for group in optimizers[0].param_groups):
        return f"groups of {found.optimizer} have no learning rate"
    if found.rate == 0:
        return "its learning rate is zero"
    return ""
