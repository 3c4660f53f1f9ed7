"""A comparison agrees, differs, or is too uncertain to tell."""

import math

import pytest

from equipoise.diagnosis.comparison import compared
from equipoise.diagnosis.record import GROWTH
from equipoise.records import Estimate


def outcome(predicted, measured, error, *, width=0.01, replicates=100):
    theory, fit = Estimate(predicted, 0.0, "theory"), Estimate(measured, error, "fit")
    return compared(GROWTH, theory, fit, width, replicates).outcome


@pytest.mark.parametrize(
    ("measured", "expected"), [(1.47, "agrees"), (1.50, "agrees"), (1.57, "differs")]
)
def test_three_errors_are_the_limit(measured, expected):
    assert outcome(1.47, measured, 0.01) == expected


def test_finite_width_widens_it():
    assert outcome(1.47, 1.57, 0.01, width=0.05) == "agrees"


def test_few_initialisations_widen_it():
    assert outcome(1.47, 1.57, 0.02, width=0.0) == "differs"
    assert outcome(1.47, 1.57, 0.02, width=0.0, replicates=4) == "agrees"


def test_large_errors_decide_nothing():
    """With two initialisations anything is within three errors, such as 1.98 and 1.10."""
    assert outcome(1.10, 1.98, 0.01, replicates=2) == "unclear"
    assert outcome(1.10, 1.98, 0.01, replicates=100) == "differs"


@pytest.mark.parametrize("predicted", [1.47, math.nan])
def test_nan_decides_nothing(predicted):
    assert outcome(predicted, math.nan, 0.01) == "unclear"


def test_a_large_difference_counts_even_if_errors_are_large():
    assert outcome(1.0, 100.0, 15.0) == "differs"
