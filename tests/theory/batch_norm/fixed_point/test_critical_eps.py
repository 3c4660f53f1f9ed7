"""The covariance deep in the network, and the ε at which all samples become equal."""

import math

import pytest
import torch

from equipoise.theory import Activation, bsb1_fixed_point, critical_eps, explosion_rate
from equipoise.theory.activation.catalogue import Kink, homogeneous
from reference.mean_field import FUNCTIONS, kappa, law_of


class TestFixedPoint:
    @pytest.mark.parametrize("B", [4, 5, 64, 10**6])
    def test_identity(self, B):
        """q = 1, c = -1/(B - 1), κ = B/(B - 1)."""
        point = bsb1_fixed_point("identity", B)
        assert point.q.value == pytest.approx(1, abs=1e-13)
        assert point.c.value == pytest.approx(-1 / (B - 1), abs=1e-13)
        assert point.kappa.value == pytest.approx(B / (B - 1), rel=1e-13)

    @pytest.mark.parametrize("B", [4, 6, 33, 1000])
    def test_relu(self, B):
        """q = 1/2 and c = J_1(-1/(B - 1)), whatever B."""
        point, cosine = bsb1_fixed_point("relu", B), -1 / (B - 1)
        J = (math.sqrt(1 - cosine**2) + (math.pi - math.acos(cosine)) * cosine) / math.pi
        assert abs(point.q.value - 0.5) <= point.q.error
        assert abs(point.c.value - J) <= point.c.error + 1e-15
        assert point.c.error < 1e-11

    def test_erf_tends_to_the_arcsine_law(self):
        """E[erf(z)²] = (2/π) arcsin(2/3); samples of a huge batch are nearly independent."""
        point = bsb1_fixed_point("erf", 10**7)
        assert point.q.value == pytest.approx(2 / math.pi * math.asin(2 / 3), abs=1e-6)
        assert abs(point.c.value) < 1e-6

    @pytest.mark.parametrize("B", [4, 5, 16])
    @pytest.mark.parametrize("name", ["tanh", "gelu", "relu", "hardtanh", "alpha_relu(1.5)"])
    def test_moments_are_those_of_the_double_integral(self, name, B):
        f = FUNCTIONS[name].after(1.2, -0.4)
        law = law_of(f, B)
        point = bsb1_fixed_point(
            name, B, gamma=1.2, beta=-0.4, weight_variance=1.7, bias_variance=0.3
        )
        q = 1.7 * (law.weights * f.value(law.z1) ** 2).sum() + 0.3
        qc = 1.7 * (law.weights * f.value(law.z1) * f.value(law.z2)).sum() + 0.3
        for estimate, exact in (
            (point.q, q),
            (point.c, qc / q),
            (point.kappa, 1.7 * kappa(f, law)),
        ):
            assert abs(estimate.value - exact) <= estimate.error + 2e-13
            assert estimate.error < 1e-10

    @pytest.mark.parametrize("eps", [0.0, 0.05])
    @pytest.mark.parametrize("bias_variance", [0.0, 0.7])
    def test_kappa_is_q_times_one_minus_c(self, eps, bias_variance):
        point = bsb1_fixed_point("gelu", 9, eps=eps, bias_variance=bias_variance)
        product = point.q.value * (1 - point.c.value)
        assert point.kappa.value == pytest.approx(product, rel=1e-12)

    def test_biases_correlate_samples_and_leave_kappa(self):
        plain, biased = (bsb1_fixed_point("tanh", 9, bias_variance=b) for b in (0.0, 2.0))
        assert biased.kappa.value == pytest.approx(plain.kappa.value, rel=1e-13)
        assert biased.q.value == pytest.approx(plain.q.value + 2, rel=1e-13)
        assert biased.c.value > plain.c.value + 0.5

    def test_weight_variance_scales_it_at_eps_zero(self):
        plain, scaled = (bsb1_fixed_point("gelu", 9, weight_variance=v) for v in (1.0, 1e-6))
        assert scaled.kappa.value == pytest.approx(1e-6 * plain.kappa.value, rel=1e-12)
        assert scaled.c.value == pytest.approx(plain.c.value, rel=1e-12)


