"""Proposition 5: ‖Ĝ‖ ≈ q√N for independent Gaussian entries, and where its proof goes wrong."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.nn import functional as F
from torch.testing import assert_close

from equipoise.preconditioners import column_statistics, preconditioner
from equipoise_papers.lange2022.proposition_5 import norm_estimate, norm_ratio


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def extended(H):
    return torch.cat([H.new_ones(len(H), 1), H], 1)


def normalised(H):
    """Ĝ, with the column of ones."""
    return preconditioner(column_statistics(H)).normalise(extended(H))


class TestEstimate:
    @pytest.mark.parametrize(("samples", "n"), [(500, 20), (60, 100), (6, 784), (512, 512)])
    def test_gaussian_features(self, samples, n):
        ratio = norm_ratio(normalised(random(samples, n)), samples)
        limit = (1 + math.sqrt(n / samples)) / math.sqrt(norm_estimate(n, samples))
        assert 1 <= ratio < 2.1
        # Largest singular value of a random matrix; its fluctuations are of order N^(-2/3).
        assert abs(ratio - limit) < 3 * samples ** (-2 / 3)

    def test_correlated_features_exceed_it(self):
        H = random(512, 1) + 0.3 * random(512, 100, seed=1)
        assert norm_ratio(normalised(H), 512) > 8

    def test_convolutions_exceed_their_estimate(self):
        """Taps share entries, and neighbouring positions of images are alike."""
        x = F.interpolate(random(8, 4, 4, 4), size=16, mode="bilinear") + 1
        H = F.unfold(x, 3, padding=1).mT.flatten(0, 1)
        assert norm_ratio(normalised(H), 8) > 5

    @pytest.mark.parametrize(
        ("arguments", "positions", "expected"),
        [((60, 60), 1, 1.0), ((784, 1), 1, 784.0), ((288, 2), 49, 144.0), ((288, 128), 49, 7.0)],
    )
    def test_formula(self, arguments, positions, expected):
        assert norm_estimate(*arguments, positions=positions) == expected

    def test_bad_sizes_are_refused(self):
        with pytest.raises(ValueError, match="positive"):
            norm_estimate(0, 3)
        with pytest.raises(ValueError, match="multiple"):
            norm_ratio(torch.ones(5, 2), 2)


def expected_maximum(law, count):
    """E of the largest of ``count`` independent draws of a positive law."""
    return integrate.quad(lambda x: -np.expm1(count * law.logcdf(x)), 0, 200, limit=500)[0]


class TestProof:
    """The proof moves expectations past maxima, and the claim needs more moments."""

    def test_longest_row_is_longer_than_the_mean(self):
        """1000 Gaussian rows of length 3: E max ‖g‖² = 17.5 against a mean of 3."""
        rows = [normalised(H)[:, 1:].square().sum(1) for H in random(200, 1000, 3)]
        for lengths in rows:
            assert_close(lengths.mean(), torch.tensor(3.0).double())
        longest = torch.stack([lengths.max() for lengths in rows])
        exact = expected_maximum(stats.chi2(3), 1000)
        assert 17 < exact < 18
        # Statistics of 1000 rows normalise them to within a per cent.
        error = float(longest.std()) / math.sqrt(len(longest))
        assert abs(float(longest.mean()) - exact) < 4 * error + 0.01 * exact

    def test_mean_of_a_maximum_is_not_the_maximum_of_means(self):
        """‖Ĝ‖ = max(√N, ‖G‖) for one column orthogonal to e, N = 8: 3.06 against 2.83."""
        law, floor = stats.chi(8), math.sqrt(8)
        above = integrate.quad(lambda x: law.sf(x), floor, 50)[0]
        direction = torch.tensor([1.0, -1.0] * 4).double() / floor
        lengths = random(4000, 8).norm(dim=1)
        ratios = [norm_ratio(extended((r * direction)[:, None]), 8) for r in lengths]
        draws = floor * torch.tensor(ratios)
        error = float(draws.std()) / math.sqrt(len(draws))
        assert abs(float(draws.mean()) - (floor + above)) < 4 * error
        assert floor + above > 1.08 * max(floor, law.mean())

    def test_ones_are_orthogonal_to_normalised_columns_only(self):
        H = random(20, 4)
        G = normalised(H)
        assert (G[:, 0] @ G[:, 1:]).abs().max() < 1e-12
        assert (extended(H)[:, 0] @ H).abs().max() > 1

    def ratio_of_rare_entries(self, size, rng):
        """For independent entries ±p^(-1/2) with probability p = 1/N², else 0."""
        G = torch.zeros(size, size, dtype=torch.float64)
        for _ in range(rng.binomial(size**2, size**-2)):
            G[rng.integers(size), rng.integers(size)] = size * rng.choice([-1.0, 1.0])
        return norm_ratio(extended(G), size)

    @pytest.mark.parametrize(("size", "count"), [(30, 1000), (100, 300)])
    def test_mean_0_and_variance_1_do_not_suffice(self, size, count):
        """An entry of size N is there with probability 1 - 1/e, so the ratio grows as √N."""
        rng = np.random.default_rng(0)
        draws = np.array([self.ratio_of_rare_entries(size, rng) for _ in range(count)])
        present = -np.expm1(size**2 * np.log1p(-(size**-2.0)))
        # Two entries in one row or column lengthen it: at most half of E[pairs] · 2/N more.
        exact = present * math.sqrt(size) + (1 - present)
        error = draws.std() / math.sqrt(len(draws))
        assert abs(draws.mean() - exact) < 4 * error + exact / size + 1 / math.sqrt(size)
        assert draws.mean() > 0.6 * math.sqrt(size)

    @pytest.mark.parametrize("size", [100, 500])
    def test_gaussian_entries_give_about_two(self, size):
        assert 1.8 < norm_ratio(extended(random(size, size)), size) < 2.1
