"""Boundaries are found where they are, and factors come with honest errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from equipoise.experiments.yang2019.boundary import (
    Column,
    Edge,
    best_constant,
    crossing,
    disagreement,
    edge,
    fitted_factor,
    paper_line,
    scaled_line,
    seed_noise,
)

DEPTHS = (5, 10, 20, 40)


def column(*means, predicted=20.0, position=8.0):
    return Column(position, predicted, DEPTHS, tuple((mean,) for mean in means), chance=0.1)


def edge_at(depth, predicted, seeds=(), position=8.0):
    return Edge(position, predicted, (5, 40), seeds or (depth,), depth)


class TestCrossing:
    def test_a_straight_line_over_log_depth_is_met_exactly(self):
        accuracies = [1 - 0.3 * math.log2(depth / 5) for depth in DEPTHS]
        assert crossing(DEPTHS, accuracies, 0.55) == pytest.approx(5 * 2**1.5)

    def test_what_lies_outside_is_cut(self):
        assert crossing(DEPTHS, (0.3, 0.2, 0.1, 0.1), 0.5) == 5
        assert crossing(DEPTHS, (0.9, 0.8, 0.7, 0.6), 0.5) == 40

    def test_the_first_fall_counts_not_a_lucky_network_below(self):
        assert crossing(DEPTHS, (0.9, 0.1, 0.9, 0.1), 0.5) == pytest.approx(5 * 2**0.5)

    def test_half_way_is_between_guessing_and_the_best_of_the_column(self):
        """A column whose best is worse has a lower threshold."""
        assert edge(column(0.9, 0.7, 0.3, 0.1)).depth == pytest.approx(10 * 2**0.5)
        assert edge(column(0.5, 0.4, 0.2, 0.1)).depth == pytest.approx(10 * 2**0.5)
        assert edge(column(0.9, 0.7, 0.3, 0.1), share=0.25).depth == pytest.approx(20)

    def test_seeds_have_their_own_boundaries(self):
        two = Column(8, 20.0, DEPTHS, ((0.9, 0.9), (0.9, 0.1), (0.1, 0.1), (0.1, 0.1)), 0.1)
        found = edge(two)
        assert found.seeds == pytest.approx((10 * 2**0.5, 5 * 2**0.5))
        assert found.depth == pytest.approx(10)
        assert found.inside


class TestFactor:
    def test_the_factor_that_was_put_in_comes_out(self):
        found = fitted_factor([edge_at(0.75 * p, p) for p in (12.0, 20.0, 30.0)])
        assert found.value == pytest.approx(12)
        assert found.error == pytest.approx(0, abs=1e-12)

    def test_its_error_is_that_of_the_mean_over_columns(self):
        """500 panels of six columns with 20 % of noise scatter as much as their errors say."""
        generator = np.random.default_rng(0)
        panels = [
            fitted_factor([edge_at(20 * math.exp(0.2 * z), 20.0) for z in noise])
            for noise in generator.standard_normal((500, 6)).clip(-2.5, 2.5)
        ]
        z = np.array([math.log(p.value / 16) / (p.error / p.value) for p in panels])
        # Student's t with five degrees of freedom has a standard deviation of √(5/3).
        assert abs(z.mean()) < 4 * z.std() / math.sqrt(500)
        assert z.std() == pytest.approx(math.sqrt(5 / 3), rel=0.2)

    def test_columns_that_do_not_show_both_are_left_out(self):
        seen = [edge_at(10.0, 20.0), edge_at(15.0, 30.0)]
        beyond = [edge_at(40.0, 20.0), edge_at(20.0, math.inf), edge_at(5.0, 20.0)]
        assert fitted_factor(seen + beyond) == fitted_factor(seen)
        assert math.isnan(fitted_factor(beyond).value)
        assert math.isnan(fitted_factor(seen[:1]).error)


class TestDisagreement:
    def test_an_octave_of_three_is_a_third(self):
        assert disagreement([edge_at(10.0, 20.0)], paper_line) == pytest.approx(1 / 3)
        assert disagreement([edge_at(10.0, 20.0)], scaled_line(8.0)) == pytest.approx(0)

    def test_beyond_what_was_tried_nothing_disagrees(self):
        assert disagreement([edge_at(40.0, math.inf)], paper_line) == 0
        assert disagreement([edge_at(5.0, 1.0)], paper_line) == 0

    def test_no_other_single_depth_is_better(self):
        edges = [edge_at(depth, 20.0) for depth in (7.0, 9.0, 13.0, 30.0, 38.0)]
        best = best_constant(edges)
        least = disagreement(edges, lambda e: best)
        for other in np.geomspace(5, 40, 50):
            assert disagreement(edges, lambda e, other=other: other) >= least - 1e-12


class TestSeedNoise:
    def test_differences_of_equal_columns_exceed_it_one_time_in_twenty(self):
        generator = np.random.default_rng(1)
        exceeded = []
        for noise in generator.standard_normal((1000, 7, 2)):
            seeds = 15 * np.exp(0.1 * noise)
            edges = [edge_at(float(np.exp(np.log(s).mean())), 20.0, tuple(s)) for s in seeds]
            gap = math.log(edges[0].depth / edges[1].depth)
            exceeded.append(gap > seed_noise(edges).error)
        # Five per cent, one-sided, within four standard errors.
        assert abs(np.mean(exceeded) - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 1000)

    def test_one_seed_says_nothing(self):
        assert math.isnan(seed_noise([edge_at(10.0, 20.0)]).error)
