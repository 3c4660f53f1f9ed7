"""Lanczos' recurrence, its Ritz pairs and Gauss' rule, against explicit matrices."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from equipoise.numerics.lanczos.iteration import lanczos, random_start

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def symmetric(eigenvalues, seed=0, dtype=torch.float64):
    """A matrix with these eigenvalues, and its eigenvectors as columns."""
    values = torch.as_tensor(eigenvalues, dtype=torch.float64)
    n = len(values)
    normal = torch.randn(n, n, generator=generator(seed), dtype=torch.float64)
    vectors = torch.linalg.qr(normal)[0]
    return (vectors @ torch.diag(values) @ vectors.T).to(dtype), vectors


def run(A, *, steps=1000, tolerance=1e-10, seed=0, **options):
    start = random_start(len(A), generator(seed), A)
    return lanczos(lambda v: A @ v, start, steps=steps, tolerance=tolerance, **options)


SPECTRA = {
    "uniform": torch.linspace(-1, 1, 60),
    "outliers": torch.cat([torch.linspace(-0.01, 0.01, 55), torch.tensor([-3.0, 1, 2, 4, 4.1])]),
    "geometric": 0.7 ** torch.arange(50.0),
    "huge": 1e12 * torch.linspace(1, 3, 40),
    "tiny": 1e-30 * torch.linspace(-1, 3, 40),  # its squares vanish in float32
    "negative": torch.linspace(-9, -1, 30),
    "low rank": torch.cat([torch.zeros(40), torch.tensor([-1.0, 2.0])]),
    "repeated": torch.tensor([-2.0] * 10 + [5.0] * 10 + [1.0] * 10),
    "identity": torch.ones(20),
    "zero": torch.zeros(20),
    "one number": torch.tensor([-3.0]),
    "two numbers": torch.tensor([1.0, -3.0]),
}
every_spectrum = pytest.mark.parametrize("values", SPECTRA.values(), ids=SPECTRA)


@every_spectrum
class TestAnySpectrum:
    def test_extremal_eigenvalues(self, values):
        A, _ = symmetric(values)
        krylov = run(A)
        smallest, largest = krylov.extremes()
        scale = float(values.abs().max())
        assert krylov.converged
        assert abs(smallest.value - float(values.min())) <= smallest.distance + 1e-14 * scale
        assert abs(largest.value - float(values.max())) <= largest.distance + 1e-14 * scale
        assert max(smallest.distance, largest.distance) <= 1e-10 * scale

    def test_ritz_vectors_satisfy_the_recurrence(self, values):
        """Ay = θy + r with ‖y‖ = 1 and ‖r‖ the residual, after steps that are too few."""
        A, _ = symmetric(values)
        for pair in run(A, steps=5).extremes():
            scale = float(values.abs().max()) or 1.0
            assert_close(
                A @ pair.vector / scale,
                (pair.value * pair.vector + pair.remainder) / scale,
                **EXACT,
            )
            assert_close(float(pair.vector.norm()), 1.0, **EXACT)
            assert_close(float((pair.remainder / scale).norm()), pair.residual / scale, **EXACT)

    def test_a_matrix_in_float32(self, values):
        A, _ = symmetric(values, dtype=torch.float32)
        smallest, largest = run(A, tolerance=1e-5).extremes()
        scale = float(values.abs().max())
        assert abs(smallest.value - float(values.min())) <= smallest.distance + 1e-6 * scale
        assert abs(largest.value - float(values.max())) <= largest.distance + 1e-6 * scale


class TestRecurrence:
    def test_basis_is_orthonormal_and_tridiagonalises(self):
        A, _ = symmetric(SPECTRA["outliers"])
        krylov = run(A, steps=40, full=True)
        Q = krylov.basis[:40]
        T = np.diag(krylov.alpha) + np.diag(krylov.beta[:-1], 1) + np.diag(krylov.beta[:-1], -1)
        assert_close(Q @ Q.T, torch.eye(40, dtype=torch.float64), rtol=0, atol=1e-14)
        assert_close(Q @ A @ Q.T, torch.from_numpy(T), rtol=0, atol=1e-14)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_orthogonal_beyond_convergence(self, dtype):
        """Without reorthogonalisation the same run finds copies of the outliers, not a basis."""
        A, _ = symmetric(torch.cat([1e-3 * torch.rand(290), torch.arange(1.0, 11)]), dtype=dtype)
        Q = run(A, steps=120, full=True).basis[:-1]
        assert_close(
            Q @ Q.T, torch.eye(len(Q), dtype=dtype), rtol=0, atol=20 * torch.finfo(dtype).eps
        )

        plain = [random_start(len(A), generator(), A)]
        plain[0] /= plain[0].norm()
        beta, before = 0.0, torch.zeros_like(plain[0])
        for _ in range(119):
            left = A @ plain[-1] - beta * before
            left -= (left @ plain[-1]) * plain[-1]
            beta, before = left.norm(), plain[-1]
            plain.append(left / beta)
        lost = torch.stack(plain) @ torch.stack(plain).T
        assert float((lost - torch.eye(120, dtype=dtype)).abs().max()) > 0.5

    def test_stops_where_the_space_is_invariant(self):
        krylov = run(symmetric(SPECTRA["repeated"])[0], full=True)
        assert len(krylov.alpha) == 3
        assert krylov.beta[-1] < 1e-13

    def test_stops_at_the_tolerance_unless_told_to_go_on(self):
        A, _ = symmetric(SPECTRA["outliers"])
        few, more, all_ = (
            len(run(A, **options).alpha)
            for options in ({"tolerance": 1e-2}, {"tolerance": 1e-6}, {"full": True, "steps": 30})
        )
        assert few < more < all_ == 30

    def test_too_few_steps_do_not_converge_and_still_bound(self):
        A, _ = symmetric(SPECTRA["uniform"])
        krylov = run(A, steps=6)
        smallest, largest = krylov.extremes()
        assert not krylov.converged
        assert largest.value < 1 <= largest.value + largest.distance
        assert smallest.value > -1 >= smallest.value - smallest.distance


class TestAsymmetry:
    """What symmetry forbids in QᵀAQ is rounding, or a product that is not a symmetric one."""

    def test_of_a_symmetric_matrix(self):
        assert run(symmetric(SPECTRA["outliers"])[0], full=True).asymmetry < 1e-14
        single = symmetric(SPECTRA["outliers"], dtype=torch.float32)[0]
        assert 1e-8 < run(single, full=True).asymmetry < 1e-5

    def test_of_one_that_is_not(self):
        """A + S with S antisymmetric: above the diagonal QᵀAQ has QᵀSQ twice."""
        A, _ = symmetric(SPECTRA["outliers"])
        S = torch.randn(60, 60, generator=generator(3), dtype=torch.float64) * 1e-3
        S = S - S.T
        found = run(A + S, full=True).asymmetry
        assert_close(found, 2 * float(torch.linalg.matrix_norm(S.triu(), 2)), rtol=0.5, atol=0)


class TestQuadrature:
    """m nodes integrate the start's spectral measure exactly up to degree 2m - 1."""

    def moments(self, steps, degree):
        A, vectors = symmetric(SPECTRA["uniform"])
        start = random_start(60, generator(), A)
        measure = (vectors.T @ (start / start.norm())).square().numpy()
        nodes, weights = run(A, steps=steps, full=True).quadrature()
        exact = [(measure * SPECTRA["uniform"].double().numpy() ** k).sum() for k in range(degree)]
        return np.array([(weights * nodes**k).sum() for k in range(degree)]), np.array(exact)

    @pytest.mark.parametrize("steps", [1, 2, 5, 9])
    def test_exact_up_to_degree_2m_minus_1(self, steps):
        np.testing.assert_allclose(*self.moments(steps, 2 * steps), rtol=1e-12, atol=1e-13)

    @pytest.mark.parametrize("steps", [1, 2, 5])
    def test_no_further(self, steps):
        found, exact = self.moments(steps, 2 * steps + 1)
        assert abs(found[-1] - exact[-1]) > 1e-4


def test_starts_are_the_same_in_both_precisions():
    single, double = (
        random_start(7, generator(5), torch.empty(7, dtype=d))
        for d in (torch.float32, torch.float64)
    )
    assert_close(single.double(), double, rtol=0, atol=0)


def test_a_product_that_is_not_finite_is_named():
    start = torch.ones(4)
    calls = []

    def product(v):
        calls.append(v)
        return v * torch.arange(4) if len(calls) < 3 else v * float("nan")

    with pytest.raises(ValueError, match="product number 3 with a unit vector is not finite"):
        lanczos(product, start, steps=4, tolerance=1e-3)
