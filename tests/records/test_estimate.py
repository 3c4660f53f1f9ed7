"""Estimates print what they know, and a mean knows its standard error."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.records import Estimate
from equipoise.records.wording import spread


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (1.46695, 0.0021, "1.467 ± 0.002"),
        (3.0, 0.0, "3"),
        (1.25, 1e-15, "1.25"),
        (1.5, math.nan, "1.50 ± ?"),
        (1.5, math.inf, "1.50 ± ?"),
        (math.inf, 0.1, "∞"),
        (math.nan, 0.1, "NaN"),
        (1.5e-20, 2e-22, "(1.50 ± 0.02)×10⁻²⁰"),
        (3.5e9, 1.4e8, "(3.50 ± 0.14)×10⁹"),
        (120.0, 34.0, "120 ± 34"),
        (-0.5, 0.25, "−0.5 ± 0.2"),
    ],
)
def test_digits_end_where_knowledge_does(value, error, text):
    assert str(Estimate(value, error, "m")) == text


@given(st.floats(), st.floats(min_value=0), st.text())
def test_any_estimate_prints(value, error, method):
    assert str(Estimate(value, error, method))


def test_relative_error():
    assert Estimate(-2.0, 0.5, "m").relative_error == 0.25
    assert Estimate(0.0, 0.5, "m").relative_error == math.inf


def test_estimates_are_frozen():
    with pytest.raises(AttributeError):
        Estimate(1.0, 0.0, "m").value = 2.0


def test_standard_error_is_that_of_the_mean():
    samples = np.random.default_rng(1).normal(3.0, 0.5, size=(400, 20))
    z = [(e.value - 3.0) / e.error for e in (Estimate.of_mean(row, "") for row in samples)]
    # Student's t with 19 degrees of freedom has variance 19/17.
    assert np.mean(np.square(z)) == pytest.approx(19 / 17, abs=4 * 0.09)


def test_one_sample_has_an_unknown_error():
    assert math.isnan(Estimate.of_mean([2.0], "").error)


@given(st.floats(), st.floats(min_value=0))
def test_it_is_printed_as_in_reports(value, error):
    estimate = Estimate(value, error, "m")
    assert str(estimate) == spread(estimate)
