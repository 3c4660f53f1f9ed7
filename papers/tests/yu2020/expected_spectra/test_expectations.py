"""Theorem 1 of RUN: shares and expected spectra by closed form, quadrature and simulation."""

import math
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise_papers.yu2020.averages import printed_inequality
from equipoise_papers.yu2020.expected_spectra import (
    direction_shares,
    expected_factor_spectrum,
    expected_matrix_spectrum,
    simulate_direction_shares,
)
from equipoise_papers.yu2020.expected_spectra.integrals import direction_moments
from papers_reference.rank_one_update import (
    double_pairs,
    inequality_14,
    printed_integrals,
    run,
    three_directions,
    two_directions,
)
from support.cases import each

SIGMA = (3.0, 2.0, 1.5, 1.0, 0.5)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def within(found, exact):
    """Each estimate is as close to the truth as it says."""
    distances = [abs(float(v - e)) for v, e in zip(found.values, exact, strict=True)]
    return bool((np.array(distances) <= found.errors).all())


class TestClosedForms:
    @each("K", [0, 1, 2, 4, 50])
    @each("sigma", [(3.0, 2.0), (1.0, 1e-12), (1.0, 1 - 1e-9), (2.0, 2.0)])
    def test_two_directions(self, sigma, K):
        shares, pairs = two_directions(*sigma, K)
        moments = direction_moments(np.array(sigma), K)
        assert within(direction_shares(sigma, K), shares)
        np.testing.assert_array_less(
            abs(moments.energies - pairs @ sigma), moments.energy_errors + 1e-14 * max(sigma)
        )

    @each(
        ("sigma", "K"),
        [
            ((3.0, 2.0, 1.0), 1),
            ((1.0, 0.5, 1e-12), 1),
            ((1.0, 0.5, 1e-12), 8),  # a share of 6e-188
            ((1.0, 1.0, 1e-12), 12),
            ((1.0, 1 - 1e-7, 0.9), 10**6),
            ((1e300, 7e299, 1e296), 20),
            ((3e-300, 2e-300, 1e-300), 5),
        ],
    )
    def test_three_directions(self, sigma, K):
        """Carlson's R_D at 40 digits; errors are small relative to each share's own size."""
        found = direction_shares(sigma, K)
        assert within(found, three_directions(sigma, K))
        normal = found.values > 1e-290
        assert (found.errors[normal] < 2e-12 * found.values[normal]).all()

    @given(st.lists(st.floats(1e-12, 1.0), min_size=3, max_size=3), st.integers(1, 11))
    def test_errors_are_honest(self, sigma, K):
        assert within(direction_shares(sigma, K), three_directions(sigma, K))

    @pytest.mark.parametrize(("ratio", "K"), [(0.7, 1), (0.3, 2), (1e-3, 4)])
    def test_two_pairs(self, ratio, K):
        first, second = double_pairs(1.0, ratio, K)
        assert within(direction_shares((1.0, 1.0, ratio, ratio), K), [first] * 2 + [second] * 2)

    @pytest.mark.parametrize("sigma", [SIGMA, (1.0, 0.0, 0.0), (2.0,)])
    def test_no_steps(self, sigma):
        """v_0 itself: E p_l = 1/D and E p_ip_l = (1 + 2δ)/(D(D + 2)), zeros included."""
        D = len(sigma)
        assert within(direction_shares(sigma, 0), [1 / D] * D)
        energies = (sum(sigma) + 2 * np.array(sigma)) / (D * (D + 2))
        np.testing.assert_allclose(direction_moments(np.array(sigma), 0).energies, energies, 1e-14)

    @pytest.mark.parametrize("multiplicity", [1, 2, 5])
    def test_many_steps(self, multiplicity):
        """An m-fold largest eigenvalue: 1/m each, nothing for the others."""
        found = direction_shares([4.0] * multiplicity + [3.0, 0.0], 3000)
        assert within(found, [1 / multiplicity] * multiplicity + [0, 0])
        assert found.errors.max() < 2e-12

    def test_the_expected_leak_decays_with_the_power_of_the_steps(self):
        """As K, not 2K: starts that are almost orthogonal to u_1 carry it."""
        leaks = [1 - direction_shares((75.0, 1.0), K).values[0] for K in (1, 2)]
        assert leaks == pytest.approx([1 / 76, 1 / 5626], rel=1e-12)
        assert leaks[1] > 10 * 75.0**-4


