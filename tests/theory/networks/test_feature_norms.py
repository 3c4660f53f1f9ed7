"""Layer, RMS and group norm: limits, closed forms and simulated networks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from equipoise.theory import (
    Architecture,
    explosion_rate,
    group_norm,
    layer_norm,
    simulate_networks,
    vanilla,
)
from equipoise.theory.simulation.networks import normalise


class TestLayerNorm:
    def test_relu_is_balanced(self):
        """E[φ′²] = E[φ²] = 1/2."""
        assert layer_norm("relu").rate.value == pytest.approx(1.0, abs=1e-14)

    def test_odd_activations_grow_like_batch_norm_at_a_large_batch(self):
        assert layer_norm("tanh").rate.value == pytest.approx(
            explosion_rate("tanh", 10**6).value, abs=1e-5
        )
        # Of others, batch norm divides by the variance, layer norm by the second moment.
        assert layer_norm("relu").rate.value < explosion_rate("relu", 10**6).value - 0.4

    def test_it_is_a_vanilla_network_of_unit_variance(self):
        """Where q* of a vanilla network is 1, normalising to 1 changes nothing."""
        variance = 1 / layer_norm("tanh").q.value  # σ_w² E[tanh(z)²] = 1
        plain = vanilla("tanh", weight_variance=variance)
        assert plain.q.value == pytest.approx(1.0, abs=1e-12)
        ours = layer_norm("tanh", weight_variance=variance)
        assert ours.q.value == pytest.approx(1.0, abs=1e-12)
        assert ours.rate.value == pytest.approx(plain.chi_1.value, abs=1e-12)

    def test_no_signal_above_the_critical_eps(self):
        assert layer_norm("tanh", eps=0.99).rate.value == pytest.approx(1.0, abs=2e-5)
        with pytest.raises(ValueError, match=r"no signal passes tanh at eps = 1\.5"):
            layer_norm("tanh", eps=1.5)


def assert_true(estimate, true, at_most):
    assert abs(estimate.value - true) <= estimate.error <= at_most * abs(true)


class TestStatedErrors:
    """True values by mpmath with 40 digits, from closed forms or by substitution at the kink."""

    @pytest.mark.parametrize(
        ("beta", "true"),
        [
            # Q/((1 + b²)Q − b pdf(b)) with Q = P(z > b), at b = −β
            (-6.0, 20.364785137353942),
            (-6.5, 23.506650544999626),
            (-8.0, 34.417363125287968),
        ],
    )
    def test_relu_in_the_tail(self, beta, true):
        assert_true(layer_norm("relu", beta=beta).rate, true, 1e-12)
        assert_true(layer_norm("relu", gamma=-3 / beta, beta=-3.0).rate, true, 1e-12)

    def test_growth_in_the_tail(self):
        """p² (2p − 3)!!/(2p − 1)!! for xᵖ; q = e^(2γ²) for exp."""
        assert_true(layer_norm(lambda x: x**12).rate, 144 / 23, 1e-12)
        assert_true(layer_norm(torch.exp, gamma=1.5).q, 90.017131300521814, 1e-12)

    def test_a_function_that_varies_too_far_out(self):
        for flat in (
            lambda: layer_norm("relu", beta=-40.0),
            lambda: group_norm("relu", 8, beta=-3),
        ):
            with pytest.raises(ValueError, match="no signal passes"):
                flat()
        with pytest.raises(ValueError, match="varies too far out"):
            layer_norm("relu", beta=-35.5)

    def test_where_biases_alone_keep_the_signal_up(self):
        """q is σ_b² and what 24 standard deviations out adds; smaller q lie beyond reach."""
        found = layer_norm(
            "gelu_tanh", gamma=18.497, beta=-113.806, eps=0.114, bias_variance=0.0083378
        )
        assert_true(found.q, 0.0083378, 1e-12)
        assert 0 < found.rate.value < 1e-100

    def test_flat_for_every_feature_of_a_group(self):
        """No feature of 8 is beyond √7 standard deviations: biases pass, gradients do not."""
        found = group_norm("relu", 8, beta=-2.8, bias_variance=0.25)
        assert (found.q.value, found.rate.value, found.rate.error) == (0.25, 0.0, 0.0)

    def test_no_digit_is_no_number(self):
        """Softplus at 20 standard deviations below 0 is flat but for rounding."""
        for norm in (layer_norm, lambda *a, **k: group_norm(*a, 8, **k)):
            with pytest.raises(ValueError, match="no signal passes"):
                norm(lambda x: torch.logaddexp(3 * x, 0 * x) / 3, beta=-14.0, eps=1e-4)

    @pytest.mark.parametrize(
        ("alpha", "beta", "true"),
        [
            (0.55, 0.5, 1.608636661692523),
            (0.6, 0.5, 0.9988895580733561),
            (0.75, 1.0, 0.4036699969371084),
        ],
    )
    def test_powers_beside_zero(self, alpha, beta, true):
        """Distances to a kink at 0 are exact, whatever β is."""
        assert_true(layer_norm(f"alpha_relu({alpha})", beta=beta).rate, true, 3e-13)

    @pytest.mark.parametrize(
        ("alpha", "kink", "beta", "true", "at_most"),
        [
            (0.6, 0.0, 1.0, 0.7829480989343573, 1e-12),
            (0.6, 0.5, 0.0, 1.420489172420481, 2e-3),
            (0.53, 0.5, 0.0, 3.684990441297927, 0.2),
            (0.9, 0.5, 0.0, 0.8073889432547575, 1e-12),
        ],
    )
    def test_powers_elsewhere_have_slopes_within_rounding_of_their_kink(
        self, alpha, kink, beta, true, at_most
    ):
        assert_true(layer_norm(lambda x: (x - kink).abs() ** alpha, beta=beta).rate, true, at_most)

    def test_groups_know_them_too(self):
        """E over the sphere, by the same substitution."""
        rate = group_norm(lambda x: (x - 0.5).abs() ** 0.6, 990, beta=-1.86824).rate
        assert_true(rate, 0.095635276109846651, 1e-3)

    @pytest.mark.parametrize(
        ("m", "gamma", "eps", "true"),
        [
            # over the angle and the radius in long double, panels towards 0
            (892, 16.0, 1e-8, 8.963266588987008),
            (8, 16.0, 1e-3, 11.05209359372273),
            (8, 1000.0, 0.0, 661.9068186111416),
        ],
    )
    def test_groups_of_steep_responses(self, m, gamma, eps, true):
        assert_true(group_norm("tanh", m, gamma=gamma, eps=eps).rate, true, 1e-11)

    def test_a_kink_beyond_the_search(self):
        """At 25; an integral between kinks, q solved by iteration."""
        found = layer_norm(
            lambda x: torch.tanh(x) + torch.relu(x - 25),
            gamma=16.9463,
            beta=2.37528,
            eps=0.0211798,
            bias_variance=0.198498,
        )
        assert_true(found.rate, 2.80485938045376, 1e-13)
        assert_true(found.q, 12.4524200719272, 1e-13)


class TestGroupNorm:
    @pytest.mark.parametrize("m", [4, 5, 8, 64])
    @pytest.mark.parametrize("name", ["identity", "relu", "leaky_relu(0.3)"])
    def test_homogeneous_activations_share_one_rate(self, name, m):
        """(m - 2)/(m - 3) for every activation of degree one."""
        assert group_norm(name, m).rate.value == pytest.approx((m - 2) / (m - 3), rel=1e-13)

    @settings(max_examples=30)  # of one limit, along one real number
    @given(
        name=st.sampled_from(["tanh", "gelu", "hardtanh"]),
        eps=st.sampled_from([0.0, 0.05]),
        beta=st.floats(-1, 1),
    )
    def test_large_groups_are_layer_norm(self, name, eps, beta):
        wide, many = (
            layer_norm(name, eps=eps, beta=beta),
            group_norm(name, 10**6, eps=eps, beta=beta),
        )
        assert many.rate.value == pytest.approx(wide.rate.value, abs=1e-5)
        assert many.q.value == pytest.approx(wide.q.value, abs=1e-5)

    def test_three_features_have_no_rate(self):
        with pytest.raises(ValueError, match=r"group_size must be .* at least 4; got 3"):
            group_norm("relu", 3)

    def test_a_batch_size_is_refused(self):
        with pytest.raises(
            TypeError, match=r"group_norm has no option 'batch_size'\. It takes beta,"
        ):
            group_norm("relu", 8, batch_size=16)

    def test_its_critical_eps_is_smaller(self):
        """F′(0) = (m - 1)/(m ε): at m = 6 the signal dies from 5/6 on."""
        assert group_norm("tanh", 6, eps=0.82).q.value > 0
        with pytest.raises(ValueError, match="no signal passes"):
            group_norm("tanh", 6, eps=0.84)


@pytest.mark.parametrize(
    ("architecture", "predict"),
    [
        (Architecture("layer norm"), layer_norm),
        (Architecture("rms norm"), layer_norm),
        (Architecture("group norm", 8), lambda *a, **k: group_norm(a[0], 8, **k)),
    ],
    ids=lambda value: getattr(value, "normaliser", ""),
)
@pytest.mark.parametrize(
    ("name", "options"),
    [("tanh", {"eps": 0.1}), ("gelu", {"beta": 0.3, "bias_variance": 0.1}), ("relu", {})],
)
def test_networks_grow_as_derived(architecture, predict, name, options):
    run = simulate_networks(
        name, 4, width=240, depth=18, networks=32, architecture=architecture, **options
    )
    ratios = np.exp(-np.diff(run.log_gradients[:, 2:], axis=1)).mean(1)
    error = ratios.std(ddof=1) / 32**0.5 + 1 / 240  # and the bias of finite width
    assert abs(ratios.mean() - predict(name, **options).rate.value) < 4 * error


@pytest.mark.parametrize(
    ("architecture", "module"),
    [
        (Architecture("layer norm"), nn.LayerNorm(16, eps=0.1)),
        (Architecture("group norm", 4), nn.GroupNorm(4, 16, eps=0.1)),
        (Architecture("rms norm"), nn.RMSNorm(16, eps=0.1)),
        (Architecture("batch norm"), nn.BatchNorm1d(16, eps=0.1)),
    ],
    ids=lambda value: getattr(value, "normaliser", ""),
)
def test_normalisers_are_pytorchs(architecture, module):
    h = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(normalise(architecture, h[None], 0.1)[0], module(h))


class TestStatedErrorsOfGroups:
    """Of groups, whose numbers are bounded: no rare one reaches where slopes are large."""

    GROUP, AT, STEEPNESS, GAMMA = 11, 0.9357, 55.45, 1.152225275447982

    def saturated(self, beta):
        return group_norm(
            lambda x: torch.tanh(self.STEEPNESS * (x - self.AT)),
            self.GROUP,
            gamma=self.GAMMA,
            beta=beta,
        )

    def true_rate(self, beta):
        """The formula at ε = 0, with 1/cosh² in place of the difference 1 - tanh²."""
        n = self.GROUP - 1
        angle = np.pi * ((np.arange(20_000) + 0.5) / 20_000 - 0.5)
        w, weight = np.sqrt(n) * np.sin(angle), np.cos(angle) ** (n - 2)
        z = self.STEEPNESS * (self.GAMMA * w + beta - self.AT)
        slopes = self.GAMMA * self.STEEPNESS / np.cosh(np.clip(z, -300, 300)) ** 2
        square = weight @ np.tanh(z) ** 2
        return weight @ ((n - w**2) * slopes**2) / (n - 2) / square

    @pytest.mark.parametrize("beta", [-0.5, -2.4, -2.7, -2.8, -2.9])
    def test_slopes_that_are_differences(self, beta):
        rate, true = self.saturated(beta).rate, self.true_rate(beta)
        assert abs(rate.value - true) <= rate.error + 1e-13 * true

    @pytest.mark.parametrize("beta", [-3.2, -3.47])
    def test_slopes_that_are_lost_are_no_rate_of_zero(self, beta):
        assert 0 < self.true_rate(beta) < 1e-50
        with pytest.raises(ValueError, match="not a digit of q and the rate"):
            self.saturated(beta)

    def test_a_constant_has_no_gradients(self):
        assert group_norm(lambda x: 0 * x + 1, 8).rate.value == 0

    def test_levels_that_part_again(self):
        """180.045853770738: an integral in long double, with 160 nodes on each panel."""
        height, at, width = 1.4990291404216898, 0.798709964865076, 0.007546794334272856
        rate = group_norm(
            lambda x: torch.tanh(x) + height * torch.exp(-(((x - at) / width) ** 2)),
            10,
            gamma=0.9175086465474377,
            eps=0.20776341779560176,
        ).rate
        assert abs(rate.value - 180.045853770738) <= rate.error < 1e-4
