"""Exact exponentials give their rate; noise gives a standard error that tells the truth."""

import math

import numpy as np
import pytest

from equipoise.numerics.growth import growth_rate, log_slopes


@pytest.mark.parametrize("rate", [0.3, 1.0, 1.7])
def test_growth_towards_the_input_of_exact_exponentials(rate):
    layers = np.arange(6)
    log_norms = np.array([[5.0], [-2.0]]) - layers * math.log(rate)
    estimate = growth_rate(log_norms, "exact")
    assert estimate.value == pytest.approx(rate, rel=1e-14)
    assert estimate.error < 1e-14


def test_norms_that_grow_towards_the_output_have_a_rate_below_one():
    assert growth_rate(np.log([[1.0, 2.0, 4.0]] * 2), "exact").value == pytest.approx(0.5)


def test_slopes_are_least_squares():
    rows = np.random.default_rng(0).normal(size=(4, 9))
    expected = [np.polyfit(np.arange(9), row, 1)[0] for row in rows]
    np.testing.assert_allclose(log_slopes(rows), expected, rtol=1e-12)


def test_error_of_the_rate_covers_noise_between_replicates():
    generator = np.random.default_rng(2)
    z = []
    for _ in range(300):
        slopes = math.log(1.4) + 0.02 * generator.normal(size=(16, 1))
        estimate = growth_rate(-slopes * np.arange(10), "")
        z.append((estimate.value - 1.4) / estimate.error)
    assert np.mean(np.square(z)) == pytest.approx(15 / 13, abs=0.5)


def test_one_replicate_has_the_error_of_its_line():
    """The slope's standard error s/√Σ(x - x̄)², as numpy's polyfit knows it."""
    row = np.random.default_rng(3).normal(size=12)
    (slope, _), covariance = np.polyfit(np.arange(12), row, 1, cov=True)
    estimate = growth_rate(row[None], "a fit")
    assert estimate.error == pytest.approx(math.exp(-slope) * math.sqrt(covariance[0, 0]))
    assert "error of the fit alone" in estimate.method


def test_two_layers_of_one_replicate_have_an_unknown_error():
    assert math.isnan(growth_rate(np.zeros((1, 2)), "").error)
