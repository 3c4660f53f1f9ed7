"""Theorem 9: the explosion rate as a weighted mean over the degrees of an activation."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp

from equipoise.numerics.quadrature import gegenbauer
from equipoise.theory import UnstableFixedPointWarning, bsb1_fixed_point, explosion_rate
from equipoise.theory.activation.catalogue import ACTIVATIONS, Activation, Kink
from equipoise.theory.batch_norm.spectra.gegenbauer_expansion import gegenbauer_expansion
from reference.gegenbauer_series import DIGITS, coefficients, pair_correlation
from support.cases import each

BATCHES = [4, 5, 8, 33, 1000]


@pytest.fixture(autouse=True)
def _rates_of_unstable_points_are_wanted_too():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnstableFixedPointWarning)
        yield


def pure(batch_size, degree):
    """The activation ψ_k."""

    def psi(x):
        *_, last = gegenbauer.polynomials(batch_size, degree + 1, x.detach().numpy())
        return torch.from_numpy(last)

    def slope(x):  # by a complex step, which is exact for polynomials
        points = x.detach().numpy() + 1e-30j
        *_, last = gegenbauer.polynomials(batch_size, degree + 1, points)
        return torch.from_numpy(last.imag / 1e-30)

    return Activation(f"psi_{degree}", psi, slope)


@pytest.mark.parametrize("B", BATCHES)
class TestPureActivations:
    """φ = ψ_k has one coefficient and the rate k(k + B − 3)/(B − 3)."""

    @each("degree", [1, 2, 3, 7])
    def test_psi(self, B, degree):
        expansion = gegenbauer_expansion(pure(B, degree), B, terms=10)
        one_hot = np.eye(10)[degree]
        assert (np.abs(expansion.coefficients - one_hot) <= expansion.errors).all()
        assert expansion.errors.max() < 1e-12
        exact = degree * (degree + B - 3) / (B - 3)
        assert abs(expansion.rate.value - exact) <= expansion.rate.error < 1e-11 * exact

    def test_square(self, B):
        rate = gegenbauer_expansion("square", B, terms=3).rate
        assert abs(rate.value - 2 * (B - 1) / (B - 3)) <= rate.error < 1e-11 * rate.value

    def test_identity(self, B):
        expansion = gegenbauer_expansion("identity", B, terms=2)
        assert expansion.coefficients == pytest.approx([0, 1], abs=1e-13)
        assert expansion.gaps == pytest.approx([0, B / (B - 1)], abs=1e-15)
        assert abs(expansion.rate.value - (B - 2) / (B - 3)) <= expansion.rate.error

    @each(("name", "terms"), [("square", 2), ("relu", 1)])
    def test_a_series_cut_before_its_first_varying_term_has_no_rate(self, B, name, terms):
        expansion = gegenbauer_expansion(name, B, terms=terms)
        with pytest.raises(ValueError, match=f"first {terms} terms .* Use more terms"):
            _ = expansion.rate


@pytest.mark.parametrize(
    ("name", "phi", "B"),
    [("tanh", mp.tanh, 4), ("gelu", lambda x: x * mp.ncdf(x), 5), ("sin", mp.sin, 16)],
)
def test_coefficients_in_thirty_digits(name, phi, B):
    expansion = gegenbauer_expansion(name, B, terms=16)
    with mp.workdps(DIGITS):
        exact = np.array([float(a) for a in coefficients(phi, B, 16)])
        gaps = np.array([float(1 - pair_correlation(B, k)) for k in range(16)])
    assert (np.abs(expansion.coefficients - exact) <= expansion.errors).all()
    assert expansion.errors.max() < 1e-14
    assert expansion.gaps == pytest.approx(gaps, abs=1e-14)


def test_another_batch_has_other_coefficients():
    a, b = (gegenbauer_expansion("tanh", B, terms=4).coefficients for B in (16, 17))
    assert np.abs(a - b).max() > 1e-4


@pytest.mark.parametrize("B", [4, 5, 16, 200])
@pytest.mark.parametrize("name", ["tanh", "gelu", "relu", "hardtanh", "elu(1)", "alpha_relu(1.5)"])
class TestAgainstQuadrature:
    """The series, with its error, meets integrals that know nothing of it."""

    def test_rate_and_kappa(self, name, B):
        expansion, point = gegenbauer_expansion(name, B, terms=200), bsb1_fixed_point(name, B)
        rate = explosion_rate(name, B)
        assert abs(expansion.rate.value - rate.value) <= expansion.rate.error + rate.error
        assert abs(expansion.kappa.value - point.kappa.value) <= (
            expansion.kappa.error + point.kappa.error
        )

    def test_the_error_is_not_absurdly_large(self, name, B):
        expansion, rate = gegenbauer_expansion(name, B, terms=200), explosion_rate(name, B)
        distance = abs(expansion.rate.value - rate.value)
        assert expansion.rate.error <= 1.2 * distance + 1e-12

    def test_parseval(self, name, B):
        expansion, point = gegenbauer_expansion(name, B, terms=200), bsb1_fixed_point(name, B)
        q, partial = expansion.second_moment, expansion.partial_second_moments
        assert abs(q.value - point.q.value) <= q.error + point.q.error
        assert (np.diff(partial) >= 0).all()
        assert 0 <= q.value - partial[-1] + q.error < 1e-4
        # Without the last tenth of the energy Parseval would not hold.
        assert q.value - partial[0] > 0.01


class TestKinks:
    """Section 6: for kinks the tail of the rate decays like 1/K."""

    def test_relu_is_still_wrong_by_5e_4_at_3000_terms(self):
        exact = explosion_rate("relu", 16).value
        rate = gegenbauer_expansion("relu", 16, terms=3000).rate
        assert exact - rate.value == pytest.approx(5e-4, rel=0.02)
        assert exact - rate.value <= rate.error < 6e-4

    def test_the_tail_halves_when_the_terms_double(self):
        exact = explosion_rate("relu", 16).value
        few, many = (
            exact - gegenbauer_expansion("relu", 16, terms=terms).rate.value
            for terms in (500, 1000)
        )
        assert few / many == pytest.approx(2, rel=0.02)

    def test_a_smooth_activation_has_no_such_tail(self):
        assert gegenbauer_expansion("gelu", 16, terms=40).rate.error < 1e-12

    @pytest.mark.parametrize("B", [4, 16, 10**4])
    def test_high_degrees_stay_accurate(self, B):
        expansion = gegenbauer_expansion("relu", B, terms=3000)
        assert expansion.errors.max() < 1e-12
        # Beyond the first, ReLU's odd coefficients vanish: x = relu(x) − relu(−x).
        assert (np.abs(expansion.coefficients[3::2]) <= expansion.errors[3::2]).all()
        assert np.abs(expansion.coefficients[2:200:2]).min() > 1e-8


@each("name", sorted(ACTIVATIONS))
def test_no_activation_is_below_the_affine_ones(name):
    B = 12
    rate = gegenbauer_expansion(name, B, terms=60, beta=0.2).rate
    assert rate.value >= (B - 2) / (B - 3) - rate.error
    if name not in ("identity",):
        assert rate.value > (B - 2) / (B - 3) + rate.error / 1e3


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    a=st.floats(0.1, 10) | st.floats(-10, -0.1),
    b=st.floats(-5, 5),
    batch_size=st.integers(4, 300),
    gamma=st.floats(0.2, 2) | st.floats(-2, -0.2),
    beta=st.floats(-1, 1),
)
def test_affine_maps_of_the_activation_change_nothing(a, b, batch_size, gamma, beta):
    plain = Activation("soft", lambda x: torch.relu(x) + torch.tanh(x), kinks=(Kink(0.0),))
    moved = Activation("moved", lambda x: a * plain.function(x) + b, kinks=plain.kinks)
    options = {"terms": 40, "gamma": gamma, "beta": beta}
    one, two = (gegenbauer_expansion(phi, batch_size, **options) for phi in (plain, moved))
    assert two.rate.value == pytest.approx(one.rate.value, rel=1e-11)
    assert two.kappa.value == pytest.approx(a * a * one.kappa.value, rel=1e-11)
    assert two.coefficients[1:] == pytest.approx(a * one.coefficients[1:], abs=1e-11 * abs(a))


@pytest.mark.parametrize("options", [{"terms": 0}, {"terms": 2.5}, {"terms": True}], ids=str)
def test_senseless_numbers_of_terms_are_refused(options):
    with pytest.raises(ValueError, match="terms"):
        gegenbauer_expansion("relu", 8, **options)


def test_small_batches_and_overflows_are_refused():
    with pytest.raises(ValueError, match="at least 4"):
        gegenbauer_expansion("relu", 3, terms=5)
    wild = Activation("wild", lambda x: torch.exp(x**4))
    with pytest.raises(ValueError, match="overflows"):
        gegenbauer_expansion(wild, 100, terms=5)


def test_slopes_within_rounding_of_a_power_are_in_the_error():
    """E[(n − w²) f′²] by substitution at the kink, in long double with 90 and 120 nodes."""
    expansion = gegenbauer_expansion(
        lambda x: (x - 0.5).abs() ** 0.53, 6, gamma=0.92135, beta=-0.463699, terms=60
    )
    energy = expansion.slope_energy
    assert abs(energy.value - 9.0828108) <= energy.error < 2
    # A kink at 0 has exact neighbours, and nothing to add.
    beside_zero = gegenbauer_expansion("alpha_relu(0.75)", 6, beta=0.5, terms=60).slope_energy
    assert beside_zero.error < 1e-13
