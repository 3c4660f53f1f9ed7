"""Boundaries are found where they are, and factors come with honest errors."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from equipoise_papers.yang2019.trainability.boundary.claims import (
    Deeper,
    at_the_line,
    deepest_at,
    not_beyond_the_line,
    nothing_beyond,
    same_region,
    transition_at,
)
from equipoise_papers.yang2019.trainability.boundary.edge import (
    Column,
    Edge,
    best_constant,
    crossing,
    disagreement,
    edge,
    fitted_factor,
    of_each_other,
    of_line,
    paper_line,
    scaled_line,
)
from equipoise_papers.yang2019.trainability.boundary.ratios import (
    Noise,
    Ratio,
    mean_ratio,
    more,
    no_more,
    resampled,
    seed_noise,
)
from equipoise_papers.yang2019.trainability.boundary.remarks import advantages

DEPTHS = (5, 10, 20, 40)


def column(*means, predicted=20.0, position=8.0):
    return Column(position, predicted, DEPTHS, tuple((mean,) for mean in means), chance=0.1)


def edge_at(depth, predicted, seeds=(), position=8.0):
    return Edge(position, predicted, (5, 40), seeds or (depth,), depth)


class TestCrossing:
    def test_a_straight_line_over_log_depth_is_met_exactly(self):
        accuracies = [1 - 0.3 * math.log2(depth / 5) for depth in DEPTHS]
        assert crossing(DEPTHS, accuracies, 0.55) == pytest.approx(5 * 2**1.5)

    def test_boundaries_outside_the_span_are_limited_to_it(self):
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

    def test_a_column_that_only_guesses_trains_nowhere(self):
        """Its best is luck: half-way to it is no boundary."""
        assert edge(column(0.1, 0.15, 0.12, 0.1)).below
        assert edge(column(0.3, 0.1, 0.1, 0.1)).inside


class TestRatios:
    def test_the_factor_that_was_put_in_comes_out(self):
        edges = [edge_at(0.75 * p, p) for p in (12.0, 20.0, 30.0)]
        assert fitted_factor(edges) == pytest.approx(12)
        assert of_line(edges).high == pytest.approx(0.75)

    def test_the_interval_holds_the_truth_nineteen_times_in_twenty(self):
        """500 panels of six columns with 20 % of noise."""
        generator = np.random.default_rng(0)
        panels = [
            of_line([edge_at(20 * math.exp(0.2 * z), 20.0) for z in noise])
            for noise in generator.standard_normal((500, 6)).clip(-2.5, 2.5)
        ]
        held = np.mean([panel.low < 1 < panel.high for panel in panels])
        assert abs(held - 0.95) < 4 * math.sqrt(0.05 * 0.95 / 500)

    def test_columns_that_the_line_does_not_cross_do_not_count(self):
        seen = [edge_at(10.0, 20.0), edge_at(15.0, 30.0)]
        outside = [edge_at(20.0, math.inf), edge_at(20.0, 50.0)]
        assert of_line(seen + outside) == of_line(seen)

    def test_columns_whose_boundary_is_unseen_leave_the_ratio_undecided(self):
        """The boundary of a column that was chosen by its outcome says nothing for the others."""
        agreeing = [edge_at(20.0, 20.0)] * 5
        assert of_line(agreeing).is_one is True
        assert of_line([*agreeing, edge_at(40.0, 30.0)]).is_one is None
        assert of_line([edge_at(10.0, 30.0)] * 5 + [edge_at(40.0, 30.0)]).is_one is False

    @pytest.mark.parametrize(
        ("low", "high", "expected"),
        [(0.9, 1.2, True), (0.5, 0.7, False), (1.3, 9.0, False), (0.7, 0.9, None)],
    )
    def test_the_interval_decides(self, low, high, expected):
        assert Ratio(math.sqrt(low * high), low, high, 7).is_one is expected

    @pytest.mark.parametrize("logs", [[], [0.0], [0.0, 0.3]])
    def test_few_columns_decide_nothing(self, logs):
        assert mean_ratio(logs).is_one is None

    def test_pairs_are_compared_position_by_position(self):
        some = [edge_at(10.0, 20.0, position=p) for p in (1, 2, 3)]
        others = [edge_at(20.0, 20.0, position=p) for p in (2, 3, 4)]
        found = of_each_other(some, others)
        assert (found.value, found.columns) == (pytest.approx(0.5), 2)


class TestDecisions:
    KNOWN, UNKNOWN = 0.1, math.nan

    def test_no_more(self):
        assert no_more(0.3, self.KNOWN) is False
        assert no_more(-0.3, self.KNOWN) is True
        assert no_more(0.05, self.KNOWN) is True
        assert no_more(0.05, 0.5) is None
        assert no_more(-0.3, 0.5) is None
        assert no_more(-0.3, self.UNKNOWN) is None

    def test_more(self):
        assert more(0.3, self.KNOWN) is True
        assert more(0.05, self.KNOWN) is False
        assert more(0.2, 0.5) is None
        assert more(0.3, self.UNKNOWN) is None

    def test_the_bootstrap_interval_of_a_mean_is_the_normal_one(self):
        values = np.random.default_rng(3).standard_normal(50)
        low, high = resampled(len(values), lambda places: values[places].mean(1))
        error = values.std() / math.sqrt(50)
        # The quantile of 1000 drawings has an error of 0.09 standard errors.
        assert (high - values.mean()) / error == pytest.approx(1.96, abs=0.4)
        assert (values.mean() - low) / error == pytest.approx(1.96, abs=0.4)
        assert all(map(math.isnan, resampled(2, lambda places: places[:, 0] + 0.0)))


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

    def test_of_many_drawings_at_once(self):
        """Column by column, with boundaries and lines inside and outside of what was tried."""
        places = np.random.default_rng(0).integers(5, size=(40, 5))
        edges = [
            edge_at(d, p) for d, p in ((7.0, 9.0), (9.0, 30.0), (13.0, math.inf), (40.0, 20.0))
        ]
        edges.append(Edge(8.0, 12.0, (4, 50), (30.0,), 30.0))
        expected = []
        for row in places:
            some = [edges[i] for i in row]
            flat, line = best_constant(some), scaled_line(fitted_factor(some))
            constant = disagreement(some, lambda e, flat=flat: flat)
            expected.append(constant - disagreement(some, line))
        np.testing.assert_allclose(advantages(edges, places), expected, atol=1e-14)
        unseen = advantages([edge_at(40.0, 20.0)] * 3, np.zeros((2, 3), dtype=int))
        assert np.isnan(unseen).all()


class TestSeedNoise:
    def test_differences_of_equal_columns_exceed_it_one_time_in_twenty(self):
        generator = np.random.default_rng(1)
        exceeded = []
        for noise in generator.standard_normal((1000, 7, 2)):
            seeds = 15 * np.exp(0.1 * noise)
            means = np.log(seeds).mean(1)
            width = seed_noise(seeds.tolist()).width(columns=2)
            exceeded.append(means[0] - means[1] > width)
        # Five per cent, one-sided, within four standard errors.
        assert abs(np.mean(exceeded) - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 1000)

    def test_the_largest_of_many_exceeds_it_at_most_as_often(self):
        generator = np.random.default_rng(2)
        exceeded = []
        for noise in generator.standard_normal((1000, 7, 2)):
            known = seed_noise(np.exp(0.1 * noise).tolist())
            exceeded.append((0.1 * noise).mean(1).max() > known.width(columns=1, comparisons=7))
        assert np.mean(exceeded) < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 1000)

    def test_one_seed_says_nothing(self):
        assert math.isnan(seed_noise([[10.0], [12.0]]).width(columns=1))
        assert Noise(0.1, 7, 2).width(columns=1) > 0


# Boundaries of two seeds each, which differ by 2 %; the span is from 5 to 40.
def seen(depth, predicted=20.0, position=8.0):
    return edge_at(depth, predicted, (0.99 * depth, 1.01 * depth), position)


DEEP, NONE = edge_at(40.0, 20.0, (40.0, 40.0), 1.0), edge_at(5.0, 20.0, (5.0, 5.0), 1.0)


def both(check, edges):
    """What a check says where half and a quarter of the way have the same boundaries."""
    return check(edges, edges)


class TestClaims:
    def test_beyond_the_line(self):
        assert both(not_beyond_the_line, [seen(15.0), seen(19.0)]).holds is True
        assert both(not_beyond_the_line, [seen(15.0), seen(23.0)]).holds is False
        assert both(not_beyond_the_line, [seen(15.0), DEEP]).holds is False

    def test_beyond_the_line_where_it_cannot_be_told(self):
        beyond_all = [edge_at(40.0, 60.0), edge_at(30.0, math.inf)]
        assert both(not_beyond_the_line, beyond_all).holds is None
        assert both(not_beyond_the_line, [NONE, NONE]).holds is None
        assert both(not_beyond_the_line, [edge_at(15.0, 20.0)]).holds is None  # a single seed

    def test_deeper_than_so_many_layers(self):
        assert both(partial(nothing_beyond, 30), [seen(20.0), seen(28.0)]).holds is True
        assert both(partial(nothing_beyond, 30), [seen(20.0), seen(35.0)]).holds is False
        assert both(partial(nothing_beyond, 30), [NONE, NONE]).holds is None
        assert (
            both(partial(nothing_beyond, 50), [seen(20.0), DEEP]).holds is None
        )  # nothing deeper was tried

    def test_networks_that_train_at_every_depth_tried_are_never_within_a_limit(self):
        assert both(partial(nothing_beyond, 30), [DEEP, DEEP]).holds is False
        assert both(partial(nothing_beyond, 39), [DEEP, seen(20.0), seen(10.0)]).holds is not True
        assert (
            both(not_beyond_the_line, [edge_at(40.0, 39.9), seen(15.0), seen(16.0)]).holds is None
        )

    def test_deepest_at(self):
        here, there = seen(20.0, position=1.0), seen(10.0, position=2.0)
        assert deepest_at(1.0, [here, there]).holds is True
        assert deepest_at(2.0, [here, there]).holds is False

    def test_deepest_at_among_unseen_boundaries(self):
        other = seen(20.0, position=2.0)
        assert deepest_at(1.0, [DEEP, other]).holds is True
        assert deepest_at(2.0, [DEEP, other]).holds is False
        both = [DEEP, edge_at(40.0, 20.0, (40.0, 40.0), 2.0)]
        assert deepest_at(1.0, both).holds is None
        nearly = [edge_at(40.0, 20.0, (40.0, 40.0), 1.0), seen(39.5, position=2.0)]
        assert deepest_at(2.0, nearly).holds is None
        nothing = [NONE, edge_at(5.0, 20.0, (5.0, 5.0), 2.0)]
        assert deepest_at(1.0, nothing).holds is None

    def test_deeper_here_than_there(self):
        edges = [seen(30.0, position=1.0), seen(10.0, position=2.0), seen(30.2, position=3.0)]
        assert both(Deeper("deeper", (1.0,), 2.0).check, edges).holds is True
        assert both(Deeper("deeper", (2.0,), 1.0).check, edges).holds is False
        assert both(Deeper("deeper", (3.0,), 1.0).check, edges).holds is False
        unseen = [DEEP, seen(39.5, position=2.0)]
        assert both(Deeper("deeper", (1.0,), 2.0).check, unseen).holds is None
        one_seed = [edge_at(30.0, 20.0, position=1.0), edge_at(10.0, 20.0, position=2.0)]
        assert both(Deeper("deeper", (1.0,), 2.0).check, one_seed).holds is None

    def test_near_a_place_the_deepest_counts(self):
        edges = [seen(d, position=p) for p, d in ((0.0, 10.0), (0.8, 30.0), (1.0, 9.0))]
        near, there = Deeper("near", (0.8, 1.0), 0.0), Deeper("there", (1.0,), 0.0)
        assert both(near.check, edges).holds is True
        assert both(there.check, edges).holds is False

    def test_two_readings_with_two_answers_decide_nothing(self):
        deep, shallow = ([seen(d, position=1.0), seen(10.0, position=2.0)] for d in (30.0, 5.0))
        claim = Deeper("deeper", (1.0,), 2.0)
        assert [claim.check(*pair).holds for pair in ((deep, deep), (shallow, shallow))] == [
            True,
            False,
        ]
        assert claim.check(deep, shallow).holds is None
        assert nothing_beyond(20, [seen(15.0)] * 3, [seen(30.0)] * 3).holds is None
        assert not_beyond_the_line([seen(15.0)] * 3, [seen(30.0)] * 3).holds is None
        unseen = [DEEP, edge_at(40.0, 20.0, (40.0, 40.0), 2.0)]
        assert Deeper("deeper", (DEEP.position,), 2.0).check(unseen, unseen) is None
        found = Deeper("deeper", (1.0,), 2.0).check(deep, [replace(e, depth=40.0) for e in deep])
        assert "neither boundary is within the depths tried" in found.found

    def test_a_transition_is_where_the_depth_changes_most(self):
        def at(*depths):
            return [seen(d, position=p) for p, d in zip((0.6, 0.8, 1.0, 1.2), depths, strict=True)]

        before, after, elsewhere = at(20, 20, 6, 6), at(20, 20, 20, 6), at(20, 6, 6, 6)
        level = at(20, 20, 20, 20)
        pairs = (before, before), (before, after), (elsewhere, elsewhere), (before, elsewhere)
        holds = [transition_at(1.0, *pair).holds for pair in pairs]
        assert holds == [True, True, False, None]
        assert transition_at(1.0, level, level).holds is not True

    def test_at_the_line_and_the_same_region(self):
        edges = [seen(depth, 20.0, position) for position, depth in enumerate((19, 20, 21, 20))]
        half = [seen(e.depth / 2, 20.0, e.position) for e in edges]
        assert [at_the_line(found, found, "agreement").holds for found in (edges, half)] == [
            True,
            False,
        ]
        regions = [same_region(found, edges, found, edges).holds for found in (edges, half)]
        assert regions == [True, False]
        assert same_region(edges, edges, half, edges).holds is None
        assert same_region(edges, [], edges, []).holds is None
