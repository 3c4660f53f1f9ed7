"""ψ_k are orthonormal for one coordinate of a sphere, and correlate by ρ_k at two."""

import numpy as np
import pytest
from scipy.special import poch

from equipoise.numerics.quadrature import gegenbauer
from reference.gegenbauer_series import pair_correlation
from reference.mean_field import angle_law
from support.cases import each


def moment(B, degree):
    """E[w^degree] of one coordinate, by the beta function's moments."""
    m = degree / 2
    return 0.0 if degree % 2 else (B - 1) ** m * poch(0.5, m) / poch((B - 1) / 2, m)


def stacked(B, count, points):
    return np.stack(list(gegenbauer.polynomials(B, count, points)))


@pytest.mark.parametrize("B", [4, 5, 6, 17, 1000])
@pytest.mark.parametrize("n", [3, 8, 20])
class TestGauss:
    """An n-point rule is exact up to degree 2n - 1, and no further."""

    def test_exact_up_to_degree_2n_minus_1(self, B, n):
        w, weights = gegenbauer.gauss(B, n)
        for degree in range(2 * n):
            size = moment(B, degree + degree % 2)
            assert abs(weights @ w**degree - moment(B, degree)) <= 1e-13 * n * size

    def test_no_further(self, B, n):
        """E[ψ_n²] = 1, but the nodes are the roots of ψ_n: the rule answers 0."""
        w, weights = gegenbauer.gauss(B, n)
        assert weights @ stacked(B, n + 1, w)[n] ** 2 < 1e-20

    def test_nodes_lie_on_the_sphere_and_mirror_each_other(self, B, n):
        w, weights = gegenbauer.gauss(B, n)
        assert (np.abs(w) < np.sqrt(B - 1)).all()
        assert (w == -w[::-1]).all()
        np.testing.assert_allclose(weights, weights[::-1], rtol=1e-12)
        assert weights.sum() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("B", [4, 5, 32, 10**6])
def test_polynomials_are_orthonormal(B):
    w, weights = gegenbauer.gauss(B, 40)
    psi = stacked(B, 40, w)
    np.testing.assert_allclose((psi * weights) @ psi.T, np.eye(40), rtol=0, atol=1e-13)
    assert (gegenbauer.gauss_transform(B, 40, 12) == psi[:12]).all()


def test_polynomials_of_another_batch_are_not_orthonormal():
    w, weights = gegenbauer.gauss(8, 40)
    psi = stacked(9, 40, w)
    assert np.abs((psi * weights) @ psi.T - np.eye(40)).max() > 0.1


def test_polynomials_tend_to_hermite_polynomials():
    w = np.linspace(-2, 2, 9)
    hermite = (w**3 - 3 * w) / np.sqrt(6)
    np.testing.assert_allclose(stacked(10**9, 4, w)[3], hermite, atol=1e-7)


@pytest.mark.parametrize("B", [4, 5, 6, 9])
def test_pair_correlations_are_averages_over_two_samples(B):
    """E[ψ_j(z1) ψ_k(z2)] = δ_jk ρ_k, by the joint density's double integral."""
    law, count = angle_law(B, 40), 10
    first = stacked(B, count, law.z1 * np.ones_like(law.z2))
    second = stacked(B, count, law.z2)
    double_integral = np.einsum("ab,jab,kab->jk", law.weights, first, second)
    rho = gegenbauer.pair_correlations(B, count)
    np.testing.assert_allclose(double_integral.astype(float), np.diag(rho), rtol=0, atol=1e-14)


@pytest.mark.parametrize("B", [4, 5, 16, 100])
def test_pair_correlations_in_closed_form(B):
    rho = gegenbauer.pair_correlations(B, 61)
    exact = np.array([float(pair_correlation(B, k)) for k in (0, 1, 2, 7, 30, 60)])
    np.testing.assert_allclose(rho[[0, 1, 2, 7, 30, 60]], exact, rtol=0, atol=2e-15)
    assert abs(rho).max() == rho[0] == 1


def test_pair_correlations_of_another_batch_differ():
    assert (
        abs(gegenbauer.pair_correlations(5, 8) - gegenbauer.pair_correlations(6, 8)).max() > 0.01
    )


@each("B", [4, 5, 7, 12, 40])
@each("count", [8, 27, 141])
def test_correlation_tail_bounds_every_later_correlation(B, count):
    tail = gegenbauer.correlation_tail(B, count)
    later = np.abs(gegenbauer.pair_correlations(B, 3000)[count:])
    assert tail == later.max()


@each("B", [4, 5, 7, 12, 40, 10**6])
@each("least", [1e-3, 1e-17])
def test_every_correlation_after_those_counted_is_small(B, least):
    count = gegenbauer.count_above(B, least, 2500)
    rho = np.abs(gegenbauer.pair_correlations(B, 3000))
    assert rho[count - 1] > least or count == 2500
    assert rho[count:].max() <= least or count == 2500
    assert gegenbauer.count_above(B, least, 3) == min(count, 3)


def test_cached_arrays_are_read_only():
    for array in (*gegenbauer.gauss(6, 5), gegenbauer.pair_correlations(6, 5)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.0


def test_batch_sizes_in_rows_are_each_on_its_own():
    sizes, points = np.array([5.0, 33.0]), np.array([[0.1, -1.2], [0.4, 2.0]])
    rows = list(gegenbauer.polynomials(sizes, 5, points))
    correlations = gegenbauer.correlations_of(sizes, 5)
    for i, B in enumerate((5, 33)):
        alone = list(gegenbauer.polynomials(B, 5, points[i]))
        np.testing.assert_array_equal([row[i] for row in rows], alone)
        np.testing.assert_array_equal(correlations[:, i], gegenbauer.pair_correlations(B, 5))
