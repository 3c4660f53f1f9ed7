"""Gaussian averages agree with closed forms, for kinks and for correlations close to one."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from scipy.special import erf

from equipoise.numerics.quadrature.gaussian import (
    LEVELS,
    Piecewise,
    average,
    pair_average,
    partition,
)

NONE = np.empty(0), np.empty(0, bool)
GAPS = [1.9, 1.0, 0.6, 1e-2, 1e-5, 1e-9]


def kinked(function, *kinks, powers=False):
    return Piecewise(function, np.array(kinks), np.full(len(kinks), powers))


def half_square_difference(first, second):
    return (first - second) ** 2 / 2


def product(first, second):
    return first * second


def slope_like(x):
    """|x|^-0.4, whose square has a mean."""
    return np.where(x == 0, 0.0, np.abs(np.where(x == 0, 1.0, x)) ** -0.4)[None]


class TestOneNumber:
    @pytest.mark.parametrize("std", [1e-3, 1.0, 50.0])
    @pytest.mark.parametrize("power", [0.3, 0.5, 1.0, 1.5, 2.7])
    def test_absolute_moments(self, power, std):
        f = kinked(lambda x: np.abs(x)[None] ** power, 0.0, powers=True)
        exact = std**power * 2 ** (power / 2) * math.gamma((power + 1) / 2) / math.sqrt(math.pi)
        result = average(f, std, lambda values, _: values, 1)
        assert result == pytest.approx([exact], rel=1e-13)

    @pytest.mark.parametrize("at", [-2.0, 0.3, 6.0, 40.0])
    def test_a_kink_anywhere(self, at):
        """E[max(z − a, 0)] = pdf(a) − a·(1 − cdf(a))."""
        f = kinked(lambda x: np.maximum(x - at, 0)[None], at)
        exact = mp.npdf(at) - at * mp.ncdf(-at)
        result = average(f, 1.0, lambda values, _: values, 0)[0]
        assert abs(result - float(exact)) < 1e-15

    def test_integrands_may_use_the_standard_normal_itself(self):
        square = Piecewise(lambda x: x[None] ** 2, *NONE)
        assert average(square, 3.0, lambda v, z: v * z**2, 0) == pytest.approx([27.0], rel=1e-14)

    def test_a_fractional_power_treated_as_an_analytic_kink_errs(self):
        careless, careful = (kinked(slope_like, 0.0, powers=powers) for powers in (False, True))
        exact = 2**-0.2 * math.gamma(0.3) / math.sqrt(math.pi)
        assert average(careful, 1.0, lambda v, _: v, 1)[0] == pytest.approx(exact, rel=1e-13)
        assert abs(average(careless, 1.0, lambda v, _: v, 1)[0] / exact - 1) > 1e-12


class TestPartition:
    def test_narrow_where_the_function_is_steep(self):
        edges = partition(Piecewise(lambda x: np.tanh(x)[None], *NONE), 300.0).edges
        widths = np.diff(edges)
        assert widths[np.abs(edges[:-1]).argmin()] < 2
        assert widths.max() > 300

    @pytest.mark.parametrize("at", [5.123, 25.4])
    def test_down_to_a_kink_that_is_not_declared(self, at):
        """E[max(x − a, 0)²] = (σ² + a²) Q − aσ pdf at σ = 5, by mpmath."""
        f = Piecewise(lambda x: np.maximum(x - at, 0)[None], *NONE)
        with mp.workdps(30):
            a = mp.mpf(at) / 5
            exact = 25 * ((1 + a * a) * mp.ncdf(-a) - a * mp.npdf(a))
        result = average(f, 5.0, lambda v, _: v**2, 0)[0]
        assert result == pytest.approx(float(exact), rel=2e-14)

    def test_what_panels_are_too_wide_for_is_counted(self):
        """With fewer bisections the kink is left inside a panel; the count bounds the error."""
        f = Piecewise(lambda x: np.maximum(x - 0.3, 0)[None], *NONE)
        cut = partition(f, 1.0, bisections=6)
        with mp.workdps(30):
            a = mp.mpf("0.3")
            exact = float((1 + a * a) * mp.ncdf(-a) - a * mp.npdf(a))
        error = abs(average(f, 1.0, lambda v, _: v**2, 0, cut=cut)[0] - exact)
        assert 1e-12 < error < cut.left_out[0]
        assert partition(f, 1.0).left_out[0] < 1e-13

    def test_a_jump_that_no_panel_can_resolve_is_told(self):
        jump = Piecewise(lambda x: np.sign(x - 0.3)[None], *NONE)
        assert partition(jump, 1.0).deviation > 0.1

    @pytest.mark.parametrize(("power", "reach"), [(1, 10), (12, 14), (30, 16)])
    def test_as_far_as_the_function_matters(self, power, reach):
        f = Piecewise(lambda x: x[None] ** power, *NONE)
        assert partition(f, 1.0).reach == reach
        exact = math.prod(range(1, 2 * power, 2))
        assert average(f, 1.0, lambda v, _: v**2, 0)[0] == pytest.approx(exact, rel=1e-13)

    def test_averages_that_do_not_exist_or_lie_beyond_reach_are_told(self):
        for function in (lambda x: np.exp(x**2 / 3.9), lambda x: np.maximum(x - 35.5, 0)):
            assert not partition(Piecewise(lambda x, g=function: g(x)[None], *NONE), 1.0).whole

    def test_around_another_mean_distances_to_a_kink_at_zero_are_exact(self):
        """E|x|^-0.8 over N(1/2, 1) = 2^-0.4 Γ(0.1)/√π M(0.4, 0.5, -1/8), M Kummer's function."""
        f = kinked(slope_like, 0.0, powers=True)
        with mp.workdps(30):
            half = mp.mpf(1) / 2
            exact = 2 ** mp.mpf("-0.4") * mp.gamma(mp.mpf("0.1")) / mp.sqrt(mp.pi)
            exact *= mp.hyp1f1(mp.mpf("0.4"), half, -(half**3))
        result = average(f, 1.0, lambda v, _: v**2, 2, mean=0.5)[0]
        assert result == pytest.approx(float(exact), rel=2e-13)

    def test_rounding_noise_does_not_multiply_panels(self):
        noisy = Piecewise(lambda x: (np.tanh(x) - x)[None], *NONE)
        assert len(partition(noisy, 1e-4).edges) < 400


