"""The verdict follows from growth, predictions, comparisons and findings."""

import dataclasses
import math

import pytest

from equipoise.diagnosis import verdict
from equipoise.diagnosis.record import GROWTH
from equipoise.probes.gradient_growth import GradientGrowth
from equipoise.records import Estimate
from support.report_examples import deep_checkup, interrupted_checkup


def conclude(checkup):
    return verdict.conclude(checkup.growth, checkup.comparisons, checkup.findings, checkup.depth)


def with_rate(value):
    checkup = deep_checkup()
    growth = dataclasses.replace(checkup.growth, rate=Estimate(value, 0.01, "measured"))
    return dataclasses.replace(checkup, growth=growth)


def test_it_names_growth_and_both_depths():
    assert conclude(deep_checkup()) == deep_checkup().verdict


@pytest.mark.parametrize(
    ("rate", "sentence"),
    [
        (0.8, "Gradients shrink ×0.800 per layer"),
        (1.001, "Gradients keep their size from layer to layer"),
        (math.nan, "Gradients are not finite: their growth could not be measured"),
    ],
)
def test_other_rates(rate, sentence):
    assert conclude(with_rate(rate)).sentence == sentence


def test_without_a_measurement():
    found = conclude(dataclasses.replace(deep_checkup(), growth=None))
    assert found.sentence == "Gradients were not measured"


def test_with_too_few_layers():
    growth = GradientGrowth((), None, None, 1, 1)
    assert conclude(dataclasses.replace(deep_checkup(), growth=growth)).sentence.startswith("Too")


def test_without_anything():
    found = conclude(interrupted_checkup())
    assert found == interrupted_checkup().verdict
    assert found.severity is None


def test_an_unlimited_depth():
    checkup = deep_checkup()
    growth = checkup.comparison(GROWTH)
    level = dataclasses.replace(growth, predicted=Estimate(1.0, 0.0, "theory"))
    found = conclude(dataclasses.replace(checkup, comparisons=(level,)))
    assert found.depths == "Trainable depth unlimited, model depth 32"


def test_without_a_prediction_the_measurement_decides():
    checkup = deep_checkup()
    found = conclude(dataclasses.replace(checkup, comparisons=()))
    assert found.trainable_depth == pytest.approx(16 / math.log(checkup.growth.rate.value))


def test_without_a_straight_profile_there_is_no_trainable_depth():
    checkup = deep_checkup()
    layers = list(checkup.growth.layers)
    layers[16] = dataclasses.replace(layers[16], gradient=Estimate(1e9, 0.1, "m"))
    bent = dataclasses.replace(checkup.growth, layers=tuple(layers))
    assert conclude(dataclasses.replace(checkup, growth=bent)).trainable_depth is None


@pytest.mark.parametrize(
    ("outcome", "depth"), [("agrees", 41.8), ("undecided", 41.8), ("differs", 16.0)]
)
def test_where_theory_and_measurement_differ_the_measurement_decides(outcome, depth):
    checkup = deep_checkup()
    growth = checkup.comparison(GROWTH)
    measured = dataclasses.replace(growth.measured, value=math.e)
    changed = dataclasses.replace(growth, measured=measured, outcome=outcome)
    found = conclude(dataclasses.replace(checkup, comparisons=(changed,)))
    assert found.trainable_depth == pytest.approx(depth, rel=0.01)


def test_comparisons_are_found_by_their_quantity():
    checkup = deep_checkup()
    assert checkup.comparison(GROWTH) is checkup.comparisons[0]
    assert dataclasses.replace(checkup, comparisons=()).comparison(GROWTH) is None
