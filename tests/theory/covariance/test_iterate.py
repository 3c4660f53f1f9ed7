"""Where networks end: BSB1, or two groups of samples (Section 14)."""

import numpy as np
import pytest
import torch

from equipoise.theory import bsb1_fixed_point
from equipoise.theory.covariance.iterate import iterate_map
from equipoise.theory.covariance.linear_case import linear_limit, linear_rate


def spread(cov):
    """Relative spread of the samples' second moments."""
    diagonal = np.diagonal(cov)
    return diagonal.std() / diagonal.mean()


def from_seed(seed, *args, **options):
    return iterate_map(*args, generator=torch.Generator().manual_seed(seed), **options)


class TestTransitionOfAlphaRelu:
    """At B = 10, λ↑_L = 1 at α = 1.4007."""

    @pytest.mark.parametrize("alpha", [1.0, 1.3])
    def test_unbroken_below(self, alpha):
        run = iterate_map(f"alpha_relu({alpha})", 10, steps=260, perturbation=0.3)
        assert run.last_change < 1e-7
        assert run.is_bsb1
        assert run.diagonal_variance[0] > 1e-3

    @pytest.mark.parametrize(("alpha", "variance"), [(1.45, 0.65), (2.0, 13)])
    def test_broken_above(self, alpha, variance):
        """Var(Σ_aa) as in Section 14, from width-1000 networks, within their 10 %."""
        run = iterate_map(f"alpha_relu({alpha})", 10, steps=260, perturbation=0.3)
        assert run.diagonal_variance[-1] == pytest.approx(variance, rel=0.1)
        assert run.last_change < 1e-4
        assert not run.is_bsb1

    def test_two_groups_at_alpha_2(self):
        """3 large rows and 7 small ones, the same within each group."""
        run = iterate_map("alpha_relu(2)", 10, steps=200, perturbation=0.3)
        assert run.has_settled
        cov = run.covariances[-1]
        large = np.diagonal(cov) > 1
        assert large.sum() == 3
        for rows, columns in ((large, large), (large, ~large), (~large, ~large)):
            block = cov[np.ix_(rows, columns)]
            if (rows == columns).all():
                block = block[~np.eye(len(block), dtype=bool)]
            assert np.ptp(block) < 1e-10
        assert np.ptp(np.diagonal(cov)[large]) < 1e-10
        assert np.diagonal(cov)[large].min() > 100 * np.diagonal(cov)[~large].max()

    def test_another_start_ends_with_other_samples_large(self):
        ends = [
            from_seed(seed, "alpha_relu(2)", 10, steps=60, perturbation=0.3).covariances[-1]
            for seed in (0, 2)
        ]
        large = [np.diagonal(end) > 1 for end in ends]
        assert (large[0] != large[1]).any()

    def test_an_unperturbed_start_stays_even_where_it_is_unstable(self):
        assert iterate_map("alpha_relu(2)", 10, steps=5).is_bsb1


class TestReluAtLargeBatches:
    """At B = 64 two attractors exist side by side, at B = 48 BSB1 alone."""

    def test_small_spreads_shrink(self):
        run = from_seed(1, "relu", 64, steps=30, perturbation=0.17)
        assert spread(run.covariances[0]) == pytest.approx(0.17, abs=0.02)
        assert spread(run.covariances[-1]) < 0.45 * spread(run.covariances[0])

    def test_large_spreads_find_the_other_attractor(self):
        run = from_seed(1, "relu", 64, steps=75, perturbation=0.36)
        assert spread(run.covariances[0]) == pytest.approx(0.36, abs=0.02)
        late = [spread(cov) for cov in run.covariances[60::5]]
        assert (np.diff(late) > 0).all()

    def test_at_48_large_spreads_shrink_too(self):
        run = from_seed(1, "relu", 48, steps=60, perturbation=0.36)
        late = [spread(cov) for cov in run.covariances[::10]]
        assert (np.diff(np.log(late)) < -0.2).all()


