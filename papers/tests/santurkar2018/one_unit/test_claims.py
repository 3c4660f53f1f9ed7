"""Claims count the cases in which they fail by more than rounding."""

import math

import torch

from equipoise_papers.santurkar2018.one_unit.claims import Claim, random_cases, vanishes


class TestClaims:
    def claim(self, left, right, relation="≤", size=None):
        left, right = (torch.tensor(side, dtype=torch.float64) for side in (left, right))
        return Claim(left, right, relation, size)

    def test_inequality(self):
        found = self.claim([1.0, 2.0, 1 + 1e-12, 3.0], [2.0, 1.0, 1.0, 2.0])
        assert (found.violations, found.worst_factor) == (2, 2.0)

    def test_equality(self):
        found = self.claim([1.0, 2.0, 1 + 1e-12, 2.0], [4.0, 1.0, 1.0, 2.0], "=")
        assert (found.violations, found.worst_factor) == (2, 4.0)

    def test_no_factor_corrects_a_right_side_of_zero_or_less(self):
        assert self.claim([1.0, 2.0], [-1.0, 1.0]).worst_factor == math.inf
        assert self.claim([1.0], [-1.0], "=").worst_factor == math.inf
        assert self.claim([-1.0, 0.0], [0.0, 0.0]).worst_factor == 1.0

    def test_sides_that_cancel_are_judged_by_their_terms(self):
        left, right = [1e-13], [0.0]
        assert self.claim(left, right).violations == 1
        assert self.claim(left, right, size=torch.ones(1)).violations == 0
        assert vanishes(torch.tensor([1e-13, 1e-3]), torch.ones(2)).violations == 1


def test_random_cases_are_what_they_say():
    drawn = random_cases(torch.Generator().manual_seed(0), 500)
    assert torch.linalg.eigvalsh(drawn.hessian).min() > -1e-12
    spread = drawn.y.std(-1)
    assert spread.max() / spread.min() > 50
    assert drawn.y.dtype == torch.float64
