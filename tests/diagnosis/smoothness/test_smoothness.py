"""Measurements show what training would do, and do not change it."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from equipoise import data, models
from equipoise.diagnosis.problem import Problem
from equipoise.diagnosis.record import Remedy
from equipoise.diagnosis.short_training import UNCHANGED
from equipoise.diagnosis.smoothness import training as smoothness_training
from equipoise.diagnosis.smoothness.along_step import measure_along_step
from equipoise.diagnosis.smoothness.measure import (
    SmoothnessOptions,
    points_around,
    smoothness,
    smoothness_at_start,
)
from equipoise.diagnosis.smoothness.variants import WITHOUT, fixes
from equipoise.records import Estimate
from equipoise.training import cross_entropy

DIGITS = data.load("digits")
SHORT = SmoothnessOptions(rate=0.1, steps=8, measurements=3, points=4, seeds=2)


def normalised():
    return models.mlp(64, 10, depth=3, width=16)


def noisy():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 10)
    )


def batch(size=16):
    (found,) = DIGITS.batches(size, 1, torch.Generator().manual_seed(1))
    return found


def gradient(model, at):
    loss = cross_entropy(model, at)
    return loss.item(), torch.autograd.grad(loss, tuple(model.parameters()))


def length(tensors):
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))


class TestOneMeasurement:
    def test_it_is_what_deep_copies_find(self):
        model, at, steps = normalised().double(), batch(), (0.1, 0.4)
        at = at[0].double(), at[1]
        found = measure_along_step(model, cross_entropy, at, steps=steps)
        loss, g = gradient(copy.deepcopy(model), at)
        ratios = []
        for i, eta in enumerate(steps):
            moved = copy.deepcopy(model)
            with torch.no_grad():
                for parameter, d in zip(moved.parameters(), g, strict=True):
                    parameter -= eta * d
            there, change = gradient(moved, at)
            difference = length([a - b for a, b in zip(change, g, strict=True)])
            assert found.losses[i] == pytest.approx(there, rel=1e-10)
            assert found.gradient_changes[i] == pytest.approx(difference, rel=1e-10)
            ratios.append(difference / (eta * length(g)))
        assert found.loss == pytest.approx(loss)
        assert found.beta == pytest.approx(max(ratios), rel=1e-10)
        assert math.isnan(found.shift_cosine)

    @pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
    def test_it_lies_along_the_optimisers_own_step(self, kind):
        """At η = rate the loss is the one after a real step, from the state it has by then."""
        model, at = normalised(), batch()
        optimizer = kind(model.parameters(), lr=0.003)
        for _ in range(3):
            step(model, at, optimizer)
        found = measure_along_step(
            model, cross_entropy, at, steps=(0.0015, 0.003), optimizer=optimizer
        )
        plain = measure_along_step(model, cross_entropy, at, steps=(0.0015, 0.003))
        before = copy.deepcopy(optimizer.state_dict()["state"])
        step(model, at, optimizer)
        after = cross_entropy(copy.deepcopy(model), at).item()
        assert found.losses[1] == pytest.approx(after, rel=1e-4)
        assert plain.losses[1] != pytest.approx(after, rel=1e-2)
        assert before[0]["step"] == 3  # the measurement's own steps were taken back

    def test_momentum_has_a_step_of_its_own(self):
        model, at = normalised(), batch()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        step(model, at, optimizer)
        found = measure_along_step(model, cross_entropy, at, steps=(0.01,), optimizer=optimizer)
        step(model, at, optimizer)
        after = cross_entropy(copy.deepcopy(model), at).item()
        assert found.losses[0] == pytest.approx(after, rel=1e-4)

    def test_shift_is_measured_over_layers_with_weights(self):
        model, at = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), batch()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert math.isnan(
            measure_along_step(
                model, cross_entropy, at, steps=(0.1,), optimizer=optimizer
            ).shift_cosine
        )
        model = normalised()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        still = measure_along_step(model, cross_entropy, at, steps=(0.1,), optimizer=optimizer)
        assert still.shift_cosine == pytest.approx(1, abs=1e-3)

    def test_weights_that_are_shared_are_no_obstacle(self):
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        )
        model[2].weight = model[1].weight
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = measure_along_step(
            model, cross_entropy, batch(), steps=(0.1,), optimizer=optimizer
        )
        assert math.isfinite(found.shift_cosine)

    def test_steps_lost_in_rounding_are_left_out(self):
        steps = (1e-8, 1e-4, 1.0)
        at = batch()
        assert measure_along_step(normalised(), cross_entropy, at, steps=steps).steps == steps[1:]
        wide = measure_along_step(
            normalised().double(), cross_entropy, (at[0].double(), at[1]), steps=steps
        )
        assert wide.steps == steps

    def test_a_zero_gradient_keeps_all_points(self):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU())
        nn.init.constant_(model[1].bias, -1e4)
        found = measure_along_step(model, cross_entropy, batch(), steps=(0.1, 1.0))
        assert found.gradient_norm == 0
        assert math.isnan(found.beta)
        assert math.isnan(found.reliable_step)
        assert found.loss_band == (found.loss, found.loss)


def step(model, at, optimizer):
    optimizer.zero_grad()
    cross_entropy(model, at).backward()
    optimizer.step()


class TestTraining:
    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    def test_looks_leave_it_as_it_is(self, optimizer, monkeypatch):
        """Weights, statistics and dropout masks: the same to the last bit, measurements or not."""
        trained = []
        train = smoothness_training.train

        def recording(model, *rest, **options):
            history = train(model, *rest, **options)
            trained.append((history.losses, copy.deepcopy(model.state_dict())))
            return history

        monkeypatch.setattr(smoothness_training, "train", recording)
        smoothness(noisy, DIGITS, replace(SHORT, optimizer=optimizer), batch_size=16)
        monkeypatch.setattr(
            smoothness_training, "measure_along_step", lambda *given, **options: None
        )
        smoothness(noisy, DIGITS, replace(SHORT, optimizer=optimizer), batch_size=16)
        half = len(trained) // 2
        for looked, blind in zip(trained[:half], trained[half:], strict=True):
            assert looked[0] == blind[0]
            assert all(torch.equal(looked[1][key], blind[1][key]) for key in blind[1])

    def test_every_arm_and_seed_has_its_looks(self):
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
            ({"optimizer": "lbfgs"}, "optimizer must be one of sgd, adam, adamw, got 'lbfgs'"),
            ({"rate": 0.0}, "rate must be a positive number, got 0.0"),
            ({"rate": math.inf}, "rate must be a positive number"),
            ({"steps": 3}, "steps must be at least 4, got 3"),
            ({"measurements": 1}, "measurements must be at least 2, got 1"),
            ({"points": 1}, "points must be at least 2, got 1"),
            ({"seeds": 0}, "seeds must be at least 1, got 0"),
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
        remedy = {"shift": fixes([shift(0.5)])["batch norm's shift β at 0.5"]}
        found = at_start(lambda: model, fixes=remedy)
        assert [arm.reason for arm in found.arms] == [None] * 3
        assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
        assert sum(isinstance(m, nn.BatchNorm1d) for m in model.modules()) == 3

    def test_a_frozen_model_says_why(self):
        def frozen():
            return normalised().requires_grad_(False)

        found = at_start(frozen)
        assert "no trainable parameter" in found.arms[0].reason


def shift(value, *, verified=True):
    rate = Estimate(1.1, 0.0, "theory")
    return Remedy(
        normaliser="batch norm",
        parameter="bias",
        value=value,
        predicted_rate=rate,
        predicted_depth=9.0,
        measured_rate=rate,
        verified=verified,
        change=f"start batch norm's shift β at {value:g}",
        code="not read by anyone",
    )


class TestFixes:
    def test_the_first_verified_remedy_is_tried(self):
        found = fixes([shift(2.0, verified=False), shift(0.5), shift(1.0)])
        ((name, change),) = found.items()
        assert name == "batch norm's shift β at 0.5"
        model = normalised()
        changed = change(model)
        for old, new in zip(model.modules(), changed.modules(), strict=True):
            if isinstance(new, nn.BatchNorm1d):
                assert torch.equal(new.bias, torch.full((16,), 0.5))
                assert torch.equal(new.weight, old.weight)
                assert not old.bias.any()
            elif isinstance(new, nn.Linear):
                assert torch.equal(new.bias, old.bias) if new.bias is not None else True

    def test_without_one_there_is_none(self):
        assert fixes([shift(2.0, verified=False)]) == {}
        assert fixes([]) == {}


def test_points_are_geometric_from_half_the_rate_to_four_times_it():
    points = points_around(0.3, 8)
    assert (points[0], points[-1]) == pytest.approx((0.15, 1.2))
    assert np.allclose(np.diff(np.log(points)), math.log(8) / 7)
