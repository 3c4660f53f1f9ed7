"""The largest learning rate that a schedule reaches first."""

import math

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

from equipoise.diagnosis.optimizer import schedule
from equipoise.diagnosis.optimizer.schedule import rates_of

MADE_WITH = 1.0


def noam(optimizer, width=64, warm_up=100):
    """The factors of [vaswani2017] are meant for an optimiser with a rate of 1."""
    return schedules.LambdaLR(
        optimizer,
        lambda step: width**-0.5 * min((step + 1) ** -0.5, (step + 1) * warm_up**-1.5),
    )


def warmed_up_cosine(optimizer):
    warm_up = schedules.LinearLR(optimizer, 0.01, total_iters=5)
    return schedules.SequentialLR(
        optimizer, [warm_up, schedules.CosineAnnealingLR(optimizer, 20)], [5]
    )


# The first peak, whether the schedule starts lower, and what its optimiser alone tells of it.
KNOWN = {
    "warm-up to less than the optimiser's": (noam, 64**-0.5 * 100**-0.5, True, "assumed"),
    "warm-up to it": (warmed_up_cosine, MADE_WITH, True, "assumed"),
    "one cycle": (
        lambda o: schedules.OneCycleLR(o, 3.0, total_steps=12, pct_start=0.5),
        3.0,
        True,
        "known",
    ),
    "cycles above it": (lambda o: schedules.CyclicLR(o, 0.5, 2.0, 5), 2.0, True, "unknown"),
    "decay": (lambda o: schedules.StepLR(o, 3), MADE_WITH, False, "unknown"),
    "restarts": (
        lambda o: schedules.CosineAnnealingWarmRestarts(o, 4),
        MADE_WITH,
        False,
        "unknown",
    ),
    "a list of factors": (
        lambda o: schedules.LambdaLR(o, [0.1, 0.5, 0.4].__getitem__),
        0.5,
        True,
        "assumed",
    ),
    "a list that ends early": (
        lambda o: schedules.LambdaLR(o, [0.1, 0.5].__getitem__),
        0.5,
        True,
        "assumed",
    ),
    "on plateaus": (schedules.ReduceLROnPlateau, MADE_WITH, False, "known"),
}


def sgd(**options):
    return torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=MADE_WITH, momentum=0.9, **options)


@pytest.mark.parametrize(("made", "peak", "rises", "alone"), KNOWN.values(), ids=KNOWN)
def test_a_schedule_is_run_through_to_its_first_peak(made, peak, rises, alone):
    optimizer = sgd()
    scheduler = made(optimizer)
    assert rates_of([optimizer], []).schedule == alone
    found = rates_of([optimizer], [scheduler])
    assert found.peaks == pytest.approx((peak,))
    assert (found.warms_up, found.schedule) == (rises, "known")


def test_without_the_scheduler_a_rise_to_what_the_optimiser_was_made_with_is_assumed():
    optimizer = sgd()
    noam(optimizer)
    assert rates_of([optimizer], []).peaks == (MADE_WITH,)


def test_of_an_optimiser_that_has_stepped_the_rate_now_counts():
    optimizer = sgd()
    scheduler = schedules.CosineAnnealingLR(optimizer, 10)
    for _ in range(9):
        optimizer.step()
        scheduler.step()
    (now,) = (group["lr"] for group in optimizer.param_groups)
    found = rates_of([optimizer], [])
    assert (found.peaks, found.warms_up, found.schedule) == ((now,), False, "unknown")


def test_groups_without_a_rate_have_no_peak():
    optimizer = torch.optim.Optimizer([nn.Parameter(torch.ones(1))], {"lr": None})
    assert math.isnan(rates_of([optimizer], []).peaks[0])


@pytest.mark.parametrize(("patience", "peak"), [(5.0, 100.0), (0.0, 2.0)])
def test_a_slow_schedule_is_not_waited_for(patience, peak, monkeypatch):
    """It rises by 1 for 100 steps, of which the first alone is taken without patience."""
    monkeypatch.setattr(schedule, "_PATIENCE", patience)
    optimizer = sgd()
    rising = schedules.LambdaLR(optimizer, lambda step: min(step + 1, 200 - step))
    assert rates_of([optimizer], [rising]).peaks == (pytest.approx(peak, abs=1),)
