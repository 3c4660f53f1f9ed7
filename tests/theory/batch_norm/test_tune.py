"""The mildest change with which a depth trains: on the boundary, and confirmed by networks."""

import math

import numpy as np
import pytest
import torch

from equipoise.theory import (
    backward_spectrum,
    critical_eps,
    explosion_rate,
    layer_norm,
    max_trainable_depth,
    simulate_networks,
)
from equipoise.theory.batch_norm.tune import tune

OPTIONS = {"gamma": 1.0, "beta": 0.0, "eps": 0.0}

CASES = [
    ("relu", 64, 60, "beta"),
    ("tanh", 64, 150, "gamma"),
    ("tanh", 8, 80, "gamma"),
    ("tanh", 8, 200, "eps"),
    ("hardtanh", 16, 90, "gamma"),
    ("silu", 16, 70, "beta"),
    ("erf", 32, 150, "eps"),
]


class TestTheMildestChange:
    @pytest.mark.parametrize(("name", "B", "depth", "knob"), CASES)
    def test_it_suffices_and_a_milder_one_does_not(self, name, B, depth, knob):
        tuning = tune(name, B, depth=depth, knob=knob)
        start = OPTIONS[knob]
        assert tuning.start == start
        assert tuning.max_depth >= depth
        assert tuning.best == tuning.value
        milder = start + 0.99 * (tuning.value - start)
        rate = backward_spectrum(name, B, **(OPTIONS | {knob: milder})).G
        assert max_trainable_depth(rate) < depth
        assert rate.stable

    def test_no_change_where_none_is_needed(self):
        tuning = tune("tanh", 64, depth=30, knob="gamma")
        assert tuning.value == 1.0
        assert "without a change" in tuning.reason

    def test_factor_sets_what_trains(self):
        strict, lax = (tune("relu", 64, depth=40, knob="beta", factor=f) for f in (8, 17))
        assert strict.value > lax.value == 0.0
        assert 40 * math.log(strict.rate.value) <= 8


class TestNone:
    def test_the_linear_network_is_a_floor(self):
        tuning = tune("tanh", 8, depth=200, knob="gamma")
        assert tuning.value is None
        assert "even a linear network's gradients grow ×1.2 per layer" in tuning.reason
        # γ → 0 makes tanh linear: the best that was found is the floor itself.
        assert tuning.best == 2**-8
        assert tuning.rate.value == pytest.approx(6 / 5, abs=1e-4)

    def test_a_direction_that_worsens_is_left(self):
        """Steep activations take long; no larger γ than 4 is tried where growth only rises."""
        tried = []

        def rate(setting):
            tried.append(setting.gamma)
            return explosion_rate(setting)

        tuning = tune("tanh", 8, depth=200, knob="gamma", rate=rate)
        assert max(tried) == pytest.approx(4)
        assert min(tried) == pytest.approx(2**-8)
        assert tuning.best == tune("tanh", 8, depth=200, knob="gamma").best

    def test_gamma_does_nothing_to_relu(self):
        tuning = tune("relu", 64, depth=60, knob="gamma")
        assert tuning.value is None
        assert "positive-homogeneous" in tuning.reason
        assert str(tuning).startswith("no gamma found: ")

    def test_relu_collapses_before_eps_helps(self):
        """Beyond ε_c gradients would be smaller, but all samples are equal there."""
        tuning = tune("relu", 64, depth=60, knob="eps")
        assert tuning.value is None
        assert "samples soon become equal" in tuning.reason
        beyond = backward_spectrum("relu", 64, eps=1.2 * critical_eps("relu", batch_size=64)).G
        assert max_trainable_depth(beyond) > 60

    def test_where_everything_is_unstable_the_reason_says_so(self):
        tuning = tune("silu", 128, depth=70, knob="eps")
        assert tuning.value is None
        assert "unstable" in tuning.reason

    def test_a_state_that_survives_above_the_critical_eps_counts(self):
        """Flat at 0, so ε_c = 0, but steeper elsewhere."""
        assert critical_eps("alpha_relu(2)", batch_size=4) == 0
        tuning = tune("alpha_relu(2)", 4, depth=20, knob="eps")
        assert tuning.value == pytest.approx(0.0257, rel=0.01)
        assert tuning.rate.stable

    def test_a_value_leaves_some_signal(self):
        """At ε = 2 samples become equal below γ = √2; a hair above it nothing could be learnt."""
        assert tune("tanh", 64, depth=100, knob="gamma", eps=2.0).value > 1.02 * math.sqrt(2)


