"""Networks without normalisation: closed forms, the maps themselves, and simulated networks."""

import math
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from mpmath import mp
from scipy.optimize import brentq
from torch.nn.functional import softplus

from equipoise.records import Estimate
from equipoise.theory import as_activation, max_trainable_depth
from equipoise.theory.activation.catalogue import Activation, Kink, alpha_relu
from equipoise.theory.batch_norm.averages.homogeneous import kernel
from equipoise.theory.batch_norm.setting import Setting
from equipoise.theory.networks.edge_of_chaos import EdgeOfChaos, _only, edge_of_chaos
from equipoise.theory.networks.gaussian_averages import moments
from equipoise.theory.networks.vanilla.network import VanillaNetwork, vanilla
from equipoise.theory.networks.vanilla.variance import settle_variance
from support.cases import each

CASES = [
    ("tanh", 4.0, 0.1),
    ("tanh", 0.5, 0.1),
    ("erf", 3.0, 0.2),
    ("gelu", 1.5, 0.1),
    ("sigmoid", 4.0, 1.0),
    ("hardtanh", 3.0, 0.1),
    ("relu6", 2.0, 0.1),
    ("elu(1)", 1.6, 0.05),
    ("alpha_relu(0.75)", 1.0, 0.0),
]


def assert_bounds(estimate, exact, at_most=1e-11):
    assert abs(estimate.value - exact) <= estimate.error + 4e-16 * abs(exact)
    assert estimate.error <= at_most * max(1, abs(exact))


class TestHomogeneous:
    """Slopes of constant size: q ↦ χq + σ_b² with χ = σ_w²(a² + b²)/2."""

    @pytest.mark.parametrize("variance", [1.0, 2.0])
    def test_relu_without_biases(self, variance):
        network = vanilla("relu", weight_variance=variance)
        assert network.q.value == (2.0 if variance == 2 else 0.0)
        for chi in (network.chi_q, network.chi_c, network.chi_1):
            assert_bounds(chi, variance / 2)
        assert network.c.value == 1
        assert network.phase == ("critical" if variance == 2 else "ordered")

    @pytest.mark.parametrize("name", ["relu", "identity", "leaky_relu(0.2)", "abs"])
    def test_with_biases(self, name):
        half = {"relu": 0.5, "leaky_relu(0.2)": 0.52}.get(name, 1.0)
        network = vanilla(name, weight_variance=0.9, bias_variance=0.3)
        assert_bounds(network.q, 0.3 / (1 - 0.9 * half))
        assert_bounds(network.chi_1, 0.9 * half)

    @pytest.mark.parametrize("alpha", [0.6, 0.75, 0.9])
    def test_powers_below_one(self, alpha):
        """q = (σ_w²c_α)^{1/(1−α)}, χ_q = α, χ_1 = α²/(2α − 1), and c solves J_α(c) = c."""
        network = vanilla(alpha_relu(alpha), weight_variance=1.7)
        scale = 2 ** (alpha - 1) * math.gamma(alpha + 0.5) / math.sqrt(math.pi)
        assert_bounds(network.q, (1.7 * scale) ** (1 / (1 - alpha)))
        assert_bounds(network.chi_q, alpha)
        assert_bounds(network.chi_1, alpha**2 / (2 * alpha - 1))
        c = brentq(lambda c: kernel(alpha, c) - c, 0, 1 - 1e-4, xtol=1e-15)
        # The closed form loses digits where J_α(c) − c is flat.
        assert network.c.value == pytest.approx(c, abs=1e-11)
        slope = alpha**2 / (2 * alpha - 1) * kernel(alpha - 1, c)
        assert network.chi_c.value == pytest.approx(slope, abs=1e-10)

    def test_quadrature_agrees_for_other_functions_of_constant_slopes(self):
        plain = Activation("r", torch.relu, kinks=(Kink(0.0),))
        told = vanilla("relu", weight_variance=1.5, bias_variance=0.1)
        found = vanilla(plain, weight_variance=1.5, bias_variance=0.1)
        for name in ("q", "c", "chi_q", "chi_c", "chi_1"):
            a, b = getattr(told, name), getattr(found, name)
            assert abs(a.value - b.value) <= a.error + b.error < 1e-11