class TestTwoNumbers:
    @pytest.mark.parametrize("std", [0.1, 1.0, 30.0])
    @pytest.mark.parametrize("gap", GAPS)
    def test_erf(self, gap, std):
        """Section 1: E[φφ] = 2/π arcsin(2Σ₁₂ / (1 + 2q))."""
        f = Piecewise(lambda x: erf(x)[None], *NONE)
        with mp.workdps(40):
            q, c = mp.mpf(std) ** 2, 1 - mp.mpf(gap)
            together, alone = (2 / mp.pi * mp.asin(2 * q * k / (1 + 2 * q)) for k in (c, 1))
        assert pair_average(f, std, gap, product, 0)[0] == pytest.approx(
            float(together), abs=1e-14
        )
        difference = pair_average(f, std, gap, half_square_difference, 0)[0]
        # Values of the function have lost digits of their difference: ε_mach / √gap.
        assert difference == pytest.approx(float(alone - together), rel=1e-13 + 1e-15 / gap**0.5)

    @pytest.mark.parametrize("gap", GAPS)
    def test_relu(self, gap):
        """Section 12: J₁ and, for the slopes, J₀."""
        f = kinked(lambda x: np.stack([np.maximum(x, 0), (x > 0) * 1.0]), 0.0)
        with mp.workdps(40):
            c = 1 - mp.mpf(gap)
            angle = mp.pi - mp.acos(c)
            values = 1 - (mp.sqrt(1 - c * c) + angle * c) / mp.pi
            slopes = angle / mp.pi / 2

        def both(first, second):
            return np.stack([(first[0] - second[0]) ** 2 / 2, first[1] * second[1]])

        result = pair_average(f, 2.0, gap, both, 1)
        assert result[0] == pytest.approx(float(values) * 2, rel=1e-13 + 1e-15 / gap**0.5)
        assert result[1] == pytest.approx(float(slopes), rel=1e-13)

    @pytest.mark.parametrize("gap", GAPS)
    @pytest.mark.parametrize("power", [0.5, 1.5, -0.25])
    def test_fractional_powers(self, power, gap):
        """J_α as an angular integral, between signals that are positive."""
        f = kinked(
            lambda x: np.where(x > 0, np.abs(np.where(x == 0, 1, x)) ** power, 0.0)[None],
            0.0,
            powers=True,
        )
        with mp.workdps(30):
            # E over the wedge in polar coordinates: radius times angle.
            c, p = 1 - mp.mpf(gap), mp.mpf(power)
            a, b = mp.mpf(1) / 2 + p, 1 + p
            even = mp.gamma((p + 1) / 2) ** 2 * mp.hyp2f1(-p / 2, -p / 2, 0.5, c * c)
            odd = mp.gamma(b - p / 2) ** 2 * mp.hyp2f1((1 - p) / 2, (1 - p) / 2, 1.5, c * c)
            kernel = (even + 2 * c * odd) / (2 * mp.sqrt(mp.pi) * mp.gamma(a))
            exact = 2 ** (p - 1) * mp.gamma(a) / mp.sqrt(mp.pi) * kernel
        result = pair_average(f, 1.0, gap, product, 1)[0]
        assert result == pytest.approx(float(exact), rel=1e-12)

    @pytest.mark.parametrize("gap", [1.0, 0.1, 1e-4])
    def test_a_fractional_power_treated_as_an_analytic_kink_errs(self, gap):
        careless, careful = (kinked(slope_like, 0.0, powers=powers) for powers in (False, True))
        results = [pair_average(f, 1.0, gap, product, 1)[0] for f in (careless, careful)]
        assert abs(results[0] - results[1]) > 1e-11  # levels agree to 1e-13


