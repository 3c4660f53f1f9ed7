"""Every variant is measured alike: the same weights, batches and noise, its own best rate."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from equipoise import models
from equipoise.diagnosis.problem import Problem
from equipoise.diagnosis.short_training import UNCHANGED
from equipoise.diagnosis.smoothness.measure import (
    SmoothnessOptions,
    points_around,
    smoothness,
    smoothness_at_start,
)
from equipoise.diagnosis.smoothness.variants import WITHOUT, fixes
from support.diagnosis_examples import DIGITS, noisy, normalised, shift_remedy

SHORT = SmoothnessOptions(rate=0.1, steps=8, measurements=3, points=4, seeds=2)


class TestTraining:
    def test_every_arm_and_seed_is_measured(self):
        found = smoothness(normalised, DIGITS, SHORT, batch_size=16)
        assert [arm.name for arm in found.arms] == [UNCHANGED, WITHOUT]
        for arm in found.arms:
            assert arm.rate == 0.1
            assert [run.seed for run in arm.runs] == [1, 2]
            for run in arm.runs:
                assert [one.step for one in run.measurements] == [0, 4, 8]
                assert run.measurements[0].steps == pytest.approx((0.05, 0.1, 0.2, 0.4))
                assert all(abs(one.shift_cosine) <= 1 for one in run.measurements)
        assert (found.optimizer, found.steps, found.seeds) == ("sgd", 8, 2)

    def test_arms_share_weights_batches_and_noise(self):
        """A change that changes nothing gives the same numbers to the last bit."""
        found = smoothness(noisy, DIGITS, SHORT, batch_size=16, fixes={"no change": copy.deepcopy})
        assert found.arms[0].runs == found.arms[2].runs
        assert found.arms[0].runs != found.arms[1].runs

    def test_it_is_the_same_when_repeated(self):
        first, second = (smoothness(noisy, DIGITS, SHORT, batch_size=16) for _ in range(2))
        assert first == second

    def test_every_arm_has_its_own_best_rate(self):
        options = replace(SHORT, rate=None, seeds=1, measurements=2, points=2)
        for arm in smoothness(normalised, DIGITS, options, batch_size=16).arms:
            scores = dict(arm.rates)
            assert scores[arm.rate] == min(scores.values())

    def test_without_normalisers_there_is_one_arm(self):
        def plain():
            return models.mlp(64, 10, depth=2, width=16, norm="none")

        found = smoothness(plain, DIGITS, SHORT, batch_size=16)
        assert [arm.name for arm in found.arms] == [UNCHANGED]

    def test_divergence_is_kept(self):
        def steep(model, batch):
            return 1e3 * sum(p.square().sum() for p in model.parameters()).square()

        options = replace(SHORT, rate=1.0)
        (arm, _) = smoothness(normalised, DIGITS, options, loss_fn=steep, batch_size=16).arms
        assert arm.loss.value == math.inf
        assert all(run.loss == math.inf for run in arm.runs)
        assert len(arm.runs[0].measurements) < 3

    def test_a_change_that_cannot_be_made_says_why(self):
        def fail(model):
            raise RuntimeError("no such layer")

        found = smoothness(normalised, DIGITS, SHORT, batch_size=16, fixes={"magic": fail})
        assert found.arms[2].name == "with magic"
        assert found.arms[2].reason == "the model cannot be changed: no such layer"

    def test_a_model_that_needs_its_normalisers_says_so(self):
        class Peeking(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = noisy()

            def forward(self, x):
                return self.net(x) * self.net[2].weight.mean()

        found = smoothness(Peeking, DIGITS, SHORT, batch_size=16)
        assert "'Identity' object has no attribute 'weight'" in found.arms[1].reason

    def test_progress_ends_at_the_total(self):
        seen = []
        smoothness(normalised, DIGITS, SHORT, batch_size=16, progress=lambda *at: seen.append(at))
        assert seen[0] == ("measuring smoothness", 0, 4)
        assert seen[-1] == ("measuring smoothness", 4, 4)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"optimizer": "lbfgs"}, "optimizer must be one of sgd, adam, adamw; got 'lbfgs'"),
            ({"rate": 0.0}, "rate must be a finite number above 0; got 0.0"),
            ({"rate": math.inf}, "rate must be a finite number above 0"),
            ({"steps": 3}, "steps must be a whole number of at least 4; got 3"),
            ({"measurements": 1}, "measurements must be a whole number of at least 2; got 1"),
            ({"points": 1}, "points must be a whole number of at least 2; got 1"),
            ({"seeds": 0}, "seeds must be a whole number of at least 1; got 0"),
        ],
    )
    def test_wrong_options_are_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            SmoothnessOptions(**options)


def at_start(build, batch_size=16, fixes=None):
    return smoothness_at_start(Problem.prepare(build, DIGITS, batch_size=batch_size), fixes)


class TestTheStart:
    def test_points_reach_from_far_below_a_common_rate_to_above_it(self):
        found = at_start(normalised)
        (run,) = found.arms[0].runs
        assert (found.steps, found.seeds, found.arms[0].rate) == (0, 1, 0.1)
        assert run.measurements[0].steps[-1] == pytest.approx(1.0)
        assert np.allclose(np.diff(np.log10(run.measurements[0].steps)), 0.5)

    def test_explosion_shortens_the_reliable_step(self):
        """In a network four times as deep the gradient is reliable for much smaller steps."""

        def reliable(depth):
            build = lambda: models.mlp(64, 10, depth=depth, width=64)  # noqa: E731 - its depth
            arm, without = at_start(build, 64).arms
            assert (
                without.runs[0].measurements[0].gradient_norm
                < arm.runs[0].measurements[0].gradient_norm
            )
            return arm.runs[0].measurements[0].reliable_step

        assert reliable(20) < 0.1 * reliable(5)

    def test_a_factory_that_returns_the_same_model_keeps_it(self):
        model = normalised()
        before = copy.deepcopy(model.state_dict())
        remedy = {"shift": fixes([shift_remedy(0.5)])["batch norm's shift β at 0.5"]}
        found = at_start(lambda: model, fixes=remedy)
        assert [arm.reason for arm in found.arms] == [None] * 3
        assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
        assert sum(isinstance(m, nn.BatchNorm1d) for m in model.modules()) == 3

    def test_a_frozen_model_is_refused(self):
        def frozen():
            return normalised().requires_grad_(False)

        with pytest.raises(ValueError, match="no trainable parameter"):
            at_start(frozen)


def test_points_are_geometric_from_half_the_rate_to_four_times_it():
    points = points_around(0.3, 8)
    assert (points[0], points[-1]) == pytest.approx((0.15, 1.2))
    assert np.allclose(np.diff(np.log(points)), math.log(8) / 7)
