"""The verdict follows from the probability of training, or else from growth."""

import dataclasses
import math

import pytest

from equipoise.diagnosis import verdict
from equipoise.diagnosis.record import GROWTH
from equipoise.probes.gradient_growth import GradientGrowth
from equipoise.records import Estimate
from support.report_examples import deep_checkup, interrupted_checkup


def conclude(checkup, trainability=None):
    return verdict.conclude(checkup.growth, trainability, checkup.findings)


def with_rate(value):
    checkup = deep_checkup()
    growth = dataclasses.replace(checkup.growth, rate=Estimate(value, 0.01, "measured"))
    return dataclasses.replace(checkup, growth=growth)


def test_it_names_probability_reason_and_depth():
    stored = deep_checkup().verdict
    assert conclude(deep_checkup(), stored.trainability) == stored


def test_without_a_reason_it_names_growth():
    healthy = dataclasses.replace(
        deep_checkup().verdict.trainability, probability=0.97, reason="", depth=None
    )
    found = conclude(with_rate(1.001), healthy)
    assert found.sentence.startswith("Will train (97 %")
    assert found.details == "Gradients keep their size from layer to layer"


@pytest.mark.parametrize(
    ("rate", "sentence"),
    [
        (0.8, "Gradients shrink ×0.800 per layer"),
        (1.47, "Gradients grow ×1.47 per layer"),
        (1.001, "Gradients keep their size from layer to layer"),
        (math.nan, "Gradients are not finite: their growth could not be measured"),
    ],
)
def test_without_a_probability_it_is_about_growth(rate, sentence):
    found = conclude(with_rate(rate))
    assert (found.sentence, found.details) == (sentence, "")
    assert found.trainability is None


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


def test_comparisons_are_found_by_their_quantity():
    checkup = deep_checkup()
    assert checkup.comparison(GROWTH) is checkup.comparisons[0]
    assert dataclasses.replace(checkup, comparisons=()).comparison(GROWTH) is None