class TestOtherRates:
    """The same search for a network that does not grow as batch norm says."""

    @staticmethod
    def under_layer_norm(setting):
        return layer_norm(setting).rate

    def test_it_suffices_and_a_milder_one_does_not(self):
        tuning = tune("tanh", 8, depth=100, knob="gamma", rate=self.under_layer_norm)
        assert tuning.max_depth >= 100 > max_trainable_depth(layer_norm("tanh").rate)
        assert tuning.rate == layer_norm("tanh", gamma=tuning.value).rate
        milder = 1 + 0.99 * (tuning.value - 1)
        assert max_trainable_depth(layer_norm("tanh", gamma=milder).rate) < 100
        # Batch norm at this size cannot train so deep, whatever its scale.
        assert tune("tanh", 8, depth=100, knob="gamma").value is None

    @pytest.mark.parametrize("knob", ["eps", "activation"])
    def test_other_knobs_are_refused(self, knob):
        with pytest.raises(ValueError, match=f"knob must be gamma or beta, got '{knob}'"):
            tune("tanh", 8, depth=100, knob=knob, rate=self.under_layer_norm)


class TestRanking:
    def test_activations_are_ranked_and_one_is_chosen(self):
        tuning = tune("relu", 32, depth=60, knob="activation")
        depths = [r.max_depth for r in tuning.ranking if r.rate.stable is not False]
        assert depths == sorted(depths, reverse=True)
        assert tuning.ranking[0].activation == "identity"
        assert tuning.max_depth >= 60
        assert not any(60 <= depth < tuning.max_depth for depth in depths)

    def test_unstable_ones_come_last(self):
        ranking = tune("relu", 64, depth=60, knob="activation").ranking
        flags = [ranked.rate.stable is False for ranked in ranking]
        assert flags == sorted(flags)
        assert any(flags)

    def test_none_is_deep_enough(self):
        tuning = tune("relu", 8, depth=500, knob="activation")
        assert tuning.value is None
        assert "identity, leaves 88" in tuning.reason

    def test_functions_that_share_a_name_are_two(self):
        def steep(x):
            return torch.tanh(3 * x)

        def flat(x):
            return torch.tanh(0.5 * x)

        flat.__name__ = "steep"
        tuning = tune(steep, 64, depth=100, knob="activation", candidates=[flat])
        assert len(tuning.ranking) == 2
        assert tuning.reason != "trainable without a change"
        assert tuning.max_depth > 100

    def test_collapsed_ones_are_not_recommended(self):
        tuning = tune("tanh", 64, depth=60, knob="activation", eps=1.05)
        assert tuning.value not in ("tanh", "identity", "sin")

    def test_a_candidate_that_passes_no_signal_is_left_out(self):
        tuning = tune("tanh", 64, depth=60, knob="activation", beta=-9.0)
        assert "relu" not in {ranked.activation for ranked in tuning.ranking}

    def test_own_candidates(self):
        tuning = tune("relu", 32, depth=60, knob="activation", candidates=["tanh", torch.sin])
        assert {ranked.activation for ranked in tuning.ranking} == {"relu", "tanh", "sin"}


@pytest.mark.parametrize(("name", "B", "depth", "knob"), CASES[:4])
def test_networks_at_the_tuned_setting_grow_as_promised(name, B, depth, knob):
    tuning = tune(name, B, depth=depth, knob=knob)
    run = simulate_networks(name, B, width=300, depth=20, networks=16, **{knob: tuning.value})
    slopes = -np.diff(run.log_gradients[:, 4:], axis=1).mean(1)
    error = slopes.std(ddof=1) / 16**0.5 + 1 / 300  # and the bias of finite width
    assert abs(slopes.mean() - math.log(tuning.rate.value)) < 4 * error
    assert depth * slopes.mean() == pytest.approx(16, abs=depth * 4 * error)
    before = simulate_networks(name, B, width=300, depth=20, networks=2)
    assert -np.diff(before.log_gradients[:, 4:], axis=1).mean() > slopes.mean() + 2 * error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"knob": "delta"}, "knob must be gamma, beta, eps or activation, got 'delta'"),
        ({"depth": 0}, "depth must be a whole number of at least 1; got 0"),
        ({"factor": -1}, "factor must be a finite number above 0; got -1"),
        ({"batch_size": 2}, "batch_size must be at least 4, got 2"),
        ({"depth": True}, "depth must be a whole number of at least 1; got True"),
        ({"candidates": "tanh"}, "candidates must be a list, got 'tanh'"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        tune("relu", **({"batch_size": 8, "depth": 10} | arguments))
