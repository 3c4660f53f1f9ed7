"""The linear network: eigenvalues alone, and convergence from every start."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mpmath import mp

from equipoise.theory.covariance.bn_map import bn_map
from equipoise.theory.covariance.linear_case import linear_limit, linear_rate, linear_step

positive = st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=12).map(
    lambda values: np.array(values) / sum(values)
)


def quadrature(values):
    """Section 13's integral, in 20 digits."""
    values = [mp.mpf(float(v)) / sum(values) for v in values]

    def one(i):
        def integrand(s):
            product = mp.fprod(1 / mp.sqrt(1 + 2 * s * v) for v in values)
            return values[i] / (1 + 2 * s * values[i]) * product

        return mp.quad(integrand, [0, 1, 10, 100, 10**4, mp.inf])

    return np.array([float(one(i)) for i in range(len(values))])


class TestStep:
    @pytest.mark.parametrize("values", [[5, 1, 0.2], [1, 2, 3, 4], [1, 1e-3, 1e-3, 0.5, 2]])
    def test_is_the_integral(self, values):
        mapped, reference = linear_step(values), quadrature(values)
        assert (np.abs(mapped.value - reference) <= mapped.error + 1e-13).all()
        assert mapped.error.max() < 1e-12

    def test_two_eigenvalues_in_closed_form(self):
        mapped = linear_step([9.0, 1e-4])
        exact = np.array([3, 1e-2]) / 3.01
        assert (np.abs(mapped.value - exact) <= mapped.error).all()

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(values=positive)
    def test_keeps_the_order_and_the_sum(self, values):
        mapped = linear_step(values)
        order = np.argsort(values)
        assert (np.diff(mapped.value[order]) >= -2 * mapped.error.max()).all()
        assert mapped.value.sum() == pytest.approx(1, abs=1e-12)

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(values=positive)
    def test_gap_bound(self, values):
        """Each step shrinks λ_max - λ_min by 1 - 2Aλ_min/(A + 2) at least."""
        assume(np.ptp(values) > 1e-9)
        mapped, A = linear_step(values), len(values)
        bound = 1 - 2 * A * values.min() / (A + 2)
        assert np.ptp(mapped.value) <= bound * np.ptp(values) + 2 * mapped.error.max()

    def test_a_bound_twice_as_strong_fails(self):
        values = np.array([0.21, 0.2, 0.2, 0.2, 0.19])
        ratio = np.ptp(linear_step(values).value) / np.ptp(values)
        assert ratio > 1 - 4 * 5 * 0.19 / 7

    @pytest.mark.parametrize("values", [[], [[1.0]], [1.0, -0.1], [0.0, 0.0], [np.nan, 1.0]])
    def test_refuses_vectors_that_are_no_eigenvalues(self, values):
        with pytest.raises(ValueError, match="eigenvalues must be"):
            linear_step(values)


class TestBatchNormMapOfTheIdentity:
    @pytest.mark.parametrize(("B", "rank"), [(5, 2), (6, 5), (9, 4)])
    def test_has_the_same_eigenvalues_times_b(self, B, rank):
        root = np.random.default_rng(B).standard_normal((B, rank))
        centred = root @ root.T
        centred -= centred.mean(0)
        centred -= centred.mean(1)[:, None]
        mapped = bn_map(root @ root.T, "identity")
        eigenvalues = np.linalg.eigvalsh(centred).clip(0)
        eigenvalues[: B - rank] = 0
        ours = B * linear_step(eigenvalues).value
        np.testing.assert_allclose(np.linalg.eigvalsh(mapped.value), ours, atol=1e-12)
        commutator = mapped.value @ centred - centred @ mapped.value
        assert np.abs(commutator).max() < 1e-12 * np.abs(centred).max() * B

    def test_other_activations_do_not_keep_eigenvectors(self):
        cov = np.diag([1.0, 2.0, 5.0, 9.0])
        centred = cov - cov.mean(0) - cov.mean(1)[:, None] + cov.mean()
        mapped = bn_map(cov, "erf").value
        assert np.abs(mapped @ centred - centred @ mapped).max() > 1e-3


class TestLimit:
    @pytest.mark.parametrize(("B", "rank"), [(5, 4), (6, 3), (7, 2), (4, 1)])
    def test_is_where_iteration_ends(self, B, rank):
        root = np.random.default_rng(B).standard_normal((B, rank))
        cov = root @ root.T
        limit = linear_limit(cov)
        for _ in range(60):
            cov = bn_map(cov, "identity").value
        np.testing.assert_allclose(cov, limit.value, atol=1e-10)
        assert np.trace(limit.value) == pytest.approx(B, abs=1e-12)

    def test_its_error_covers_the_exact_projector(self):
        u = np.array([1.0, -1.0, 0.0, 0.0, 0.0])
        v = np.array([1.0, 1.0, -2.0, 0.0, 0.0])
        exact = 5 / 2 * (np.outer(u, u) / 2 + np.outer(v, v) / 6)
        for small in (1.0, 1e-3, 1e-6):
            limit = linear_limit(np.outer(u, u) + small * np.outer(v, v))
            assert (np.abs(limit.value - exact) <= limit.error).all()
            assert limit.error.max() < 1e-7

    def test_refuses_equal_samples(self):
        with pytest.raises(ValueError, match="equal samples"):
            linear_limit(np.ones((4, 4)))


class TestRate:
    @pytest.mark.parametrize("rank", [2, 3, 5, 7])
    def test_is_what_iteration_shows(self, rank):
        values = np.random.default_rng(rank).dirichlet(np.ones(rank))
        gaps = []
        for _ in range(30 if rank > 2 else 18):
            gaps.append(np.ptp(values))
            values = linear_step(values).value
        measured, predicted = gaps[-1] / gaps[-2], linear_rate(rank).value
        assert measured == pytest.approx(predicted, abs=2e-3)
        assert measured != pytest.approx(linear_rate(rank + 1).value, abs=2e-3)

    def test_refuses_numbers_that_are_no_rank(self):
        with pytest.raises(ValueError, match="rank"):
            linear_rate(0)