class TestErf:
    """Section 1's closed forms for erf."""

    @staticmethod
    def second_moment(variance, bias, q, c=1):
        return variance * 2 / mp.pi * mp.asin(2 * q * c / (1 + 2 * q)) + bias

    @pytest.mark.parametrize(("variance", "bias"), [(3.0, 0.2), (1.0, 0.1), (50.0, 1.0)])
    def test_everything(self, variance, bias):
        with mp.workdps(30):
            q = mp.findroot(lambda q: self.second_moment(variance, bias, q) - q, variance / 2)
            growth = [
                variance * 4 / mp.pi / mp.sqrt((1 + 2 * q) ** 2 - (2 * q * k) ** 2)
                for k in (1, mp.mpf(0))
            ]
            chi_1 = growth[0]
            c = mp.mpf(1)
            if chi_1 > 1:
                c = mp.findroot(
                    lambda c: (self.second_moment(variance, bias, q, c) / q - c) / (1 - c), 0.1
                )
            chi_c = variance * 4 / mp.pi / mp.sqrt((1 + 2 * q) ** 2 - (2 * q * c) ** 2)
            chi_q = mp.diff(lambda q: self.second_moment(variance, bias, q), q)
        network = vanilla("erf", weight_variance=variance, bias_variance=bias)
        for estimate, exact in (
            (network.q, q),
            (network.c, c),
            (network.chi_q, chi_q),
            (network.chi_c, chi_c),
            (network.chi_1, chi_1),
        ):
            assert_bounds(estimate, float(exact))

    @pytest.mark.parametrize("bias", [0.0, 0.05, 1.0])
    def test_edge(self, bias):
        """σ_w² 4/π = √(1 + 4q) at q = σ_w² 2/π arcsin(2q/(1 + 2q)) + σ_b²."""
        edge = edge_of_chaos("erf", bias_variance=bias)
        if not bias:
            assert_bounds(edge.weight_variance, math.pi / 4)
            assert edge.q.value == 0
            return

        def distance(q):
            return self.second_moment(mp.pi / 4 * mp.sqrt(1 + 4 * q), bias, q) - q

        with mp.workdps(30):
            q = mp.findroot(distance, (bias + 0.5, bias + 2), solver="anderson")
            variance = mp.pi / 4 * mp.sqrt(1 + 4 * q)
        assert_bounds(edge.q, float(q))
        assert_bounds(edge.weight_variance, float(variance))


