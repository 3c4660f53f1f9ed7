"""Slopes over width, their errors, and what is concluded from them."""

import math

import numpy as np
import pytest

from equipoise.diagnosis.width.trends import trend_of

WIDTHS = (64, 128, 256, 512)


def sizes(exponent, noise=0.02, seeds=4):
    drawn = np.random.default_rng(2).normal(0, noise, (len(WIDTHS), seeds))
    return [[w**exponent * math.exp(e) for e in row] for w, row in zip(WIDTHS, drawn, strict=True)]


@pytest.mark.parametrize(
    ("exponent", "trend"),
    [(0.0, "stable"), (0.1, "stable"), (0.5, "grows"), (1.0, "grows"), (-0.5, "vanishes")],
)
def test_exponents_are_told_apart(exponent, trend):
    found = trend_of(WIDTHS, sizes(exponent))
    assert found.trend == trend
    assert abs(found.slope.value - exponent) < 4 * found.slope.error


def test_between_two_exponents_nothing_is_decided():
    assert trend_of(WIDTHS, sizes(0.25)).trend == "undecided"
    assert trend_of(WIDTHS, sizes(0.5, noise=1.5)).trend == "undecided"
    assert trend_of(WIDTHS[:2], sizes(1.0, seeds=1)[:2]).trend == "undecided"


def test_the_error_is_that_of_repeated_fits():
    generator = np.random.default_rng(1)
    found = [
        trend_of(WIDTHS, np.exp(generator.normal(0, 0.1, (4, 3))).tolist()).slope
        for _ in range(300)
    ]
    spread = np.std([slope.value for slope in found])
    assert np.mean([slope.error for slope in found]) == pytest.approx(spread, rel=0.15)


def test_zero_and_not_finite_have_no_slope():
    assert trend_of(WIDTHS, [[0.0]] * 4).trend == "zero"
    assert trend_of(WIDTHS, [[1.0], [math.inf], [1.0], [1.0]]).trend == "not finite"
    assert math.isnan(trend_of(WIDTHS, [[0.0]] * 4).slope.value)


def test_a_missing_prediction_has_no_slope():
    found = trend_of(WIDTHS, sizes(0.0), [1.0, 2.0, 4.0, math.nan])
    assert math.isnan(found.predicted_slope)
    assert trend_of(WIDTHS, sizes(0.0), list(WIDTHS)).predicted_slope == pytest.approx(1)
