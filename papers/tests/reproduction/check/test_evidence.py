"""Noise is rarely called a change, and a change rarely noise."""

from __future__ import annotations

import math
import random

import pytest

from equipoise_papers.reproduction.check.evidence import (
    Pair,
    bias,
    field_tests,
    outside,
    shared_level,
)

CHECKS = 200


def pair(chance, number, *, seeds=3, shift=0.0, draw=random.Random.gauss):
    """A published and a new record that are two draws, or two draws and a shift."""
    published = tuple(draw(chance) for _ in range(seeds))
    new = draw(chance) + shift
    size = abs(new) + abs(published[0])
    return Pair(
        "loss", str(number), published[0], new, 2 * (new - published[0]) / size,
        published, published, new,
    )  # fmt: skip


def skewed(chance):
    """Losses have a long tail towards large ones."""
    return math.exp(chance.gauss(0.0, 1.5))


def share_below(level, test, **settings):
    chance = random.Random(0)
    tests = [test([pair(chance, n, **settings) for n in range(15)]) for _ in range(CHECKS)]
    return sum(found.p <= level for found in tests) / CHECKS


@pytest.mark.parametrize("seeds", [1, 2, 3, 8])
@pytest.mark.parametrize("draw", [random.Random.gauss, skewed])
def test_noise_is_called_bias_no_more_often_than_the_level_says(seeds, draw):
    assert share_below(0.05, bias, seeds=seeds, draw=draw) < 0.05 + 4 * (0.05 / CHECKS) ** 0.5


@pytest.mark.parametrize("seeds", [2, 3, 8])
def test_noise_leaves_the_range_no_more_often_than_the_level_says(seeds):
    assert share_below(0.05, outside, seeds=seeds, draw=skewed) < 0.05 + 4 * (0.05 / CHECKS) ** 0.5


@pytest.mark.parametrize(("test", "shift"), [(bias, 3.0), (outside, 6.0)])
def test_a_shift_of_a_few_spreads_is_found(test, shift):
    assert share_below(1e-3, test, shift=shift) > 0.9


def test_the_same_last_digit_everywhere_is_no_more_than_equal_signs():
    """Without scatter, Student's t would be infinite for two cells already."""
    members = [Pair("loss", "", 1.0, 1.001, 0.001, (1.0,), (1.0,), 1.001)] * 2
    assert bias(members).p == 0.5


def test_means_that_agree_are_no_bias():
    members = [Pair("loss", "", 1.0, 1.0, 0.0, (1.0, 1.0), (1.0, 1.0), 1.0)] * 9
    assert bias(members).p == 1.0


def test_one_cell_is_no_test():
    assert field_tests([pair(random.Random(0), 0)]) == ()


def test_trainings_that_newly_diverge_are_outside_the_range():
    seeds = (1.0, 2.0, 3.0)
    members = [Pair("loss", str(n), None, None, None, (), seeds, math.inf) for n in range(10)]
    assert outside(members).p == pytest.approx(0.5**10)
    assert bias(members) is None


def test_where_a_seed_has_diverged_another_one_may():
    seeds = (1.0, 2.0, math.inf)
    members = [Pair("loss", str(n), None, None, None, (), seeds, math.inf) for n in range(10)]
    assert outside(members).value == 0


def test_cells_that_differ_by_the_seed_alone_count_once():
    """Their ranges are the same, and so no independent evidence."""
    chance = random.Random(0)
    assert outside([pair(chance, n // 3, shift=9.0) for n in range(30)]).cells == 10


def test_the_family_is_wrong_no_more_often_than_its_level_says():
    """Ten fields of noise in each of 100 checks: about 1 of them is called a change."""
    chance = random.Random(1)
    wrong = 0
    for _ in range(100):
        tests = [bias([pair(chance, n, seeds=1) for n in range(16)]) for _ in range(10)]
        level = shared_level(tests, 0.01)
        wrong += any(test.p <= level for test in tests)
    assert wrong <= 4


def test_tests_that_cannot_reach_their_level_cost_the_others_nothing():
    chance = random.Random(0)
    strong = bias([pair(chance, n) for n in range(30)])
    weak = bias([pair(chance, n) for n in range(3)])
    assert shared_level([strong, *[weak] * 50], 0.01) == 0.01