class TestSteps:
    @pytest.mark.parametrize("name", ["relu", "erf"])
    def test_the_fixed_point_is_fixed(self, name):
        options = {"eps": 0.05, "weight_variance": 1.7, "bias_variance": 0.3, "gamma": 1.2}
        run = iterate_map(name, 6, steps=2, **options)
        point = bsb1_fixed_point(name, 6, **options)
        assert run.covariances[-1][0, 0] == pytest.approx(point.q.value, abs=1e-12)
        assert run.covariances[-1][0, 1] == pytest.approx(point.q.value * point.c.value, abs=1e-12)
        assert run.has_settled
        options["bias_variance"] = 0.4
        other = bsb1_fixed_point(name, 6, **options)
        assert run.covariances[-1][0, 0] != pytest.approx(other.q.value, abs=1e-3)

    def test_the_identity_converges_at_its_rate(self):
        run = iterate_map("identity", 6, steps=60, perturbation=0.8)
        limit = linear_limit(run.covariances[0]).value
        distance = np.linalg.norm(run.covariances - limit, axis=(1, 2))
        assert distance[40] / distance[39] == pytest.approx(linear_rate(5).value, abs=1e-3)
        assert distance[-1] < 1e-7

    def test_variances_are_over_samples_and_pairs(self):
        cov = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, 0.3], [0.1, 0.3, 3.0]])
        run = iterate_map("relu", 3, steps=0, start=cov)
        assert run.diagonal_variance[0] == pytest.approx(np.var([2, 1, 3]))
        assert run.off_diagonal_variance[0] == pytest.approx(np.var([0.5, 0.1, 0.3]))
        assert not run.has_settled

    def test_perturbation_has_the_requested_size_and_keeps_correlations(self):
        sizes = []
        for seed in range(40):
            run = from_seed(seed, "relu", 32, steps=0, start=np.eye(32) + 1, perturbation=0.4)
            scale = np.sqrt(np.diagonal(run.covariances[0]))
            correlation = run.covariances[0] / scale / scale[:, None]
            np.testing.assert_allclose(correlation[0, 1:], 0.5, atol=1e-14)
            sizes.append(np.diagonal(run.covariances[0]).std(ddof=1) / 2)
        error = np.std(sizes) / np.sqrt(len(sizes))
        # The mean of sample deviations is a little low, for a skewed law.
        assert abs(np.mean(sizes) - 0.4) < 4 * error + 0.01

    def test_monte_carlo_follows_the_exact_map(self):
        start = np.diag([1.0, 2.0, 3.0, 4.0])
        exact = iterate_map("relu", 4, steps=3, start=start)
        rough = iterate_map("relu", 4, steps=3, start=start, method="monte carlo")
        assert (exact.method, rough.method) == ("laplace", "monte carlo")
        difference = np.abs(rough.covariances - exact.covariances).max((1, 2))
        assert (difference[1:] < 6 * rough.error[1:]).all()
        assert difference[1] > 1e3 * exact.error[1]
        assert not rough.has_settled

    def test_seeded(self):
        runs = [iterate_map("relu", 5, steps=1, perturbation=0.2) for _ in range(2)]
        np.testing.assert_array_equal(runs[0].covariances, runs[1].covariances)
        other = from_seed(1, "relu", 5, steps=1, perturbation=0.2)
        assert (other.covariances[0] != runs[0].covariances[0]).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": -1}, "steps"),
        ({"perturbation": -0.1}, "perturbation"),
        ({"weight_variance": 0.0}, "weight_variance"),
        ({"bias_variance": -1.0}, "bias_variance"),
        ({"start": np.eye(3)}, "start must have shape"),
        ({"start": np.ones((5, 5))}, "equal samples"),
        ({"start": -np.eye(5)}, "positive semidefinite"),
        ({"method": "guess"}, "method"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        iterate_map("relu", 5, **({"steps": 1} | options))


def test_small_batches_need_a_start():
    with pytest.raises(ValueError, match="at least 4"):
        iterate_map("relu", 3, steps=1)
    assert iterate_map("relu", 2, steps=1, start=np.diag([1.0, 2.0])).is_bsb1


def test_the_transition_has_hysteresis():
    """Just below it a small perturbation dies out and a large one does not."""
    small, large = (
        iterate_map(
            "alpha_relu(1.395)",
            10,
            steps=220,
            perturbation=size,
            generator=torch.Generator().manual_seed(0),
        )
        for size in (0.03, 1.0)
    )
    assert small.diagonal_variance[-1] < small.diagonal_variance[0] / 3
    assert large.diagonal_variance[-1] > 0.05
    assert not large.is_bsb1
