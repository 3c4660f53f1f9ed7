"""Findings say what was measured, under which conditions, and no more."""

from __future__ import annotations

import dataclasses
import math

import pytest

from equipoise.diagnosis.short_training import UNCHANGED
from equipoise.diagnosis.smoothness.findings import conclude_smoothness
from equipoise.diagnosis.smoothness.record import (
    Smoothness,
    SmoothnessArm,
    SmoothnessMeasurement,
    SmoothnessRun,
)
from equipoise.diagnosis.smoothness.variants import WITHOUT
from equipoise.records import Estimate

FIX = "with batch norm's shift β at 0.5"


def seen(step, reach, *, beta=10.0, loss=2.0, rate=0.1, norm=1.0):
    """A measurement whose gradient has changed by 100 % after ``reach`` steps."""
    points = tuple(rate * m for m in (0.5, 1.0, 2.0, 4.0))
    changes = tuple(norm * eta / (reach * rate) for eta in points)
    return SmoothnessMeasurement(step, loss, norm, points, (loss,) * 4, changes, beta, 0.5)


def arm(name=UNCHANGED, *, reaches=(2.0, 2.0, 2.0), betas=(10.0,) * 3, final=0.5, seeds=3):
    steps = (0, 30, 60)
    measurements = tuple(
        seen(step, reach, beta=beta)
        for step, reach, beta in zip(steps, reaches, betas, strict=True)
    )
    runs = tuple(SmoothnessRun(seed, measurements, final) for seed in range(1, seeds + 1))
    error = 0.01 if seeds > 1 else math.nan
    return SmoothnessArm(name, 0.1, ((0.1, final),), False, runs, Estimate(final, error, "mean"))


def found(*arms, optimizer="sgd"):
    return Smoothness(optimizer, 60, len(arms[0].runs), arms)


def titles(record):
    return [finding.title for finding in conclude_smoothness(record)]


def test_without_a_record_there_is_nothing_to_say():
    assert conclude_smoothness(None) == []


class TestReliability:
    def test_less_than_a_step(self):
        (finding,) = conclude_smoothness(found(arm(reaches=(2.0, 0.8, 0.6))))
        assert (
            finding.title
            == "The gradient is reliable for less than one step of SGD without momentum"
        )
        assert "after 30, 60 steps" in finding.detail
        assert "at the earliest after 0.60 of a step" in finding.detail
        assert "3 seeds" in finding.detail

    def test_only_at_the_start(self):
        (finding,) = conclude_smoothness(found(arm(reaches=(0.3, 2.0, 2.0))))
        assert finding.title.startswith(
            "At initialisation the gradient is reliable for less than one step"
        )
        assert "at initialisation, the gradient" in finding.detail
        assert "after less than 0.5 of a step" in finding.detail

    def test_a_whole_step_everywhere(self):
        (finding,) = conclude_smoothness(found(arm()))
        assert finding.severity == "good"
        assert finding.title == "The gradient is reliable for a whole step of the optimiser"

    def test_seeds_that_disagree_say_nothing(self):
        short, long = arm(reaches=(2.0, 0.6, 2.0)), arm()
        mixed = dataclasses.replace(long, runs=(*short.runs[:1], *long.runs[1:]))
        assert titles(found(mixed)) == []

    @pytest.mark.parametrize(("optimizer", "is_known"), [("sgd", True), ("adam", False)])
    def test_the_edge_of_stability_is_known_for_plain_sgd_only(self, optimizer, is_known):
        record = found(arm(reaches=(0.8,) * 3, betas=(20.0,) * 3), optimizer=optimizer)
        (finding,) = conclude_smoothness(record)
        assert ("β times the learning rate is 2.0;" in finding.detail) is is_known

    def test_a_model_that_could_not_be_measured(self):
        lost = dataclasses.replace(arm(), reason="no trainable parameter", runs=())
        (finding,) = conclude_smoothness(Smoothness("sgd", 60, 3, (lost,)))
        assert (finding.title, finding.detail) == (
            "Smoothness could not be measured",
            "no trainable parameter",
        )


