"""The best rate of a grid, never unnoticed at its edge."""

from __future__ import annotations

import math

import pytest

from equipoise.training import tune_rate

GRID = (0.01, 0.03, 0.09)


def valley(best: float):
    return lambda rate: abs(math.log(rate / best))


def test_inside_the_grid_nothing_is_added():
    tuned = tune_rate(valley(0.03), GRID)
    assert (tuned.rate, tuned.at_edge) == (0.03, False)
    assert [rate for rate, _ in tuned.scores] == list(GRID)


@pytest.mark.parametrize("best", [0.27, 0.01 / 3])
def test_beyond_the_grid_it_is_extended(best):
    tuned = tune_rate(valley(best), GRID)
    assert tuned.rate == pytest.approx(best)
    assert not tuned.at_edge


@pytest.mark.parametrize("best", [100.0, 1e-6])
def test_too_far_beyond_is_said(best):
    tuned = tune_rate(valley(best), GRID, extensions=1)
    assert tuned.at_edge
    assert len(tuned.scores) == 4


def test_rates_that_diverge_are_never_chosen():
    tuned = tune_rate(lambda rate: math.nan if rate > 0.02 else 1.0, GRID)
    assert tuned.rate < 0.02
    assert tuned.scores[-1] == (0.09, math.inf)


def test_where_all_diverge_there_is_no_rate():
    tuned = tune_rate(lambda rate: math.inf, GRID)
    assert math.isnan(tuned.rate)
    assert tuned.at_edge
    assert len(tuned.scores) == 5


@pytest.mark.parametrize(
    "rates",
    [(), (0.1,), (0.1, 0.1), (0.2, 0.1), (0.0, 0.1), 0.1, "0.1", ("0.01", "0.1"), (0.1, math.inf)],
)
def test_other_grids_are_refused(rates):
    with pytest.raises(ValueError, match="at least two, positive and rising"):
        tune_rate(valley(1), rates)
