"""From quantities to a probability with its reason."""

import dataclasses
import math

import pytest

from equipoise.diagnosis.trainability.judge import REASONS, judge, predicted_probability
from equipoise.diagnosis.trainability.record import NAMES
from support.trainability_examples import CALIBRATION, FIT, layer, network, weight

EXPLODING = network(layer(math.exp(8)), layer())
COLLAPSED = network(layer(), layer(correlation=1 - 1e-6))
BOTH = network(layer(math.exp(8)), layer(correlation=1 - 1e-6))


def judged(found, calibration=CALIBRATION, batch_size=32):
    return judge(found, batch_size, calibration, depth=False)


def test_a_healthy_network_trains_and_has_no_reason():
    found = judged(network())
    assert found.probability == pytest.approx(1 / (1 + math.exp(-3)))
    assert found.low < found.probability < found.high
    assert (found.reason, found.outside, found.depth) == ("", (), None)
    assert found.source == "both"


@pytest.mark.parametrize(
    ("network", "name"), [(EXPLODING, "explosion"), (COLLAPSED, "collapse"), (BOTH, "collapse")]
)
def test_the_reason_is_the_largest_term(network, name):
    """-0.5 of an explosion of 8 is less than -1 of a collapse of 5."""
    assert judged(network).reason == REASONS[name]


def test_which_depends_on_the_coefficients():
    other = {**FIT.coefficients, "explosion": -0.9}
    fits = dict.fromkeys(CALIBRATION.fits, dataclasses.replace(FIT, coefficients=other))
    found = judged(BOTH, dataclasses.replace(CALIBRATION, fits=fits))
    assert found.reason == REASONS["explosion"]


def test_slight_risks_are_no_reason():
    small = dataclasses.replace(FIT, intercept=-1.0)
    pessimistic = dataclasses.replace(CALIBRATION, fits=dict.fromkeys(CALIBRATION.fits, small))
    found = judged(network(layer(math.exp(0.5)), layer()), pessimistic)
    assert found.probability < 0.9
    assert found.reason == ""


def test_where_training_is_likely_there_is_none():
    """Its term of -1 would be a reason elsewhere."""
    easy = dataclasses.replace(FIT, intercept=9.0)
    optimistic = dataclasses.replace(CALIBRATION, fits=dict.fromkeys(CALIBRATION.fits, easy))
    assert judged(network(layer(math.exp(2)), layer()), optimistic).reason == ""
    assert judged(network(layer(math.exp(2)), layer())).reason == REASONS["explosion"]


def test_every_risk_has_a_reason():
    assert set(REASONS) == set(NAMES) - {"samples"} | {"targets", "settling"}


class TestSources:
    def test_an_explosion_counts_as_far_as_both_see_it(self):
        found = judged(network(layer(math.e, measured_gradient=math.e**4), layer()))
        explosions = found.predicted.explosion, found.measured.explosion
        assert explosions == (pytest.approx(1), pytest.approx(4))
        assert found.probability == pytest.approx(1 / (1 + math.exp(-(3 - 0.5 * 1))))

    def test_where_theory_does_not_reach_the_measurement_decides(self):
        unknown = layer(gradient=None, measured_gradient=math.e**4)
        found = judged(network(unknown, layer()))
        assert (found.source, found.predicted) == ("measured", None)
        assert found.probability == pytest.approx(1 / (1 + math.exp(-(3 - 0.5 * 4))))

    def test_then_theory_alone_says_nothing(self):
        assert predicted_probability(network(layer(gradient=None)), 32, CALIBRATION) is None

    def test_theory_alone_does_not_see_measurements(self):
        found = network(layer(measured_gradient=math.e**9), layer())
        assert predicted_probability(found, 32, CALIBRATION) == pytest.approx(
            1 / (1 + math.exp(-3))
        )


def test_outside_the_benchmark_the_interval_is_wider():
    def width(range_):
        ranges = {**CALIBRATION.ranges, "explosion": range_}
        found = judged(EXPLODING, dataclasses.replace(CALIBRATION, ranges=ranges))
        return found.outside, math.log(found.high / found.low)

    assert width((0.0, 7.0))[0] == ("explosion",)
    assert width((0.0, 9.0))[0] == ()
    assert width((0.0, 7.0))[1] > width((0.0, 9.0))[1]


def test_more_samples_help():
    chances = [judged(BOTH, batch_size=size).probability for size in (2, 32, 512)]
    assert chances == sorted(set(chances))


def test_weights_without_gradient_count_against():
    silent = judged(network(weights=(weight(), weight(0.0))))
    assert silent.probability < judged(network()).probability
    assert silent.reason == REASONS["silence"]