class TestCriticalEps:
    """ε_c = σ_w² γ² φ′(β)²."""

    @pytest.mark.parametrize(
        ("activation", "options", "expected"),
        [
            ("tanh", {}, 1.0),
            ("identity", {}, 1.0),
            ("relu", {"beta": 2.0}, 1.0),
            ("relu", {"beta": -2.0}, 0.0),
            ("tanh", {"gamma": 3.0}, 9.0),
            ("tanh", {"gamma": -3.0}, 9.0),
            ("tanh", {"weight_variance": 0.3}, 0.3),
            ("tanh", {"beta": 1.0}, (1 - math.tanh(1) ** 2) ** 2),
            ("leaky_relu(0.2)", {"beta": -1.0}, 0.04),
            ("sigmoid", {}, 1 / 16),
        ],
    )
    def test_formula(self, activation, options, expected):
        assert critical_eps(activation, **options) == pytest.approx(expected, rel=1e-13)

    @pytest.mark.parametrize("activation", ["relu", "leaky_relu(0.1)", torch.nn.PReLU()])
    def test_a_kink_at_beta_is_refused_without_a_batch_size(self, activation):
        with pytest.raises(ValueError, match="batch_size"):
            critical_eps(activation)

    def test_a_continuous_slope_at_beta_needs_no_batch_size(self):
        assert critical_eps("gelu", beta=0.5) == critical_eps("gelu", beta=0.5, batch_size=7)

    @pytest.mark.parametrize("B", [4, 16, 64])
    def test_relu_at_its_kink(self, B):
        """ε_c = κ_0 (B - 1)/B, with κ_0 the fixed point at ε = 0."""
        plain = bsb1_fixed_point("relu", B).kappa.value
        assert critical_eps("relu", batch_size=B) == pytest.approx(plain * (B - 1) / B, rel=1e-12)

    @pytest.mark.parametrize("name", ["softsign", "elu", "celu(0.5)"])
    def test_a_kink_of_the_curvature_alone_changes_nothing(self, name):
        """The slope at 0 is 1 from both sides."""
        assert critical_eps(name, batch_size=8) == 1

    @pytest.mark.parametrize(
        ("name", "beta", "slopes"),
        [
            ("hardswish", 3.0, (1.5, 1.0)),
            ("hardswish", -3.0, (0.0, -0.5)),
            ("relu6", 6.0, (1.0, 0.0)),
            ("elu(0.5)", 0.0, (0.5, 1.0)),
        ],
    )
    def test_elsewhere_a_kink_has_its_two_slopes(self, name, beta, slopes):
        """Beside 3 hardswish is x²/6 + x/2: a step of 1e-9 would err by 3e-10."""
        below, above = slopes
        exact = critical_eps(homogeneous("two slopes", 1.0, above, below), batch_size=8)
        assert critical_eps(name, beta=beta, batch_size=8) == pytest.approx(exact, rel=1e-14)
        other = critical_eps(homogeneous("another", 1.0, above, below + 1e-9), batch_size=8)
        assert other != pytest.approx(exact, rel=1e-14)

    @pytest.mark.parametrize("at", [0.0, 2.0])
    @pytest.mark.parametrize(("slope", "power"), [(0, 1.5), (1, 1.5), (0, 1.05), (0, 0.75)])
    def test_a_fractional_power_adds_a_slope_of_zero_or_infinity(self, at, slope, power):
        phi = Activation(
            "line and power",
            lambda x: slope * x + (x - at).clamp(min=0) ** power,
            lambda x: slope + power * (x > at) * (x - at).abs() ** (power - 1),
            (Kink(at, power=True),),
        )
        expected = slope**2 if power > 1 else math.inf
        assert critical_eps(phi, beta=at, batch_size=8) == pytest.approx(expected, rel=1e-7)

    def test_a_kink_found_in_a_users_function(self):
        """At 1e-200 x² would be 0, and the slope of its root undefined."""
        root = critical_eps(lambda x: (x * x).sqrt(), batch_size=8)
        assert root == pytest.approx(critical_eps("abs", batch_size=8), rel=1e-12)

    @pytest.mark.parametrize("name", ["identity", "tanh", "erf"])
    @pytest.mark.parametrize("B", [4, 9, 64])
    def test_samples_become_equal_beyond_it(self, name, B):
        critical = critical_eps(name)
        for ratio in (1.001, 2.0):
            point = bsb1_fixed_point(name, B, eps=ratio * critical, bias_variance=0.5)
            assert point.kappa.value == 0
            assert point.c.value == 1
            rate = explosion_rate(name, B, eps=ratio * critical)
            assert rate.value == pytest.approx(1 / ratio, rel=1e-12)
        below = bsb1_fixed_point(name, B, eps=0.99 * critical)
        assert below.kappa.value > below.kappa.error

    @pytest.mark.parametrize("B", [4, 9, 64])
    def test_the_rate_of_the_identity_touches_one_quadratically(self, B):
        """(λ_G - 1)/(1 - ε)² → 1/(B + 1), so that the depth scale diverges."""
        ratios = []
        for distance in (1e-2, 1e-3):
            rate = explosion_rate("identity", B, eps=1 - distance)
            assert rate.value > 1 + rate.error
            ratios.append((rate.value - 1) / distance**2)
        assert ratios[1] == pytest.approx(1 / (B + 1), rel=1e-2)
        assert abs(ratios[1] - 1 / (B + 1)) < 0.2 * abs(ratios[0] - 1 / (B + 1))

    @pytest.mark.parametrize(
        ("name", "beta", "order"), [("tanh", 0.0, 2), ("erf", 0.0, 2), ("tanh", 0.5, 1)]
    )
    def test_the_rate_of_others_touches_one_too(self, name, beta, order):
        """Quadratically where φ″(β) = 0, as in the source's figure, and else linearly."""
        critical = critical_eps(name, beta=beta)
        first, second = (
            (explosion_rate(name, 8, eps=critical * (1 - d), beta=beta).value - 1) / d**order
            for d in (1e-3, 5e-4)
        )
        assert first == pytest.approx(second, rel=0.02)
        assert first > 0.01

    @pytest.mark.parametrize("B", [4, 5, 16, 100])
    @pytest.mark.parametrize("distance", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
    def test_it_can_be_approached(self, B, distance):
        """κ ∝ ε_c - ε: the fixed point is found however close."""
        near, half = (
            bsb1_fixed_point("tanh", B, eps=1 - d).kappa.value for d in (distance, distance / 2)
        )
        assert near == pytest.approx(2 * half, rel=max(0.05, distance))
        assert explosion_rate("tanh", B, eps=1 - distance).value >= 1 - 1e-12

    def test_relu_at_its_kink_explodes_up_to_it(self):
        """Section 10: κ → 0 at ε_c, while λ_G stays near 1.45."""
        critical = critical_eps("relu", batch_size=64)
        rates = [explosion_rate("relu", 64, eps=r * critical).value for r in (0.5, 0.999, 1.0001)]
        assert all(1.4 < rate < 1.5 for rate in rates)
        assert rates[1] == pytest.approx(rates[2], rel=5e-3)

    @pytest.mark.parametrize("B", [8, 64])
    @pytest.mark.parametrize(
        ("beta", "eps"), [(-1.0, 0.05), (-1.0, 0.5), (-0.3, 0.3), (-2.0, 0.03)]
    )
    def test_a_relu_shifted_out_of_reach_sends_no_signal(self, B, beta, eps):
        """φ′(β) = 0, and F(κ) < κ for every κ: samples become equal, gradients vanish."""
        point = bsb1_fixed_point("relu", B, beta=beta, eps=eps)
        assert (point.kappa.value, point.q.value) == (0, 0)
        assert explosion_rate("relu", B, beta=beta, eps=eps).value == 0

    def test_but_not_at_a_small_eps(self):
        """ε_c = 0 concerns small differences only: large ones survive ε = 1e-3."""
        assert critical_eps("relu", beta=-1.0) == 0
        assert bsb1_fixed_point("relu", 64, beta=-1.0, eps=1e-3).kappa.value > 0.01
