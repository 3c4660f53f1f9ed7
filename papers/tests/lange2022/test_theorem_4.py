"""Theorem 4 where it applies and where it does not."""

import math

import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from equipoise.preconditioners import condition
from equipoise_papers.lange2022.theorem_4 import theorem_4


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def features(draw, *, full_rank):
    """Matrices H with shifts and scales over decades, with N ≥ n + 1 rows or fewer."""
    n = draw(st.integers(1, 6))
    rows = draw(st.integers(n + 1, 12) if full_rank else st.integers(2, max(n, 2)))
    n = n if full_rank else max(n, 2)
    decade = st.floats(-1.5, 1.5)
    scale = 10 ** torch.tensor(draw(st.lists(decade, min_size=n, max_size=n))).double()
    shift = torch.tensor(draw(st.lists(st.floats(-20, 20), min_size=n, max_size=n))).double()
    return random(rows, n, seed=draw(st.integers(0, 2**20))) * scale + shift


class TestTheorem4:
    """κ(ĤU) ≤ κ(Ĥ) and κ(Ĝ) ≤ √(n+1) κ(ĤUD₀), given full column rank."""

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(features(full_rank=True), st.integers(0, 2**20))
    def test_no_violation_with_full_rank(self, H, seed):
        decades = 2 * random(H.shape[1] + 1, seed=seed)
        check = theorem_4(H, scaling=10**decades)
        assert check.applies
        assert check.centring_holds
        assert check.scaling_holds

    def test_violations_without_full_rank(self):
        """Fewer rows than columns: hypothesis finds a counterexample at once."""
        H = find(
            features(full_rank=False),
            lambda H: theorem_4(H).centred > 1.1 * theorem_4(H).raw,
            settings=settings(max_examples=2000, derandomize=True, database=None),
        )
        check = theorem_4(H)
        assert not check.applies
        assert not check.centring_holds

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(features(full_rank=True))
    def test_strict_improvement_where_it_is_promised(self, H):
        check = theorem_4(H)
        assert check.strict
        assert check.centred < check.raw

    def test_no_strict_improvement_for_centred_features(self):
        H = random(9, 3)
        check = theorem_4(torch.cat([H, -H]))
        assert not check.strict
        assert_close(check.raw, check.centred)

    def test_a_mean_orthogonal_to_the_principal_component_is_not_promised(self):
        """It helps only if the small singular value rises."""
        long, short = torch.tensor([[3.0, -3.0, 0.0, 0.0], [0.0, 0.0, 0.5, -0.5]]).double()
        assert not theorem_4(torch.stack([3 * long, short + 2], 1)).strict
        assert theorem_4(torch.stack([3 * long + 2, short], 1)).strict

    def test_equal_columns_are_not_the_best_scaling(self):
        """So the factor √(n+1) is needed: some D₀ does better than D."""
        H = random(8, 3) + 2 * random(8, 1, seed=1)
        best = 1 / torch.cat([torch.ones(1).double(), H.std(0, correction=0)])
        for seed in range(200):
            change = torch.exp(0.2 * random(4, seed=seed))
            best = min(best, best * change, key=lambda d: theorem_4(H, scaling=d).alternative)
        check = theorem_4(H, scaling=best)
        assert check.scaling_holds
        assert check.normalised > 1.02 * check.alternative

    def test_scaling_may_worsen_what_centring_has_improved(self):
        """Full rank, and κ(Ĝ) = 11.19 > κ(Ĥ) = 10.44 > κ(ĤU) = 9.96."""
        rows = [[0, -3, 2], [1, -1, 1], [1, -3, 3], [-2, 2, -2], [-1, 2, -3]]
        check = theorem_4(torch.tensor(rows, dtype=torch.float64))
        assert check.applies
        found = [check.raw, check.centred, check.normalised]
        assert found == pytest.approx([10.44, 9.96, 11.19], abs=0.005)

    def test_a_singular_scaling_beats_any_bound(self):
        """D₀ with zeros leaves one column, of condition 1: D₀ must be nonsingular."""
        H = random(8, 2) @ torch.tensor([[1.0, 1.0], [0.0, 1e-3]]).double()
        single = condition(torch.ones(8, 1))
        assert theorem_4(H).normalised > math.sqrt(3) * single.value
        with pytest.raises(ValueError, match="without a zero"):
            theorem_4(H, scaling=torch.tensor([1.0, 0.0, 0.0]))

    @settings(max_examples=50, deadline=None, derandomize=True)
    @given(features(full_rank=True), st.floats(-1, 1), st.floats(-5, 5))
    def test_normalised_features_forget_scales_and_shifts(self, H, decade, shift):
        before, after = theorem_4(H), theorem_4(H * 10**decade + shift)
        assert_close(before.normalised, after.normalised, rtol=1e-6, atol=0)

    def test_raw_features_depend_on_them(self):
        H = random(20, 3)
        assert theorem_4(100 * H + 7).raw > 50 * theorem_4(H).raw


class TestFewRows:
    """Where the paper is wrong: the theorem needs N ≥ n + 1."""

    def test_twice_the_identity(self):
        check = theorem_4(2 * torch.eye(2))
        assert not check.applies
        assert_close(check.raw, math.sqrt(1.5))  # 1.2247
        assert_close(check.centred, math.sqrt(2))  # 1.4142

    def violations(self, rows, columns):
        matrices = 1 + 3 * random(200, rows, columns, seed=rows)
        return sum(not theorem_4(H).centring_holds for H in matrices)

    @pytest.mark.parametrize("shape", [(4, 3), (9, 4), (8, 7)])
    def test_no_violation_with_enough_rows(self, shape):
        assert self.violations(*shape) == 0

    @pytest.mark.parametrize("shape", [(3, 3), (2, 3), (3, 6), (4, 8)])
    def test_many_with_too_few(self, shape):
        """From a quarter to nine tenths of 200."""
        assert self.violations(*shape) > 40