class TestNormalisers:
    def verdict(self, with_them, without, seeds=3):
        plain = arm(betas=(99.0, *with_them), seeds=seeds)
        return titles(found(plain, arm(WITHOUT, betas=(1.0, *without), seeds=seeds)))[1]

    def test_they_smooth_if_every_pair_says_so(self):
        """The start, where a plateau without them is smoother, does not count."""
        assert self.verdict((10.0, 10.0), (20.0, 11.0)) == (
            "The normalisers smooth the loss along the step"
        )

    def test_they_do_not_if_every_pair_says_so(self):
        assert self.verdict((10.0, 10.0), (9.0, 5.0)) == (
            "The normalisers do not smooth the loss along the step"
        )

    def test_anything_else_is_unclear(self):
        assert "is unclear" in self.verdict((10.0, 10.0), (9.0, 11.0))
        assert "is unclear" in self.verdict((10.0, 10.0), (10.0, 11.0))

    def test_one_seed_is_called_one_run(self):
        assert self.verdict((10.0, 10.0), (20.0, 11.0), seeds=1).startswith("In one run: ")

    def test_the_numbers_and_conditions_are_there(self):
        other = arm(WITHOUT, betas=(1.0, 20.0, 30.0), final=0.8)
        detail = conclude_smoothness(found(arm(), other))[1].detail
        for words in ("10 as it is, 25 without", "in 6 of 6 pairs", "3 seeds", "0.500 ± 0.010"):
            assert words in detail

    def test_on_a_plateau_nothing_is_compared(self):
        stuck = arm(WITHOUT, betas=(0.1,) * 3, final=1.95)
        title = titles(found(arm(), stuck))[1]
        assert title.startswith("Without normalisers the loss hardly falls")

    def test_divergence_is_reported(self):
        lost = arm(WITHOUT, final=math.inf)
        lost = dataclasses.replace(lost, rates=((0.01, math.inf), (0.1, math.inf)))
        _, finding = conclude_smoothness(found(arm(), lost))
        assert finding.title == "Without normalisers training diverges"
        assert "learning rates tried on another seed: 0.01, 0.1" in finding.detail

    def test_divergence_in_some_seeds_is_counted(self):
        other = arm(WITHOUT, final=math.inf)
        runs = (other.runs[0], *arm(WITHOUT).runs[1:])
        title = titles(found(arm(), dataclasses.replace(other, runs=runs)))[1]
        assert title == "Without normalisers training diverges in 1 of 3 seeds"

    def test_a_model_that_diverges_itself_is_not_compared(self):
        assert titles(found(arm(final=math.inf), arm(WITHOUT))) == ["Training diverges"]

    def test_a_fix_is_judged_like_them(self):
        plain, fixed = arm(), arm(FIX, betas=(9.0, 9.0, 9.0))
        assert titles(found(plain, fixed))[1] == f"The loss along the step is smoother {FIX}"
        rougher = arm(FIX, betas=(9.0, 11.0, 11.0))
        assert titles(found(plain, rougher))[1] == (
            f"The loss along the step is less smooth {FIX}"
        )

    def test_an_arm_that_was_not_tried_is_not_judged(self):
        untried = dataclasses.replace(arm(WITHOUT), reason="it failed", runs=())
        assert len(titles(found(arm(), untried))) == 1


class TestTheStart:
    def start(self, reliable, other=None):
        arms = [self.first(UNCHANGED, reliable)]
        if other is not None:
            arms.append(other)
        return Smoothness("sgd", 0, 1, tuple(arms))

    def first(self, name, reliable, norm=1.0):
        points = (1e-4, 1e-2, 1.0)
        changes = tuple(norm * eta / reliable for eta in points)
        measurement = SmoothnessMeasurement(0, 2.3, norm, points, (2.3,) * 3, changes, 1.0)
        nothing = Estimate(math.nan, math.nan, "not trained")
        return SmoothnessArm(
            name, 0.1, (), False, (SmoothnessRun(0, (measurement,), math.nan),), nothing
        )

    def test_a_common_rate_that_is_too_large_is_reported(self):
        (finding,) = conclude_smoothness(self.start(0.003))
        assert finding.severity == "note"
        assert finding.title == (
            "At initialisation the gradient is reliable only for steps below 0.0030"
        )
        assert "one initialisation" in finding.detail
        assert "smoothness=SmoothnessOptions()" in finding.remedy

    def test_one_that_is_not_is_no_finding(self):
        assert titles(self.start(0.3)) == []

    def test_a_plateau_is_called_one(self):
        flat = self.first(WITHOUT, 50.0, norm=1e-3)
        detail = conclude_smoothness(self.start(0.003, flat))[0].detail
        assert "Without normalisers it is reliable for steps up to 1." in detail
        assert "1,000 times as long as without normalisers" in detail

    def test_below_all_points_it_is_a_bound(self):
        (finding,) = conclude_smoothness(self.start(1e-6))
        assert finding.title == (
            "At initialisation the gradient is reliable only for steps below 1×10⁻⁴"
        )
        assert finding.detail.startswith("Even the smallest step, 1×10⁻⁴, changes the gradient")