class TestPrintedIntegrals:
    """The formula of the statement, entry by entry, by its double-exponential rule."""

    @pytest.mark.parametrize("K", [0, 1, 2, 4])
    def test_it_agrees(self, K):
        shares, pairs = printed_integrals(SIGMA, K)
        moments = direction_moments(np.array(SIGMA), K)
        np.testing.assert_allclose(moments.shares, shares, rtol=1e-10)
        np.testing.assert_allclose(moments.energies, pairs @ SIGMA, rtol=1e-10)

    def test_not_where_eigenvalues_are_far_apart(self):
        """Its nodes thin out where the small eigenvalue counts; ours do not."""
        sigma = (1.0, 0.5, 1e-12)
        exact = np.array(three_directions(sigma, 8), float)
        shares, _ = printed_integrals(sigma, 8)
        assert abs(shares / exact - 1).max() > 1e-4
        np.testing.assert_allclose(direction_shares(sigma, 8).values, exact, rtol=1e-12)


class TestSimulation:
    @pytest.mark.parametrize("K", [0, 1, 2, 4])
    @pytest.mark.parametrize("sigma", [SIGMA, (1.0, 1.0, 0.5, 0.0)], ids=["spread", "double"])
    def test_it_agrees_with_quadrature(self, sigma, K):
        drawn = simulate_direction_shares(sigma, K, 200_000, seeded(K))
        exact = direction_shares(sigma, K)
        known = drawn.errors > 0
        z = ((drawn.values - exact.values)[known]) / drawn.errors[known]
        assert abs(z).max() < 4
        assert (drawn.values == exact.values)[~known].all()

    def test_another_number_of_steps_does_not(self):
        drawn, other = (
            simulate_direction_shares(SIGMA, 1, 200_000, seeded()),
            direction_shares(SIGMA, 2),
        )
        assert (abs(drawn.values - other.values) / drawn.errors).max() > 50

    def test_chunks_make_one_sample(self):
        """The errors are those of all draws together, also where shares hardly vary."""
        many = torch.linspace(1, 0.1, 1000)
        drawn = simulate_direction_shares(many, 1, 3000, seeded())  # three chunks
        again = torch.softmax(
            torch.randn(3000, 1000, generator=seeded(), dtype=torch.float64).square().log()
            + 2 * many.double().log(),
            1,
        )
        np.testing.assert_allclose(drawn.values, again.mean(0), rtol=1e-10)
        np.testing.assert_allclose(drawn.errors, again.std(0) / math.sqrt(3000), rtol=1e-10)

    def test_the_generator_is_the_only_source(self):
        state = torch.random.get_rng_state()
        first, second = (simulate_direction_shares(SIGMA, 1, 50, seeded(3)) for _ in range(2))
        assert (first.values == second.values).all()
        assert (torch.random.get_rng_state() == state).all()


EPSILON, ETA, DRAWS = 0.8, 0.6, 4000


@lru_cache
def averaged(K):
    """Spectrum, means of B_K and F_KᵀF_K in the eigenbasis, where theory is diagonal, errors."""
    rng = np.random.default_rng(K)
    F = rng.normal(size=(6, 4)) * [2.0, 1.5, 1.0, 0.5]
    sigma, U = np.linalg.eigh(F.T @ F)
    samples = np.array(
        [run(F, rng.normal(size=4), K, epsilon=EPSILON, eta=ETA) for _ in range(DRAWS)]
    )
    rotated = U.T @ samples @ U
    return sigma, *rotated.mean(0), *(rotated.std(0, ddof=1) / math.sqrt(DRAWS))


