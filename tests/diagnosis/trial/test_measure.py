"""Side by side: the same weights, batches and noise, each variant at its own best rate."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from equipoise import data, models
from equipoise.diagnosis.trial import measure as trials
from equipoise.diagnosis.trial.findings import conclude_trial
from equipoise.diagnosis.trial.measure import TrialOptions, try_bnp

DIGITS = data.load("digits")
RATES = (0.01, 0.03, 0.1)


def plain():
    return models.mlp(64, 10, depth=3, width=100, norm="none")


def normalised():
    return models.mlp(64, 10, depth=2, width=24)


@pytest.fixture(scope="module")
def small_batches():
    return try_bnp(plain, DIGITS, TrialOptions(steps=80, seeds=3, rates=RATES), batch_size=6)


class TestSmallBatches:
    def test_preconditioning_helps_more_than_the_control(self, small_batches):
        gains = {gain.name: gain for gain in small_batches.gains}
        assert gains["BNP"].helps
        assert gains["BNP"].difference.value < 2 * gains["standardised inputs"].difference.value
        assert gains["BNP"].steps < small_batches.steps

    def test_every_arm_has_its_own_rate_and_curve(self, small_batches):
        assert [arm.name for arm in small_batches.arms] == [
            "unchanged",
            "standardised inputs",
            "BNP",
        ]
        for arm in small_batches.arms:
            scores = dict(arm.rates)
            assert scores[arm.rate] == min(scores.values())
            assert arm.curve.steps[-1] == 80
            assert len(arm.spread) == len(arm.curve.losses)

    def test_it_is_the_same_when_repeated(self, small_batches):
        again = try_bnp(plain, DIGITS, TrialOptions(steps=80, seeds=3, rates=RATES), batch_size=6)
        for one, other in zip(small_batches.arms, again.arms, strict=True):
            assert (one.rate, one.loss, one.curve) == (other.rate, other.loss, other.curve)

    def test_what_is_concluded(self, small_batches):
        finding, *_ = conclude_trial(small_batches)
        assert finding.severity == "good"
        assert "BNP" in finding.remedy


def test_arms_share_weights_batches_and_noise(monkeypatch):
    """The first loss comes before any step: whatever an arm does to steps, it is the same."""
    first = []
    train = trials.train

    def recording(*arguments, **options):
        history = train(*arguments, **options)
        first.append(history.losses[0])
        return history

    monkeypatch.setattr(trials, "train", recording)

    def with_dropout():
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 10))

    trial = try_bnp(with_dropout, DIGITS, TrialOptions(steps=4, seeds=2, rates=(0.01, 0.02)))
    runs = len(trial.arms) * 2
    judged = first[-runs:]
    plain_losses, bnp_losses = judged[0::3], judged[2::3]
    assert plain_losses == bnp_losses
    assert len(set(plain_losses)) == 2


def test_batch_norm_may_be_replaced():
    trial = try_bnp(normalised, DIGITS, TrialOptions(steps=8, seeds=2, rates=RATES))
    assert [arm.name for arm in trial.arms][-1] == "BNP instead of batch norm"


def test_a_model_that_cannot_be_preconditioned_says_why():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(64, 10) / 8)

        def forward(self, x):
            return x.flatten(1) @ self.scale

    trial = try_bnp(Scale, DIGITS, TrialOptions(steps=8, seeds=2, rates=RATES))
    assert "BNP" not in [gain.name for gain in trial.gains]
    assert trial.arms[-1].reason
    (finding,) = conclude_trial(trial)
    assert finding.title == "Preconditioning could not be tried"


def test_rates_that_all_diverge_are_reported():
    trial = try_bnp(plain, DIGITS, TrialOptions(steps=30, seeds=2, rates=(1e30, 1e31)))
    assert all(math.isnan(arm.rate) for arm in trial.arms[:2])
    assert trial.arms[0].diverged == 2
    assert trial.arms[0].curve is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "lbfgs"}, "optimizer must be one of sgd, adam, adamw"),
        ({"steps": 3}, "steps must be at least 4, got 3"),
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"rates": (0.1, 0.1)}, "at least two, positive and rising"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TrialOptions(**options)
