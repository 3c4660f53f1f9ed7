"""The limits of the theory: what cannot be resolved or does not exist is refused."""

import numpy as np
import pytest
import torch

from equipoise.theory import (
    Activation,
    Architecture,
    backward_spectrum,
    explosion_rate,
    group_norm,
    iterate_map,
    layer_norm,
    residual_growth,
    simulate_networks,
    simulate_spectra,
    vanilla,
)
from equipoise.theory.activation.catalogue import alpha_relu
from equipoise.theory.covariance.linear_case import linear_rate, linear_step
from equipoise.theory.simulation.spectra import sample_spectra


class TestSteepness:
    """Quadrature that misses a step would report a rate of 0, exactly."""

    @pytest.mark.parametrize(
        ("name", "gamma"),
        [(n, g) for n in ("tanh", "erf") for g in (1e5, 1e6)]
        + [("sigmoid", 1e6), ("sigmoid", 1e7)],
    )
    def test_batch_norm(self, name, gamma):
        with pytest.raises(ValueError, match="too steep at gamma"):
            explosion_rate(name, 8, gamma=gamma)

    def test_below_that_the_error_bound_holds(self):
        """The rate is proportional to γ where tanh is as good as a step."""
        rate = explosion_rate("tanh", 8, gamma=1000.0)
        assert abs(rate.value / 1000 - 0.6066) < 1e-4 + rate.error / 1000

    def test_layer_norm(self):
        """Likewise proportional to γ."""
        for gamma in (1e3, 1e4, 1e7):
            assert layer_norm("tanh", gamma=gamma).rate.value / gamma == pytest.approx(
                0.532, rel=1e-3
            )
        # A step far from β: less by the density there. A step far from 0 has no digits left.
        assert layer_norm("tanh", gamma=1e16, beta=1.23e15).rate.value / 1e16 == pytest.approx(
            4 / 3 / np.sqrt(2 * np.pi) * np.exp(-(0.123**2) / 2), rel=1e-12
        )
        far = Activation("far step", lambda x: torch.tanh(x - 1.23e17))
        with pytest.raises(ValueError, match="too steep on pre-activations"):
            layer_norm(far, gamma=1e18)

    @pytest.mark.parametrize("gamma", [1e-3, 0.3, 7.0])
    def test_moderate_scales_are_not_refused(self, gamma):
        for name in ("tanh", "relu", "gelu", "square"):
            assert layer_norm(name, gamma=gamma).rate.value > 0
            assert group_norm(name, 8, gamma=gamma).rate.value > 0

    def test_group_norm(self):
        with pytest.raises(ValueError, match="too steep at gamma"):
            group_norm("tanh", 8, gamma=1e6)

    def test_vanilla(self):
        """χ₁ is proportional to the weights' size where tanh is as good as a step."""
        first, second = (
            vanilla("tanh", weight_variance=v).chi_1.value / v**0.5 for v in (1e8, 1e12)
        )
        assert first == pytest.approx(second, rel=1e-3)
        far = Activation("far step", lambda x: torch.tanh(x - 1.23e15))
        with pytest.raises(ValueError, match="too steep on pre-activations"):
            vanilla(far, weight_variance=1e32)


class TestPowers:
    def test_errors_grow_where_slopes_are_barely_integrable(self):
        """By Gauss–Gegenbauer quadrature over two samples, the singularity substituted away."""
        rate = explosion_rate(alpha_relu(0.51), 8, beta=0.3)
        assert abs(rate.value - 20.190) <= rate.error + 1e-3
        assert rate.error > 0.01

    @pytest.mark.parametrize(
        ("alpha", "B", "gamma", "beta"),
        [(1.5, 12, 0.5, 2.5), (1.5, 19, 1.0, 6.0), (0.6, 19, 1e-5, 0.5)],
    )
    def test_out_of_reach_a_kink_does_not_matter(self, alpha, B, gamma, beta):
        """Then φ is smooth: the other route, at a batch too large for angles, agrees."""
        rate = explosion_rate(alpha_relu(alpha), B, gamma=gamma, beta=beta)

        def smooth(x):
            return x.clamp(min=1e-3) ** alpha

        from equipoise.theory import Activation

        other = explosion_rate(Activation("smooth", smooth), B, gamma=gamma, beta=beta)
        assert rate.value == pytest.approx(other.value, abs=rate.error + other.error)
        assert rate.error < 1e-8

    def test_the_limit_of_a_small_gamma_is_the_linear_network(self):
        rate = explosion_rate(alpha_relu(0.6), 19, gamma=1e-5, beta=0.5)
        assert rate.value == pytest.approx(17 / 16, abs=1e-8)


class TestMoments:
    def test_growth_like_a_gaussian_has_none(self):
        assert layer_norm(lambda x: torch.exp(0.1 * x * x)).rate.value > 0
        with pytest.raises(ValueError, match="grows too fast"):
            layer_norm(lambda x: torch.exp(0.3 * x * x))

    def test_batch_norm_bounds_its_samples(self):
        assert backward_spectrum(lambda x: torch.exp(0.3 * x * x), 8).G.value > 1


class TestCollapse:
    def test_a_batch_that_dies_out_is_equal_and_settled(self):
        run = iterate_map("tanh", 8, steps=3, eps=2.0)
        assert (run.is_bsb1, run.has_settled, run.spread) == (True, True, 0.0)

    def test_eigenvalues_at_the_level_of_rounding(self):
        with pytest.raises(ValueError, match="within a factor of 1e\\+12"):
            linear_step([1e-16, 1.0])


class TestCounts:
    """Any integer type counts; booleans and fractions do not."""

    def test_numpy_integers(self):
        eight = np.int64(8)
        assert group_norm("relu", eight).rate.value == pytest.approx(1.2)
        assert residual_growth("relu", eight, blocks=np.int32(2)).factors.shape == (2,)
        assert linear_rate(np.int64(2)).value == 0.5
        assert iterate_map("relu", eight, steps=np.int64(1)).covariances.shape == (2, 8, 8)
        run = simulate_networks("relu", eight, width=np.int64(8), depth=2, networks=1)
        assert run.log_gradients.shape == (1, 2)
        assert sample_spectra("relu", 8.0, samples=np.int64(4)).backward.batch_size == 8

    @pytest.mark.parametrize(
        "call",
        [
            lambda: residual_growth("relu", 8, blocks=True),
            lambda: simulate_networks("relu", 8, depth=0),
            lambda: simulate_spectra("relu", 8, networks=0),
            lambda: simulate_spectra("relu", 8, depth=0),
            lambda: Architecture(normaliser="group norm", group_size=0),
            lambda: Architecture(stages=1.5),
            lambda: explosion_rate("relu", 10**24),
        ],
    )
    def test_others_are_named(self, call):
        with pytest.raises(ValueError, match=r"must be (a whole number|at most)"):
            call()