@pytest.mark.parametrize("K", [1, 2])
class TestMatricesThemselves:
    """B_K and F_KᵀF_K of one sample, averaged over fresh starts, against U diag(…) Uᵀ."""

    def test_the_matrix_form(self, K):
        sigma, mean, _, error, _ = averaged(K)
        exact = expected_matrix_spectrum(sigma, epsilon=EPSILON, num_steps=K)
        assert (abs(mean - np.diag(exact.values)) < 4 * error).all()

    def test_the_factor_form(self, K):
        sigma, _, mean, _, error = averaged(K)
        exact = expected_factor_spectrum(sigma, eta=ETA, num_steps=K)
        assert (abs(mean - np.diag(exact.values)) < 4 * error).all()

    def test_another_number_of_steps_does_not_fit(self, K):
        sigma, _, mean, _, error = averaged(K)
        other = expected_factor_spectrum(sigma, eta=ETA, num_steps=3 - K)
        assert (abs(mean - np.diag(other.values)) > 10 * error).any()

    def test_the_forms_differ_off_an_eigenvector(self, K):
        """At ε = 2η - η² traces agree, eigenvalues do not."""
        sigma, _, mean, _, error = averaged(K)
        matrix = expected_matrix_spectrum(sigma, epsilon=2 * ETA - ETA**2, num_steps=K)
        factor = expected_factor_spectrum(sigma, eta=ETA, num_steps=K)
        assert matrix.values.sum() == pytest.approx(factor.values.sum(), rel=1e-13)
        assert (abs(mean - np.diag(matrix.values)) > 10 * error).any()


class TestStatement:
    @given(
        st.lists(st.floats(1e-12, 1.0), min_size=1, max_size=12),
        st.integers(0, 30),
        st.floats(1e-100, 1e100),
    )
    def test_shares_are_ordered_and_sum_to_one(self, sigma, K, scale):
        found = direction_shares(np.array(sigma) * scale, K)
        rank = np.argsort(sigma)
        rising = found.values[rank] - found.errors[rank]
        assert (rising[:-1] <= (found.values + found.errors)[rank][1:]).all()
        assert (found.values >= 0).all()
        assert abs(found.values.sum() - 1) <= found.errors.sum()

    @given(st.lists(st.floats(0, 1.0), min_size=2, max_size=8), st.integers(1, 6))
    def test_eigenvalues_may_come_in_any_order(self, sigma, K):
        sigma = np.array([1.0, *sigma])
        forward, backward = direction_shares(sigma, K), direction_shares(sigma[::-1], K)
        np.testing.assert_allclose(forward.values, backward.values[::-1], rtol=1e-12, atol=1e-300)

    def test_the_expected_spectrum_need_not_stay_ordered(self):
        found = expected_matrix_spectrum((3.0, 2.9, 1.0), epsilon=1.0, num_steps=8).values
        assert found.round(3).tolist() == [1.298, 1.645, 1.0]

    @given(st.lists(st.floats(0, 1.0), max_size=8), st.integers(0, 6), st.floats(0, 2))
    def test_trace_of_the_factor_form(self, sigma, K, eta):
        """tr E F_KᵀF_K = tr B - (2η - η²) Σσα."""
        sigma = np.array([1.0, *sigma])
        found = expected_factor_spectrum(sigma, eta=eta, num_steps=K)
        removed = (2 * eta - eta**2) * (sigma @ direction_shares(sigma, K).values)
        assert abs(found.values.sum() - (sigma.sum() - removed)) < 1e-12 * sigma.sum()
        assert (found.values >= -found.errors).all()

    def test_a_reflection_changes_no_trace_but_spreads_the_spectrum(self):
        found = expected_factor_spectrum(SIGMA, eta=2.0, num_steps=1).values
        assert found.sum() == pytest.approx(sum(SIGMA), rel=1e-13)
        assert abs(found - SIGMA).max() > 0.1

    def test_a_single_direction(self):
        assert expected_matrix_spectrum([2.0], epsilon=0.75, num_steps=1)[0].value == 0.5
        assert expected_factor_spectrum([2.0], eta=0.5, num_steps=1)[0].value == pytest.approx(0.5)

    def test_a_thousand_eigenvalues(self):
        sigma = np.geomspace(1, 1e-12, 1000)
        found = direction_shares(sigma, 8)
        assert abs(found.values.sum() - 1) < 1e-13
        assert (np.diff(found.values) <= 0).all()
        assert (found.errors < 2e-13 * found.values).all()


