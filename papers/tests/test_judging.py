"""Differences over seeds: each question has three answers, and one seed answers none."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from equipoise_papers.judging import Difference, best_rate, by_seed, difference, spread

# Of three seeds: Student's t at 95 %, one-sided, is 2.92.
GAP = Difference(2.0, 0.5, seeds=3)
REACH = 0.5 * float(stats.t.ppf(0.95, 2))


class TestDifference:
    def test_beyond_chance(self):
        found = difference([3.0, 4.0, 5.0], [1.0, 2.0, 3.5])
        assert found.above() is True
        assert found.below() is False

    def test_within_chance_nothing_is_decided(self):
        found = difference([3.0, 1.0, 2.0], [1.0, 2.0, 2.5])
        assert found.above() is None
        assert found.below() is None

    def test_seeds_are_paired(self):
        """A gap of 0.1 counts, though the seeds themselves are 10 apart."""
        assert difference([10.1, 20.11, 30.1], [10.0, 20.0, 30.0]).above()
        assert difference([10.1, 20.11, 30.1], [20.0, 10.0, 30.0]).above() is None

    def test_a_single_seed_decides_nothing(self):
        found = difference([9.0], [1.0])
        assert math.isnan(found.error)
        assert (found.above(), found.below(), found.between(-100, 100)) == (None, None, None)
        assert found.words() == "+8.0 ± ?"

    def test_seeds_must_match(self):
        with pytest.raises(ValueError, match="zip"):
            difference([1.0, 2.0], [1.0])


class TestSeedsThatNotAllHave:
    def test_differences_are_of_common_seeds(self):
        one, other = {0: 3.0, 1: 4.0, 2: 5.0, 7: -90.0}, {2: 3.5, 1: 2.0, 0: 1.0}
        assert by_seed(one, other) == difference([3.0, 4.0, 5.0], [1.0, 2.0, 3.5])

    def test_rates_are_chosen_by_common_seeds(self):
        losses = {0.1: {0: 1.0, 1: 1.0, 2: 0.0}, 0.3: {0: 0.9, 1: 0.9}}
        assert best_rate(losses) == 0.3
        assert best_rate({0.3: {0: 1.0}, 0.1: {0: 1.0}}) == 0.1


class TestThresholds:
    """The interval is the mean ± Student's t; what it reaches is not decided."""

    @pytest.mark.parametrize(
        ("threshold", "above"),
        [(2 - 1.01 * REACH, True), (2 - 0.99 * REACH, None), (2 + 1.01 * REACH, False)],
    )
    def test_above_and_below_are_opposites(self, threshold, above):
        assert GAP.above(threshold) is above
        assert GAP.below(threshold) is (None if above is None else not above)

    @pytest.mark.parametrize(
        ("low", "high", "inside"),
        [(0, 4, True), (1, 4, None), (0, 3, None), (4, 9, False), (-9, 0, False)],
    )
    def test_inside_an_interval(self, low, high, inside):
        assert GAP.between(low, high) is inside


def test_words():
    assert GAP.words() == "+2.0 ± 0.5 (90 %: +0.5 to +3.5)"
    assert GAP.words(3) == "+2.000 ± 0.500 (90 %: +0.540 to +3.460)"
    assert spread([1.0, 2.0, 3.0], 2) == "2.00 ± 0.58"
    assert spread([1.0]) == "1.0"
