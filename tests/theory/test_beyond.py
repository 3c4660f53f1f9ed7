"""Layer, RMS and group norm and residual streams: limits, closed forms and simulated networks."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from equipoise.theory import (
    Architecture,
    backward_spectrum,
    explosion_rate,
    follow_batch,
    group_norm,
    layer_norm,
    residual_growth,
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


class TestGroupNorm:
    @pytest.mark.parametrize("m", [4, 5, 8, 64])
    @pytest.mark.parametrize("name", ["identity", "relu", "leaky_relu(0.3)"])
    def test_homogeneous_activations_share_one_rate(self, name, m):
        """(m - 2)/(m - 3) for every activation of degree one."""
        assert group_norm(name, m).rate.value == pytest.approx((m - 2) / (m - 3), rel=1e-13)

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
        with pytest.raises(ValueError, match=r"group_size must be .* at least 4, got 3"):
            group_norm("relu", 3)

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
        name, 4, width=480, depth=18, networks=32, architecture=architecture, **options
    )
    ratios = np.exp(-np.diff(run.log_gradients[:, 2:], axis=1)).mean(1)
    error = ratios.std(ddof=1) / 32**0.5 + 2 / 480  # and the bias of finite width
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


class TestResidual:
    @pytest.mark.parametrize("B", [4, 8, 64])
    def test_growth_is_a_ratio_of_gamma_functions(self, B):
        """Π (1 + Λ/(l + a)) = Γ(L + a + Λ) Γ(a) / (Γ(a + Λ) Γ(L + a)), a = κ⁰/κ*.

        Exact for the identity, whose branches turn nothing of the shared gradient into others.
        """
        blocks, rate, a = 40, (B - 2) / (B - 3), 0.7 * (B - 1) / B
        growth = residual_growth("identity", B, blocks=blocks, start_variance=0.7)
        assert growth.exponent.value == pytest.approx(rate, rel=1e-14)
        exact = (
            math.lgamma(blocks + a + rate)
            + math.lgamma(a)
            - math.lgamma(a + rate)
            - math.lgamma(blocks + a)
        )
        assert np.log(growth.factors).sum() == pytest.approx(exact, rel=1e-12)
        # In a plain network every layer grows alike.
        assert exact < 0.7 * blocks * math.log(rate) or B > 8

    def test_relu_adds_what_samples_share(self):
        """The shared part p enters g with u/(B-1) - v, here positive, as long as g is small."""
        growth = residual_growth("relu", 8, blocks=40, start_variance=0.7)
        a = 0.7 / np.diff(growth.variances)[0]
        alone = 1 + growth.exponent.value / (np.arange(40) + a)
        assert (growth.factors > alone).all()
        assert growth.factors[0] == pytest.approx(alone[0], rel=1e-3)  # where g outgrew p
        assert growth.factors[-1] > 1.0005 * alone[-1]

    def test_the_exponent_is_the_plain_rate(self):
        assert residual_growth("tanh", 16, blocks=3).exponent.value == pytest.approx(
            explosion_rate("tanh", 16).value, rel=1e-13
        )
        double = residual_growth("tanh", 16, blocks=3, stages=2).exponent.value
        assert double == pytest.approx(explosion_rate("tanh", 16).value ** 2, rel=1e-9)

    def test_variance_grows_linearly(self):
        variances = residual_growth("gelu", 8, blocks=10).variances
        assert np.diff(variances) == pytest.approx(np.diff(variances)[0])

    @pytest.mark.parametrize(
        ("name", "B", "options"),
        [
            ("relu", 8, {"stages": 1}),
            ("relu", 8, {"stages": 1, "leading": True}),
            ("tanh", 6, {"stages": 2}),
            ("tanh", 16, {"stages": 1, "eps": 0.1, "gamma": 1.5}),
            ("gelu", 8, {"stages": 2, "leading": True, "eps": 1e-3}),
        ],
    )
    def test_networks_follow_the_recursion(self, name, B, options):
        stages, leading = options.pop("stages"), options.pop("leading", False)
        blocks, networks = 12 // stages, 24
        theory = residual_growth(name, B, blocks=blocks, stages=stages, leading=leading, **options)
        run = simulate_networks(
            name,
            B,
            width=400,
            depth=12,
            networks=networks,
            architecture=Architecture(stages=stages, leading=leading),
            **options,
        )
        expected = np.log(theory.normalisers.ravel())
        rise = run.log_gradients - run.log_gradients[:, -1:] - (expected - expected[-1])
        error = rise.std(0, ddof=1) / networks**0.5 + 6 / 400  # and the bias of finite width
        assert (np.abs(rise.mean(0)) < 4 * error).all()

    def test_a_plain_network_does_not(self):
        plain = 12 * math.log(explosion_rate("relu", 8).value)
        stream = math.log(residual_growth("relu", 8, blocks=12).growth.value)
        assert stream < 0.7 * plain

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"blocks": 0}, "blocks must be a whole number of at least 1, got 0"),
            ({"stages": 0}, "stages must be a whole number of at least 1, got 0"),
            ({"start_variance": 0.0}, "start_variance must be positive and finite, got 0"),
            ({"batch_size": 3}, "batch_size must be at least 4"),
        ],
    )
    def test_bad_arguments_are_named(self, options, message):
        with pytest.raises(ValueError, match=message):
            residual_growth("relu", **({"batch_size": 8, "blocks": 2} | options))


class TestFollowedBatch:
    def test_equally_correlated_samples_follow_the_recursion(self):
        B, blocks = 8, 10
        theory = residual_growth("relu", B, blocks=blocks, start_variance=1.0)
        followed = follow_batch(
            np.eye(B), "relu", blocks, architecture=Architecture(stages=1), samples=8192
        )
        expected = np.log(np.append(theory.normalisers.ravel(), theory.stream[-1]))
        rise = followed.log_gradients - followed.log_gradients[:, -1:]
        error = rise[:, :-1].std(0, ddof=1) / len(rise) ** 0.5
        score = (rise.mean(0)[:-1] - (expected - expected[-1])[:-1]) / error
        assert np.abs(score).max() < 6  # Student's t with 7 degrees of freedom

    def test_unequal_samples_do_not(self):
        """Two clusters: batch norm sees nearly one direction, as at a batch of two."""
        clusters = np.outer(*[np.repeat([1.0, -1.0], 4)] * 2)
        unequal = 5 * clusters + 0.1 * np.eye(8)
        spread = (np.trace(unequal) - unequal.mean() * 8) / 7
        rises = [
            followed.log_gradients[:, 0] - followed.log_gradients[:, -1]
            for followed in (
                follow_batch(cov, "relu", 10, architecture=Architecture(stages=1))
                for cov in (unequal, spread * np.eye(8))
            )
        ]
        assert abs(rises[0].mean() - rises[1].mean()) > 5 * max(r.std() for r in rises)

    @pytest.mark.parametrize(
        ("covariance", "message"),
        [
            (np.ones((3, 4)), "cov must be a square matrix of at least 2 samples, got shape"),
            (np.diag([1.0, 1, 1, -1]), "cov must be positive semidefinite"),
            (np.triu(np.ones((5, 5))), "cov must be symmetric"),
            (np.eye(2000), "too large to follow; use at most 1024"),
            (np.eye(3), "batch_size must be at least 4"),
        ],
    )
    def test_bad_covariances_are_refused(self, covariance, message):
        with pytest.raises(ValueError, match=message):
            follow_batch(covariance, "relu", 2, architecture=Architecture(stages=1))

    def test_only_residual_batch_norm(self):
        with pytest.raises(ValueError, match="set stages"):
            follow_batch(np.eye(4), "relu", 2, architecture=Architecture())
        with pytest.raises(ValueError, match="a multiple of the 2 stages"):
            follow_batch(np.eye(4), "relu", 3, architecture=Architecture(stages=2))


class TestConvolutions:
    """Positions count as samples: BSB1 over all of them is a fixed point of the conv map too."""

    @staticmethod
    def rates(padding_mode, channels=150, networks=16, depth=18):
        generator = torch.Generator().manual_seed(7)
        found = []
        for _ in range(networks):
            h = torch.randn(2, channels, 3, 3, generator=generator)
            layers = []
            for _ in range(depth):
                weight = torch.randn(channels, channels, 3, 3, generator=generator)
                weight *= (1 / (9 * channels)) ** 0.5
                if padding_mode == "circular":
                    h = nn.functional.conv2d(nn.functional.pad(h, (1,) * 4, "circular"), weight)
                else:
                    h = nn.functional.conv2d(h, weight, padding=1)
                h.requires_grad_()
                layers.append(h)
                centred = h - h.mean((0, 2, 3), keepdim=True)
                s = (centred.square().mean((0, 2, 3), keepdim=True) + 1e-12).sqrt()
                h = torch.relu(centred / s)
            top = (h * torch.randn(h.shape, generator=generator)).sum()
            gradients = torch.autograd.grad(top, layers)
            logs = np.array([float(g.double().square().sum().log()) for g in gradients])
            found.append(-np.diff(logs[6:]).mean())
        return np.array(found)

    def test_circular_padding_grows_as_that_many_samples(self):
        rates = self.rates("circular")
        error = rates.std(ddof=1) / len(rates) ** 0.5 + 2 / 150
        expected = math.log(backward_spectrum("relu", 2 * 3 * 3).G.value)
        assert abs(rates.mean() - expected) < 4 * error

    def test_zero_padding_does_not(self):
        """Border positions see fewer inputs: on 3 × 3 maps growth is a tenth smaller."""
        expected = math.log(backward_spectrum("relu", 18).G.value)
        assert self.rates("zeros").mean() < expected - 0.05