def inner_mean(at, centre, spread):
    """E[max(y − at, 0)] for y ~ N(centre, spread²)."""
    d = (centre - at) / spread
    return spread * (mp.npdf(d) + d * mp.ncdf(d))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(at=st.floats(-3, 3), gap=st.floats(1e-3, 1.95), std=st.floats(0.3, 3))
def test_shifted_kinks_against_an_integral_in_thirty_digits(at, gap, std):
    f = kinked(lambda x: np.maximum(x - at, 0)[None], at)
    c = 1 - gap
    spread = std * math.sqrt(gap * (2 - gap))
    # Where the inner mean turns: at a distance of a few spreads from the kink's image.
    reach = 12 * std
    images = [at / c + k * spread / abs(c) for k in (-8, -4, -2, 0, 2, 4, 8)] if c else []
    cuts = sorted({at, *(x for x in images if at < x < reach), max(reach, at + std)})
    exact = mp.quad(
        lambda x: (x - at) * mp.npdf(x / std) / std * inner_mean(at, c * x, spread), cuts
    )
    result = pair_average(f, std, gap, product, 1)[0]
    assert result == pytest.approx(float(exact), rel=1e-11, abs=1e-14)


@pytest.mark.parametrize("gap", GAPS)
def test_levels_agree(gap):
    f = kinked(lambda x: np.clip(x, -1, 1)[None], -1.0, 1.0)
    results = [pair_average(f, 1.3, gap, product, level)[0] for level in range(LEVELS)]
    assert np.ptp(results) < 1e-14