@pytest.mark.parametrize(("name", "variance", "bias"), CASES)
class TestMaps:
    """The fixed point against averages by plain trapezoids."""

    @staticmethod
    def integrals(name, q, c, nodes=4001):
        """E[φ²], E[φφ] and slopes by trapezoids, exact to about 1e-6 with kinks."""
        phi = as_activation(name)
        z = np.linspace(-9, 9, nodes)
        weight = np.exp(-(z**2) / 2)
        weight /= weight.sum()
        coarse, coarse_weight = z[::10], weight[::10] / weight[::10].sum()
        values, slopes = phi(math.sqrt(q) * z)
        second = math.sqrt(q) * (c * z[:, None] + math.sqrt(max(1 - c * c, 0)) * coarse)
        values2, slopes2 = (part @ coarse_weight for part in phi(second))
        slopes, slopes2 = np.nan_to_num(slopes, posinf=0), np.nan_to_num(slopes2, posinf=0)
        return weight @ values**2, weight @ (values * values2), weight @ (slopes * slopes2)

    def test_fixed_point(self, name, variance, bias):
        network = vanilla(name, weight_variance=variance, bias_variance=bias)
        q, c = network.q.value, network.c.value
        square, pair, slopes = self.integrals(name, q, c)
        assert variance * square + bias == pytest.approx(q, rel=1e-4)
        assert (variance * pair + bias) / q == pytest.approx(c, rel=1e-4)
        # Slopes of fractional powers have infinite peaks, which trapezoids miss.
        if "alpha" not in name:
            assert variance * slopes == pytest.approx(network.chi_c.value, rel=5e-3)

    def test_chi_q_is_the_slope_of_the_map(self, name, variance, bias):
        """∂F/∂q by central differences."""
        network = vanilla(name, weight_variance=variance, bias_variance=bias)
        q, step, phi = network.q.value, 1e-3 * network.q.value, as_activation(name)
        sums = [moments(phi, q + k * step).values[0] for k in (-2, -1, 1, 2)]
        slope = variance * (sums[0] - 8 * sums[1] + 8 * sums[2] - sums[3]) / (12 * step)
        assert network.chi_q.value == pytest.approx(slope, rel=1e-9)
        # With φ″ but without its peaks at kinks, E[φ′² + φφ″] is another number for kinks.
        assert network.chi_q.value != pytest.approx(network.chi_1.value, rel=1e-3)

    def test_it_attracts(self, name, variance, bias):
        network = vanilla(name, weight_variance=variance, bias_variance=bias)
        assert abs(network.chi_q.value) < 1
        assert network.chi_c.value < 1
        assert (network.c.value < 1) == (network.chi_1.value > 1)
        assert network.phase == ("chaotic" if network.chi_1.value > 1 else "ordered")
        assert network.q.error < 1e-12 * max(1, network.q.value)
        assert network.c.error < 1e-11


class TestSmallSignals:
    @pytest.mark.parametrize("name", ["tanh", "sin", "gelu", "elu(1)", "alpha_relu(1.5)"])
    def test_signals_die_out(self, name):
        network = vanilla(name, weight_variance=0.5)
        slope = {"gelu": 0.25, "alpha_relu(1.5)": 0.0}.get(name, 1.0)
        assert network.q == Estimate(0.0, 0.0, "closed form")
        assert network.c.value == 1
        assert_bounds(network.chi_1, 0.5 * slope)
        assert network.phase == "ordered"

    def test_tanh_at_its_edge(self):
        network = vanilla("tanh", weight_variance=1.0)
        assert network.q.value == 0
        assert 0 < network.q.error < 1e-12
        assert network.phase == "critical"
        assert network.xi_gradient == network.xi_c == network.xi_q == math.inf

    @pytest.mark.parametrize("excess", [1e-3, 1e-5])
    def test_tanh_above_its_edge(self, excess):
        """q = (σ_w² − 1)/2 to first order, far above rounding; odd φ leave c at 0."""
        network = vanilla("tanh", weight_variance=1 + excess)
        assert network.q.value == pytest.approx(excess / 2, rel=3 * excess)
        assert abs(network.q.value - excess / 2) > network.q.error
        assert abs(network.c.value) <= network.c.error

    def test_small_biases_tend_to_the_convention(self):
        network = vanilla("tanh", weight_variance=0.5, bias_variance=1e-8)
        assert network.c.value == 1
        assert network.chi_1.value == pytest.approx(0.5, rel=1e-6)


