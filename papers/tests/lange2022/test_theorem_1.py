import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from equipoise_papers.lange2022.theorem_1 import local_rate


def seeded(seed):
    return torch.Generator().manual_seed(seed)


class TestLocalRate:
    """r = max |1 - αλ| over nonzero eigenvalues, on quadratics where it is exact."""

    def test_error_of_a_quadratic_shrinks_by_the_rate(self):
        factor = torch.randn(3, 5, dtype=torch.float64, generator=seeded(0))
        hessian, x = factor.T @ factor, torch.randn(5, dtype=torch.float64, generator=seeded(1))
        found = local_rate(hessian, 0.15)
        flat = torch.linalg.eigh(hessian).eigenvectors[:, :2]
        errors = []
        for _ in range(101):
            x = x - 0.15 * hessian @ x
            errors.append((x - flat @ (flat.T @ x)).norm())
        assert found.converges
        assert found.flat == 2
        assert_close(float(errors[100] / errors[99]), found.rate, rtol=1e-6, atol=0)

    def test_too_long_a_step_diverges(self):
        found = local_rate(torch.diag(torch.tensor([4.0, 1.0])), 0.51)
        assert not found.converges
        assert_close(found.rate, 1.04, rtol=1e-12, atol=0)

    def test_the_best_step_gives_the_textbook_rate(self):
        hessian = torch.diag(torch.tensor([9.0, 2.0, 1.0, 0.0]))
        best = local_rate(hessian, 1.0).best_learning_rate
        assert_close(local_rate(hessian, best).rate, (9 - 1) / (9 + 1))
        rates = [local_rate(hessian, best * f).rate for f in (0.99, 1.01)]
        assert min(rates) > (9 - 1) / (9 + 1)

    def test_a_saddle_never_converges(self):
        found = local_rate(torch.diag(torch.tensor([1.0, -0.1])), 0.5)
        assert not found.converges
        assert math.isnan(found.best_learning_rate)

    def test_bad_input_is_refused(self):
        with pytest.raises(ValueError, match="positive"):
            local_rate(torch.eye(2), 0.0)
        with pytest.raises(ValueError, match="zero"):
            local_rate(torch.zeros(2, 2), 0.1)


class TestErratum12:
    """Theorem 1's rate, on ½(uv - 1)², whose minimisers (t, 1/t) are a hyperbola."""

    def hessian(self, t):
        u, v = t, 1 / t
        mixed = 2 * u * v - 1
        return torch.tensor([[v * v, mixed], [mixed, u * u]], dtype=torch.float64)

    def nearest(self, u, v):
        """Distance to the minimisers, by Newton's method for the foot of the normal."""
        t = u
        for _ in range(50):
            slope = t - u - (1 / t - v) / t**2
            t -= slope / (1 + (3 / t - 2 * v) / t**3)
        return math.hypot(u - t, v - 1 / t)

    def observed(self, t, distance, alpha):
        """Shrinkage in one step that starts on the normal of the minimiser (t, 1/t)."""
        normal = np.array([1 / t, t]) / math.hypot(t, 1 / t)
        u, v = np.array([t, 1 / t]) + distance * normal
        residual = u * v - 1
        return self.nearest(u - alpha * residual * v, v - alpha * residual * u) / distance

    @pytest.mark.parametrize("t", [1.01, 1.5, 0.7])
    def test_rate_near_the_manifold(self, t):
        """Observed and predicted agree to first order in the distance, at every minimiser."""
        found = local_rate(self.hessian(t), 0.3)
        assert found.flat == 1
        assert found.converges
        assert_close(found.rate, abs(1 - 0.3 * (t**2 + t**-2)), rtol=1e-12, atol=0)
        errors = [self.observed(t, d, 0.3) - found.rate for d in (1e-3, 1e-4, 1e-5)]
        assert abs(errors[0]) < 0.01
        for coarse, fine in pairwise(errors):
            assert 8 < coarse / fine < 12

    def test_numbers(self):
        """Observed 0.3998, predicted 0.39988, at a distance of 1e-4; elsewhere another rate."""
        assert round(local_rate(self.hessian(1.01), 0.3).rate, 5) == 0.39988
        assert round(self.observed(1.01, 1e-4, 0.3), 4) == 0.3998
        assert round(local_rate(self.hessian(1.5), 0.3).rate, 5) == 0.19167

    def test_too_long_a_step_leaves_the_manifold(self):
        """α < 2/λ_max is needed, and λ_max ≈ 2."""
        for alpha, converges in ((0.99, True), (1.01, False)):
            assert local_rate(self.hessian(1.01), alpha).converges is converges
            assert (self.observed(1.01, 1e-5, alpha) < 1) is converges
