"""The bound on an extremal eigenvalue holds as often as it says, and a residual does not."""

import math

import mpmath
import numpy as np
import pytest
import torch

from equipoise.numerics.lanczos.bounds import distance_above, is_within, likely_overlap
from equipoise.numerics.lanczos.iteration import lanczos, random_start

# What Lanczos finds hard: a cluster at the top, a gap that random starts blur, no gap at all.
CLUSTERED = np.concatenate([np.linspace(-0.1, 0.1, 60), [1.0, 1.003]])
DENSE = np.linspace(0, 1, 150)
BULK = np.concatenate(
    [np.random.default_rng(0).normal(size=195) * 0.02, [-1, 0.3, 0.5, 0.8, 0.81]]
)


def run(eigenvalues, seed, **options):
    """In exact terms Lanczos sees a matrix only through eigenvalues and the start's overlaps."""
    values = torch.from_numpy(np.asarray(eigenvalues, dtype=np.float64))
    start = random_start(len(values), torch.Generator().manual_seed(seed), values)
    return lanczos(lambda v: values * v, start, **options)


class TestBound:
    """Failures of the bound among random starts are at most as frequent as was asked for."""

    @pytest.mark.parametrize("failure", [0.5, 0.1])
    @pytest.mark.parametrize(
        "values", [CLUSTERED, DENSE, BULK], ids=["clustered", "dense", "bulk"]
    )
    @pytest.mark.parametrize("steps", [2, 12])
    def test_bound_holds(self, values, steps, failure):
        trials = 60
        top = values.max()
        beyond = 0
        for seed in range(trials):
            _, largest = run(
                values, seed, steps=steps, tolerance=1e-12, failure=failure
            ).extremes()
            beyond += top > largest.value + largest.distance + 1e-14
        assert beyond <= trials * failure + 3 * math.sqrt(trials * failure * (1 - failure))

    def test_residuals_alone_do_not_bound(self):
        """They converge to the wrong one of two close eigenvalues, in every third run here."""
        pairs = [run(CLUSTERED, k, steps=5, tolerance=1e-12).extremes()[1] for k in range(100)]
        ratios = np.array([(CLUSTERED.max() - pair.value) / pair.residual for pair in pairs])
        assert np.mean(ratios > 1) > 0.25
        assert ratios.max() > 100

    def test_it_is_not_vacuous(self):
        """In a spectrum with gaps the distance follows the error down to rounding."""
        for steps, distance in {10: 0.3, 20: 1e-3, 30: 1e-9}.items():
            for pair in run(BULK, 0, steps=steps, tolerance=1e-15).extremes():
                assert pair.distance < distance


class TestOverlap:
    @pytest.mark.parametrize("size", [2, 3, 10, 1000, 10**6])
    @pytest.mark.parametrize("failure", [0.5, 0.001])
    def test_is_the_quantile_of_the_beta_law(self, size, failure):
        omega = likely_overlap(size, failure)
        half, rest = mpmath.mpf("0.5"), mpmath.mpf(size - 1) / 2
        below = mpmath.betainc(half, rest, 0, mpmath.mpf(omega) ** 2, regularized=True)
        assert float(below) == pytest.approx(failure, rel=1e-9)

    def test_of_drawn_starts(self):
        omega = likely_overlap(50, 0.2)
        generator = torch.Generator().manual_seed(1)
        draws = torch.randn(20000, 50, generator=generator)
        share = float((draws[:, 0].abs() / draws.norm(dim=1) < omega).float().mean())
        assert abs(share - 0.2) < 4 * math.sqrt(0.2 * 0.8 / 20000)

    def test_in_one_dimension_every_start_is_the_eigenvector(self):
        assert likely_overlap(1, 0.001) == 1.0


class TestDistance:
    theta, beta, overlap = np.array([-1.0, 0.2, 0.9]), np.array([0.5, 0.4, 0.3]), 0.01

    def test_is_the_root_of_the_definition(self):
        x = distance_above(self.theta, self.beta, self.overlap)
        left = np.prod(self.theta.max() + x - self.theta) * self.overlap
        assert left == pytest.approx(self.beta.prod(), rel=1e-5)

    @pytest.mark.parametrize(("factor", "expected"), [(1 + 1e-5, True), (1 - 1e-5, False)])
    def test_is_within_agrees(self, factor, expected):
        x = distance_above(self.theta, self.beta, self.overlap)
        assert is_within(self.theta, self.beta, self.overlap, factor * x) is expected

    def test_shift_and_scale(self):
        x = distance_above(self.theta, self.beta, self.overlap)
        other = distance_above(7 + 1e-8 * self.theta, 1e-8 * self.beta, self.overlap)
        assert other == pytest.approx(1e-8 * x, rel=1e-5)

    def test_nothing_left_means_no_distance(self):
        assert distance_above(self.theta, np.array([0.5, 0.4, 0.0]), self.overlap) == 0.0

    def test_far_below_the_smallest_float(self):
        """Long after convergence the product of β underflows, not the logarithm."""
        beta = np.full(200, 1e-12)
        assert distance_above(np.linspace(0, 1, 200), beta, 1e-4) == 0.0