class TestStart:
    """Several fixed points: the one that inputs of unit second moment lead to."""

    def test_square(self):
        """0.6q² + 0.1 = q at 0.1068 (stable) and 1.56."""
        network = vanilla("square", weight_variance=0.2, bias_variance=0.1)
        assert_bounds(network.q, (1 - math.sqrt(0.76)) / 1.2)

    @pytest.mark.parametrize(
        ("name", "variance", "bias"),
        [("relu", 2.1, 0), ("relu", 2.0, 0.1), ("square", 1, 0), ("softplus", 2, 0)],
    )
    def test_growth_without_bound_is_refused(self, name, variance, bias):
        with pytest.raises(ValueError, match=r"without bound.*smaller weight_variance"):
            vanilla(name, weight_variance=variance, bias_variance=bias)

    @pytest.mark.parametrize("factor", [1.0, 2.3])
    def test_rounding_is_no_fixed_point(self, factor):
        """F(q)/q − 1 of softplus falls to 0 from above; rounding gives it either sign."""
        with pytest.raises(ValueError, match="without bound"):
            vanilla(lambda x: factor * softplus(x), weight_variance=2 / factor**2, bias_variance=0)

    @pytest.mark.parametrize("variance", [3.0, 40.0])
    def test_a_falling_map_cannot_oscillate(self, variance):
        """F′ ≥ −1/2 at a fixed point, even far beyond the peak of F."""
        bump = Activation("bump", lambda x: 4 * x * torch.exp(-2 * x * x))
        network = vanilla(bump, weight_variance=variance)
        q = network.q.value
        assert q == pytest.approx(variance * 16 * q / (1 + 8 * q) ** 1.5, rel=1e-12)
        assert -0.5 <= network.chi_q.value < 1


class TestDepthScales:
    """ξ_q = −1/log χ_q, ξ_c = −1/log χ_c, ξ_∇ = 1/|log χ_1|."""

    def test_signs(self):
        network = vanilla("tanh", weight_variance=4.0, bias_variance=0.1)
        assert network.xi_q == -1 / math.log(network.chi_q.value)
        assert network.xi_c == -1 / math.log(network.chi_c.value)
        assert network.xi_gradient == 1 / math.log(network.chi_1.value)
        assert max_trainable_depth(network.chi_1) == pytest.approx(16 * network.xi_gradient)
        ordered = vanilla("tanh", weight_variance=0.5)
        assert ordered.xi_gradient == ordered.xi_c == pytest.approx(1 / math.log(2))

    def test_extremes(self):
        def chi(value):
            return Estimate(value, 1e-15, "by hand")

        network = VanillaNetwork(chi(1.0), chi(1.0), chi(-0.5), chi(0.0), chi(1.0))
        assert network.xi_q == pytest.approx(1 / math.log(2))
        assert (network.xi_c, network.xi_gradient) == (0.0, math.inf)


class TestEdge:
    @pytest.mark.parametrize(
        ("name", "variance"),
        [("tanh", 1), ("relu", 2), ("leaky_relu(0.5)", 1.6), ("elu(1)", 1), ("hardtanh", 1)],
    )
    def test_without_biases(self, name, variance):
        assert_bounds(edge_of_chaos(name).weight_variance, variance)

    @pytest.mark.parametrize(
        ("name", "bias"),
        [("tanh", 0.05), ("tanh", 0.5), ("sigmoid", 0.5), ("hardtanh", 0.05), ("elu(1)", 0.5)],
    )
    def test_the_network_there_is_critical(self, name, bias):
        edge = edge_of_chaos(name, bias_variance=bias)
        there = vanilla(name, weight_variance=edge.weight_variance.value, bias_variance=bias)
        assert abs(there.chi_1.value - 1) <= there.chi_1.error + 1e-13
        assert abs(there.q.value - edge.q.value) <= there.q.error + edge.q.error
        beyond, below = (
            vanilla(name, weight_variance=f * edge.weight_variance.value, bias_variance=bias)
            for f in (1.01, 0.99)
        )
        assert (beyond.phase, below.phase) == ("chaotic", "ordered")

    @pytest.mark.parametrize("name", ["relu", "alpha_relu(1.5)", "identity"])
    def test_none(self, name):
        with pytest.raises(ValueError, match="no edge of chaos"):
            edge_of_chaos(name, bias_variance=0.5)

    def test_a_small_signal_edge_must_hold_small_signals(self):
        """GELU at σ_w² = 1/φ′(0)² = 4: E[φ²] grows faster than q, and signals run away."""
        with pytest.raises(ValueError, match="no edge of chaos"):
            edge_of_chaos("gelu")

    def test_a_narrow_step_is_seen_from_afar(self):
        """χ₁ − 1 = 17.7/σ to first order at large σ: it does not cross 0 a second time."""
        bent = Activation("bent", lambda x: torch.tanh(3 * x) + 0.3 * x)
        assert edge_of_chaos(bent, bias_variance=3.0).weight_variance.value == pytest.approx(
            1.04048, rel=1e-5
        )
        for q in (1e6, 1e8):
            square, _, slope = moments(bent, q).values
            assert math.sqrt(q) * (q * slope / square - 1) == pytest.approx(17.7, rel=0.01)

    def test_several(self):
        found = [
            EdgeOfChaos(Estimate(value, 0.0, "by hand"), Estimate(1.0, 0.0, "by hand"))
            for value in (1.04, 11.05)
        ]
        phi = as_activation("tanh")
        with pytest.raises(ValueError, match=r"several.*1\.04.*11\.05.*near"):
            _only(found, phi, 3.0, None)
        assert [_only(found, phi, 3.0, near) for near in (1.0, 20.0)] == found

    def test_the_search_ends_where_quadrature_does(self):
        assert_bounds(edge_of_chaos("sin", bias_variance=1e4).weight_variance, 2.0)
        with pytest.raises(ValueError, match=r"sin is too steep.*smaller.*bias_variance"):
            edge_of_chaos("sin", bias_variance=1e12)