class TestInequality14:
    """The printed proof's inequality is false start by start; its average, (13), is true."""

    @pytest.mark.parametrize("K", [1, 2])
    def test_it_fails_for_many_starts(self, K):
        """Only where b_s < b_t, and for every pair."""
        sigma, draws = torch.tensor(SIGMA, dtype=torch.float64), 4000
        broken, sound = printed_inequality(sigma, num_steps=K, draws=draws, generator=seeded())
        b = torch.randn(draws, 5, generator=seeded(), dtype=torch.float64).numpy() ** 2
        y = (np.array(SIGMA) / max(SIGMA)) ** (2 * K)
        sides = [inequality_14(y, b, s, t) for s in range(5) for t in range(s + 1, 5)]
        assert broken.tolist() == [(left < right).mean() for left, right in sides]
        assert sound == 0
        assert broken.min() > 0.01

    def test_a_counterexample(self):
        """b = (0, 0, 1): the left side is -1, the right one -0.01."""
        left, right = inequality_14(np.array([1, 0.01, 0.01]), np.array([0.0, 0.0, 1.0]), 1, 2)
        assert (left, right) == (-1.0, -0.01)

    @pytest.mark.parametrize("K", [1, 2])
    def test_its_left_side_averages_to_the_difference_of_shares(self, K):
        b = np.random.default_rng(0).normal(size=(100_000, 5)) ** 2
        y = np.array(SIGMA) ** (2 * K)
        shares = direction_shares(SIGMA, K).values
        for s in range(5):
            for t in range(s + 1, 5):
                left, _ = inequality_14(y, b, s, t)
                error = left.std() / math.sqrt(len(left))
                assert abs(left.mean() - (shares[s] - shares[t])) < 4 * error
                assert shares[s] - shares[t] > 10 * error


@each(
    ("eigenvalues", "message"),
    [
        ([], "finite numbers of shape"),
        ([1.0, math.nan], "1 that are not finite"),
        ([[1.0]], r"shape \(1, 1\)"),
        ([1.0, -0.1], "must not be negative, got -0.1"),
        ([0.0, 0.0], "at least one eigenvalue must be positive"),
    ],
    ids=["none", "nan", "matrix", "negative", "zeros"],
)
def test_wrong_eigenvalues_are_refused(eigenvalues, message):
    for call in (
        lambda: direction_shares(eigenvalues, 1),
        lambda: expected_matrix_spectrum(eigenvalues, epsilon=0.5, num_steps=1),
        lambda: expected_factor_spectrum(eigenvalues, eta=0.5, num_steps=1),
        lambda: simulate_direction_shares(eigenvalues, 1, 10, seeded()),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match=r"epsilon must be in \[0, 1\], got 1.5"):
        expected_matrix_spectrum(SIGMA, epsilon=1.5, num_steps=1)
    with pytest.raises(ValueError, match=r"eta must be in \[0, 2\], got -1"):
        expected_factor_spectrum(SIGMA, eta=-1, num_steps=1)
    with pytest.raises(ValueError, match="num_steps must be a whole number of at least 0"):
        direction_shares(SIGMA, -1)
    with pytest.raises(ValueError, match="draws must be a whole number of at least 2"):
        simulate_direction_shares(SIGMA, 1, 1, seeded())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64], ids=str)
def test_eigenvalues_of_any_type(dtype):
    found = direction_shares(torch.tensor([3, 1], dtype=dtype), 2)
    assert within(found, [0.9, 0.1])
    assert found.values.dtype == np.float64


def test_eigenvalues_as_eigvalsh_returns_them():
    """Rounding below zero, relative to the type of the input, counts as zero."""
    F = torch.randn(3, 40, generator=seeded())
    sigma = torch.linalg.eigvalsh(F.T @ F)
    assert sigma.min() < 0
    found = direction_shares(sigma, 2)
    assert abs(found.values.sum() - 1) < 1e-13
    assert found[39].value == found.values[39]
    assert len(found) == 40
