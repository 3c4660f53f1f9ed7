"""The explosion rate: closed form, quadrature and limits check each other."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.records import Estimate
from equipoise.theory import (
    UnstableFixedPointWarning,
    as_activation,
    depth_scale,
    explosion_rate,
    max_trainable_depth,
    weight_gradients,
)
from equipoise.theory.activation.catalogue import alpha_relu, homogeneous
from support.cases import each

SMALL_BATCHES = [4, 5, 6, 7, 11, 15, 16, 19, 20]
BATCHES = [*SMALL_BATCHES, 64, 1000, 10**6]


@pytest.fixture(autouse=True)
def _ignore_unstable_fixed_points():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnstableFixedPointWarning)
        yield


def assert_agree(a, b, at_most=1e-11):
    assert abs(a.value - b.value) <= a.error + b.error
    assert a.error + b.error <= at_most * a.value


class TestIdentity:
    """λ_G = (B - 2)/(B - 3)."""

    @each("B", [4, 64, 10**6])
    @each("method", ["closed form", "quadrature", "auto"])
    def test_rate(self, B, method):
        rate = explosion_rate("identity", B, method=method)
        assert rate.value == pytest.approx((B - 2) / (B - 3), rel=1e-12)
        assert rate.error < 1e-12 * rate.value

    @pytest.mark.parametrize("B", [4, 64, 10**6])
    def test_neither_gamma_nor_beta_matters(self, B):
        rate = explosion_rate("identity", B, gamma=-2.5, beta=0.7)
        assert rate.value == pytest.approx((B - 2) / (B - 3), rel=1e-12)

    def test_the_rate_of_another_batch_is_rejected(self):
        rate = explosion_rate("identity", 10**6, method="quadrature")
        # (B - 2)/(B - 3) - 1 = 1/(B - 3): neighbouring batches differ by 1e-12.
        assert abs(rate.value - (1 + 1 / (10**6 - 2))) > 0.5e-12
        assert rate.error < 0.5e-12


class TestHomogeneous:
    """φ = a·max(x, 0)^α - b·max(-x, 0)^α: closed forms are what quadrature computes."""

    @each("B", BATCHES)
    @each(
        ("alpha", "a", "b"),
        [
            (1.0, 1.0, 0.0),
            (1.0, 1.0, 0.2),
            (1.0, 1.0, -1.0),
            (1.0, -2.0, 3.0),
            (1.5, 1.0, 0.0),
            (2.0, 1.0, 0.0),
            (2.0, 1.0, -0.5),
        ],
    )
    def test_closed_form_equals_quadrature(self, B, alpha, a, b):
        phi = homogeneous("two-sided", alpha, a, b)
        closed = explosion_rate(phi, B, method="closed form")
        assert_agree(closed, explosion_rate(phi, B, method="quadrature"))

    @pytest.mark.parametrize("B", [4, 7, 16, 20, 1000])
    @pytest.mark.parametrize(("alpha", "a", "b"), [(0.75, 1.0, 0.0), (0.75, 1.0, 0.2)])
    def test_slopes_without_bound(self, B, alpha, a, b):
        phi = homogeneous("two-sided", alpha, a, b)
        closed = explosion_rate(phi, B, method="closed form")
        assert_agree(closed, explosion_rate(phi, B, method="quadrature"), at_most=1e-9)

    @pytest.mark.parametrize("B", [4, 16, 64])
    def test_another_power_is_rejected(self, B):
        closed = explosion_rate(alpha_relu(1.5), B, method="closed form")
        other = explosion_rate(alpha_relu(1.5 + 1e-9), B, method="quadrature")
        assert abs(closed.value - other.value) > 10 * (closed.error + other.error)

    def test_relu_tends_to_its_limit_from_above(self):
        """π/(π - 1), monotonically in B."""
        rates = [explosion_rate("relu", B).value for B in (*range(4, 64), 10**3, 10**6, 10**9)]
        assert rates == sorted(rates, reverse=True)
        assert rates[-1] == pytest.approx(math.pi / (math.pi - 1), abs=1e-8)
        assert rates[-1] > math.pi / (math.pi - 1) - 1e-12

    @pytest.mark.parametrize("B", [4, 5, 16, 1000])
    def test_square(self, B):
        """x² is ψ₂ up to a constant: λ_G = 2(B - 1)/(B - 3)."""
        for phi in ("square", homogeneous("x²", 2.0, 1.0, -1.0)):
            rate = explosion_rate(phi, B)
            assert rate.value == pytest.approx(2 * (B - 1) / (B - 3), rel=1e-11)

    @pytest.mark.parametrize(
        ("name", "options"), [("relu", {"eps": 1e-3}), ("relu", {"beta": 0.5}), ("tanh", {})]
    )
    def test_a_closed_form_that_is_unknown_is_refused(self, name, options):
        with pytest.raises(ValueError, match='method="quadrature"'):
            explosion_rate(name, 8, method="closed form", **options)

    def test_an_unknown_method_is_refused(self):
        with pytest.raises(ValueError, match="'simulation'"):
            explosion_rate("relu", 8, method="simulation")


class TestInvariance:
    """Every eigenvalue is unchanged by φ → aφ + b."""

    @pytest.mark.parametrize("B", [4, 17, 1000])
    @pytest.mark.parametrize("eps", [0.0, 0.03])
    def test_affine_images(self, B, eps):
        """With ε > 0, σ_w² a² must stay as it is."""
        image = as_activation(lambda x: 3.0 - 2.0 * torch.nn.functional.gelu(x), name="image")
        plain = explosion_rate("gelu", B, eps=eps)
        scaled = explosion_rate(image, B, eps=eps, weight_variance=0.25)
        assert_agree(plain, scaled, at_most=1e-10)
        assert plain.stable is scaled.stable

    def test_but_not_by_a_nonlinear_image(self):
        image = as_activation(lambda x: torch.nn.functional.gelu(x) ** 2, name="image")
        assert abs(explosion_rate("gelu", 17).value - explosion_rate(image, 17).value) > 0.1

    @pytest.mark.parametrize("B", [4, 64])
    def test_sigmoid_is_a_slower_tanh(self, B):
        assert_agree(explosion_rate("sigmoid", B), explosion_rate("tanh", B, gamma=0.5))

    @pytest.mark.parametrize("name", ["relu", "gelu", "hardtanh"])
    def test_the_sign_of_gamma_does_not_matter(self, name):
        for options in ({"gamma": 1.3}, {"gamma": 0.7, "beta": 0.4, "eps": 1e-3}):
            mirrored = options | {"gamma": -options["gamma"]}
            assert explosion_rate(name, 18, **options) == explosion_rate(name, 18, **mirrored)

    def test_the_sign_of_beta_does(self):
        assert explosion_rate("relu", 18, beta=1.0).value < explosion_rate("relu", 18).value
        assert explosion_rate("relu", 18, beta=-1.0).value > explosion_rate("relu", 18).value

    def test_gamma_times_a_homogeneous_activation_changes_nothing(self):
        assert_agree(explosion_rate("relu", 8), explosion_rate("relu", 8, gamma=7.0))

    def test_only_eps_over_weight_variance_matters(self):
        for name, B in (("tanh", 8), ("relu", 20)):
            plain = explosion_rate(name, B, eps=0.02)
            scaled = explosion_rate(name, B, eps=0.06, weight_variance=3.0, bias_variance=5.0)
            assert_agree(plain, scaled)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    a=st.floats(-2, 2),
    b=st.floats(0.1, 4),
    c=st.floats(-2, 2),
    beta=st.floats(-2, 2),
    B=st.integers(4, 400),
)
def test_no_smooth_activation_beats_the_identity(a, b, c, beta, B):
    """λ_G ≥ (B - 2)/(B - 3), a weighted mean of k(k + B - 3)/(B - 3) over k ≥ 1."""
    if abs(a) + abs(c) < 1e-3 or abs(a * b + c) < 1e-3:
        c = 1.0
    phi = as_activation(lambda x: a * torch.tanh(b * x) + c * x, name="mixture")
    rate = explosion_rate(phi, B, beta=beta)
    assert rate.value + rate.error >= (B - 2) / (B - 3)


@pytest.mark.parametrize("name", ["tanh", "erf", "gelu", "silu", "relu", "hardtanh", "elu", "sin"])
def test_infinite_batch(name):
    """λ_G → E[φ′²] / Var φ for z ~ N(0, 1), by a plain trapezoid sum."""
    phi = as_activation(name)
    z = torch.linspace(-12, 12, 2_400_001, dtype=torch.float64)  # steps end at kinks 0, ±1
    weight = torch.exp(-z * z / 2)
    weight = weight / weight.sum()
    values, slopes = (torch.from_numpy(part) for part in phi(z.numpy()))
    variance = weight @ values**2 - (weight @ values) ** 2
    limit = (weight @ slopes**2 / variance).item()
    at = {B: explosion_rate(name, B).value for B in (10**3, 10**6)}
    assert at[10**6] == pytest.approx(limit, rel=2e-5)
    assert abs(at[10**3] - limit) > 1e-4


class TestDepth:
    def test_relu_in_the_paper(self):
        """16 ξ: 41.8 layers for infinite batches, about 14 at B = 4."""
        assert max_trainable_depth(explosion_rate("relu", 10**9)) == pytest.approx(
            16 / math.log(math.pi / (math.pi - 1)), rel=1e-8
        )
        assert round(max_trainable_depth(explosion_rate("relu", 10**9)), 1) == 41.8
        assert 13.5 < max_trainable_depth(explosion_rate("relu", 4)) < 14.5

    def test_a_factor_e_after_one_depth_scale(self):
        rate = explosion_rate("tanh", 32)
        assert rate.value ** depth_scale(rate) == pytest.approx(math.e)
        assert rate.value ** max_trainable_depth(rate, factor=3.0) == pytest.approx(math.e**3)

    def test_balanced_gradients_train_at_any_depth(self):
        assert depth_scale(1.0) == math.inf
        assert max_trainable_depth(1) == math.inf

    def test_vanishing_gradients(self):
        assert depth_scale(0.5) == pytest.approx(-1 / math.log(2))
        assert max_trainable_depth(0.5) == pytest.approx(max_trainable_depth(2.0))

    def test_an_estimate_is_its_value(self):
        assert depth_scale(Estimate(1.5, 0.1, "by hand")) == depth_scale(1.5)

    @each("rate", [0.0, -1.0, math.nan, "relu"])
    @each("depth", [depth_scale, max_trainable_depth])
    def test_a_rate_that_is_not_positive_is_refused(self, depth, rate):
        with pytest.raises(ValueError, match=str(rate)):
            depth(rate)

    @pytest.mark.parametrize("factor", [0.0, -16.0, math.nan])
    def test_a_factor_that_is_not_positive_is_refused(self, factor):
        with pytest.raises(ValueError, match=str(factor)):
            max_trainable_depth(1.5, factor)


def test_weight_gradients_of_a_network():
    """E(∂W)² = κ tr Π / σ_w²: the ratio of both gradients in one random layer."""
    B, width, variance = 8, 1500, 1.7
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(B, width, generator=generator, dtype=torch.float64)
    x = None
    for _ in range(6):
        centred = h - h.mean(0)
        x = torch.relu(centred / centred.square().mean(0).sqrt())
        weight = torch.randn(width, width, generator=generator, dtype=torch.float64)
        h = x @ weight * (variance / width) ** 0.5
    normed = h.clone().requires_grad_()
    y = torch.relu((normed - normed.mean(0)) / normed.var(0, correction=0).sqrt())
    at_output = torch.randn(B, width, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((y * at_output).sum(), normed)
    per_weight = (x.T @ gradient).square().mean()
    per_trace = gradient.square().sum(0).mean()
    predicted = weight_gradients("relu", B, weight_variance=variance).per_trace
    assert float(per_weight / per_trace) == pytest.approx(predicted.value, rel=0.02)
    assert weight_gradients("relu", B).rate.value == explosion_rate("relu", B).value