class TestExtremes:
    """Weights and biases of any size: an answer with a true error, or a reason."""

    @pytest.mark.parametrize("variance", [1e12, 1e30])
    def test_tanh_is_a_sign(self, variance):
        """E tanh² = 1 − 2/(σ√2π) + O(σ⁻³), and E sech⁴ = (4/3)/(σ√2π)."""
        network = vanilla("tanh", weight_variance=variance)
        with mp.workdps(40):
            q = mp.findroot(
                lambda q: variance * (1 - mp.sqrt(2 / (mp.pi * q))) - q,
                variance * (1 - mp.mpf(variance) ** -0.5),
            )
            slope = float(variance * mp.mpf(4) / 3 / mp.sqrt(2 * mp.pi * q))
        assert abs(network.q.value - float(q)) <= network.q.error + variance**-0.5
        assert network.q.error <= 1e-13 * variance
        assert network.chi_1.value == pytest.approx(slope, rel=1e-12)
        assert abs(network.c.value) <= network.c.error < 1e-12
        assert network.chi_c.value == pytest.approx(2 / math.pi, rel=1e-3)

    @pytest.mark.parametrize("name", ["tanh", "gelu", "sigmoid"])
    def test_large_biases_are_the_second_moment(self, name):
        network = vanilla(name, weight_variance=1e-60, bias_variance=1e30)
        assert abs(network.q.value - 1e30) <= network.q.error <= 1e-14 * 1e30

    def test_a_bound_far_above(self):
        """max(x, 0)^0.75 has its fixed point at (σ_w²c)⁴, here 1e35."""
        q = settle_variance(Setting("alpha_relu(0.75)", 4, weight_variance=1e9))
        scale = 2**-0.25 * math.gamma(1.25) / math.sqrt(math.pi)
        assert_bounds(q, (1e9 * scale) ** 4, at_most=1e-12)

    def test_a_fixed_point_on_the_grid_is_not_silence(self):
        """σ_w²(1 − e^{−2q})/2 = q at 50, half the start; signals of sin do not die out there."""
        q = settle_variance(Setting("sin", 4, weight_variance=100.0))
        assert_bounds(q, 50.0, at_most=1e-13)

    @pytest.mark.parametrize("std", [40.0, 100.0, 150.0])
    def test_waves_are_followed_or_refused(self, std):
        square, _, slope = moments(as_activation("sin"), std**2).values
        errors = moments(as_activation("sin"), std**2).errors
        assert abs(square - 0.5) <= errors[0] < 1e-10
        assert abs(slope - 0.5) <= errors[2] < 1e-10
        with pytest.raises(ValueError, match=r"sin is too steep.*smaller.*weight_variance"):
            moments(as_activation("sin"), (10 * std) ** 2)

    @each("name", ["tanh", "relu", "gelu", "sin", "identity"])
    @each("variance", [1e-300, 1e300, math.inf, math.nan, 0.0, -1.0])
    def test_what_is_refused_repeats_the_number(self, name, variance):
        with pytest.raises(
            ValueError, match=r"^weight_variance.*(must|use one between)"
        ) as caught:
            vanilla(name, weight_variance=variance, bias_variance=0.1)
        assert f"{variance:g}" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"weight_variance": -1.0}, ValueError, "weight_variance"),
        ({"weight_variance": 1.0, "bias_variance": -0.1}, ValueError, "bias_variance"),
        ({"weight_variance": math.nan}, ValueError, "weight_variance"),
        ({"weight_variance": "2"}, ValueError, "weight_variance"),
    ],
)
def test_numbers_out_of_range_are_refused(options, error, match):
    with pytest.raises(error, match=match):
        vanilla("tanh", **options)


