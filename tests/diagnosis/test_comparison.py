"""A comparison agrees, differs, or is undecided for want of initialisations."""

import dataclasses
import math

import pytest

from equipoise.diagnosis.comparison import compare, compared, is_straight, predicted_rate
from equipoise.diagnosis.record import CORRELATION, GROWTH, PROFILE, LayerPrediction
from equipoise.probes.record import GradientGrowth, LayerGradients
from equipoise.records import Estimate


def judged(predicted, measured, error, *, theory=0.01, replicates=100):
    first, second = Estimate(predicted, theory, "theory"), Estimate(measured, error, "fit")
    return compared(GROWTH, first, second, replicates)


@pytest.mark.parametrize(
    ("measured", "expected"), [(1.47, "agrees"), (1.50, "agrees"), (1.57, "differs")]
)
def test_three_errors_are_the_limit(measured, expected):
    assert judged(1.47, measured, 0.01).outcome == expected


def test_the_error_of_theory_widens_it():
    assert judged(1.47, 1.57, 0.01, theory=0.05).outcome == "agrees"


def test_what_only_few_initialisations_hide_is_undecided():
    """Ten stated errors are no agreement, however wide Student's t is."""
    found = judged(1.47, 1.342, 0.004, theory=0.01, replicates=2)
    assert abs(found.z) > 8
    assert found.outcome == "undecided"
    assert judged(1.47, 1.342, 0.004, theory=0.01, replicates=30).outcome == "differs"


def test_large_errors_decide_nothing():
    assert judged(1.47, 1.48, 0.3).outcome == "undecided"


def test_z_is_in_the_stated_errors():
    found = judged(1.0, 1.1, 0.011, theory=0.02)
    assert found.z == pytest.approx(math.log(1.1) / math.hypot(0.02, 0.01), rel=1e-9)


@pytest.mark.parametrize("predicted", [1.47, math.nan])
def test_nan_decides_nothing(predicted):
    assert judged(predicted, math.nan, 0.01).outcome == "undecided"


@pytest.mark.parametrize("value", [1.47, 3.0])
def test_an_unknown_error_decides_nothing(value):
    """Of a single initialisation and batch."""
    found = judged(1.47, value, math.nan, replicates=1)
    assert found.outcome == "undecided"
    assert math.isnan(found.z)


def test_ratios_beyond_the_range_of_numbers():
    assert judged(1e200, 1e-200, 1e-202).outcome == "differs"


def test_a_large_difference_counts_even_if_errors_are_large():
    assert judged(1.0, 100.0, 15.0).outcome == "differs"


def layer(index, gradient, correlation=0.3):
    exact = Estimate(correlation, 0.005, "m")
    value = Estimate(gradient, 0.02 * abs(gradient), "m")
    return LayerGradients(f"norm{index}", "BatchNorm1d", 64, 128, value, None, exact, exact)


def measured(gradients, replicates=30):
    layers = tuple(layer(i, g) for i, g in enumerate(gradients))
    logs = [math.log(g) for g in gradients[1:]]
    slope = (logs[0] - logs[-1]) / (len(logs) - 1)
    rate = Estimate(math.exp(slope), 0.005, "fit")
    return GradientGrowth(layers, rate, None, replicates, 2, tuple(range(1, len(layers))))


def predictions(gradients, error=0.05, correlation=0.3):
    return [
        LayerPrediction(
            f"norm{i}", Estimate(g, error * (8 - i) / 8 * g, "t"), 1.0, correlation, None
        )
        for i, g in enumerate(gradients)
    ]


FALLING = [1.5**-i for i in range(8)]


class TestProfiles:
    def test_equal_profiles_agree(self):
        found = {one.quantity: one for one in compare(measured(FALLING), predictions(FALLING))}
        assert {one.outcome for one in found.values()} == {"agrees"}
        assert found[GROWTH].predicted.value == pytest.approx(1.5)
        assert set(found) == {GROWTH, PROFILE, CORRELATION}

    def test_the_scale_of_the_loss_does_not_count(self):
        scaled = [7 * g for g in FALLING]
        profile = compare(measured(FALLING), predictions(scaled))[1]
        assert profile.z == pytest.approx(0)

    def test_one_layer_that_is_off_is_found_and_named(self):
        off = [*FALLING[:3], 2 * FALLING[3], *FALLING[4:]]
        profile = compare(measured(FALLING), predictions(off))[1]
        assert profile.outcome == "differs"
        assert profile.measured.method == "norm3 over norm7"

    def test_correlations_are_compared(self):
        *_, correlation = compare(measured(FALLING), predictions(FALLING, correlation=0.6))
        assert (correlation.quantity, correlation.outcome) == (CORRELATION, "differs")

    def test_rows_without_a_correlation_are_not_compared(self):
        """Of a spiking network that is silent at first, "measured NaN" was reported."""
        record = measured(FALLING)
        silent = dataclasses.replace(record.layers[-1], correlation=Estimate(math.nan, 0.0, "m"))
        record = dataclasses.replace(record, layers=(*record.layers[:-1], silent))
        quantities = [one.quantity for one in compare(record, predictions(FALLING))]
        assert quantities == [GROWTH, PROFILE]

    def test_the_rate_needs_every_fitted_layer(self):
        some = predictions(FALLING)
        del some[4]
        quantities = [one.quantity for one in compare(measured(FALLING), some)]
        assert GROWTH not in quantities
        assert PROFILE in quantities

    def test_the_first_layer_is_not_fitted(self):
        some = predictions([1e9, *FALLING[1:]])
        by_name = {one.layer: one for one in some}
        assert predicted_rate(measured(FALLING), by_name).value == pytest.approx(1.5)

    def test_nothing_predicted_is_nothing_compared(self):
        assert compare(measured(FALLING), []) == ()


class TestStraightness:
    def test_a_power_law_is_not_straight(self):
        assert is_straight(measured(FALLING))
        assert not is_straight(measured([float((i + 1) ** -4) for i in range(12)]))

    def test_noise_is_straight(self):
        noisy = [g * (1 + 0.2 * (-1) ** i) for i, g in enumerate(FALLING)]
        assert is_straight(measured(noisy))

    def test_without_a_fit_nothing_is(self):
        assert not is_straight(dataclasses.replace(measured(FALLING), rate=None))