def test_an_overflow_is_refused_by_name():
    wild = Activation("wild", lambda x: torch.exp(x**4))
    with pytest.raises(ValueError, match="wild"):
        vanilla(wild, weight_variance=1.0)


@cache
def simulate(name, variance, bias, *, width=300, depth=24, networks=12):
    """Per network: mean q, mean c and mean gradient ratio over the deep half, by autograd."""
    phi, generator = as_activation(name).function, torch.Generator().manual_seed(0)

    def normal(*shape, scale=1.0):
        return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)

    rows = []
    for _ in range(networks):
        # Two inputs with correlation 1/2.
        shared, h, layers = normal(1, width), normal(2, width), []
        h = ((h + shared) / 2**0.5).requires_grad_()
        for _ in range(depth):
            weight = normal(width, width, scale=(variance / width) ** 0.5)
            h = phi(h) @ weight + normal(1, width, scale=bias**0.5)
            layers.append(h)
        top = (h[0] * normal(width)).sum()
        norms = [g[0].square().sum().item() for g in torch.autograd.grad(top, layers)]
        deep = [h.detach() for h in layers[depth // 2 :]]
        q = np.mean([h.square().mean().item() for h in deep])
        together = np.mean([(h[0] * h[1]).mean().item() for h in deep])
        ratio = np.mean([a / b for a, b in pairwise(norms)][depth // 2 :])
        rows.append((q, together, ratio))
    rows = np.array(rows)
    return rows.mean(0), rows.std(0, ddof=1) / math.sqrt(networks)


@pytest.mark.parametrize(
    ("name", "variance", "bias"),
    [("tanh", 9.0, 0.5), ("hardtanh", 6.0, 0.5), ("relu", 1.0, 0.2)],
)
class TestSimulation:
    """The first half of 24 layers leaves the start behind: ξ_q and ξ_c are below 4."""

    def test_finite_networks_agree(self, name, variance, bias):
        network = vanilla(name, weight_variance=variance, bias_variance=bias)
        means, errors = simulate(name, variance, bias)
        q, c = network.q.value, network.c.value
        assert max(network.xi_q, network.xi_c) < 4
        z = (means - [q, q * c, network.chi_1.value]) / errors
        assert np.abs(z).max() < 3.5, z

    def test_another_weight_variance_is_rejected(self, name, variance, bias):
        other = vanilla(name, weight_variance=1.1 * variance, bias_variance=bias)
        means, errors = simulate(name, variance, bias)
        assert abs(means[0] - other.q.value) > 4 * errors[0]


def test_slopes_within_rounding_of_a_power_are_in_the_error():
    """σ_w² E[φ′(u)²] at q = 0.8791640369722, by substitution at the kink with 40 digits."""
    network = vanilla(lambda x: (x - 0.5).abs() ** 0.6, weight_variance=1.0)
    assert_bounds(network.q, 0.8791640369722223, at_most=1e-13)
    assert_bounds(network.chi_1, 1.377554003068736, at_most=2e-3)
    assert network.chi_c.error > 1e-10  # both numbers may lie beside the kink
