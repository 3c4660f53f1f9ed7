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
    chance = {"probability": 0.97, "low": 0.9, "high": 0.99}
    healthy = dataclasses.replace(
        deep_checkup().verdict.trainability, **chance, reason="", depth=None
    )
    found = conclude(with_rate(1.001), healthy)
    assert found.sentence.startswith("Will train (97 %")
    assert found.details == "Gradients keep their size from layer to layer"


@pytest.mark.parametrize(
    ("rate", "details"),
    [
        (0.8, "Gradients shrink ×0.800 per layer"),
        (1.47, "Gradients grow ×1.47 per layer"),
        (1.001, "Gradients keep their size from layer to layer"),
        (math.nan, "Gradients are not finite: their growth could not be measured"),
    ],
)
def test_without_a_probability_it_says_so_and_tells_of_growth(rate, details):
    found = conclude(with_rate(rate))
    assert (found.sentence, found.details) == ("Whether it will train is unknown", details)
    assert found.trainability is None


def test_it_says_why_there_is_no_probability():
    checkup = deep_checkup()
    found = verdict.conclude(checkup.growth, None, [], "theory stops at a sort.")
    assert found.details.endswith("per layer. Theory stops at a sort")


def test_without_a_measurement():
    found = conclude(dataclasses.replace(deep_checkup(), growth=None))
    assert found.details == "Gradients were not measured"


@pytest.mark.parametrize(
    ("norms", "details"),
    [
        ((), "0 layers with a gradient: too few to measure its growth"),
        ((0.0, 2.0), "1 layer with a gradient: too few to measure its growth"),
        ((0.0,) * 5, "No layer gets a gradient as yet"),
        ((1.0, math.inf), "Gradients are not finite: their growth could not be measured"),
    ],
)
def test_with_too_few_gradients(norms, details):
    first = deep_checkup().growth.layers[0]
    layers = tuple(
        dataclasses.replace(first, gradient=Estimate(norm, 0.0, "measured")) for norm in norms
    )
    growth = GradientGrowth(layers, None, None, 1, 1)
    assert conclude(dataclasses.replace(deep_checkup(), growth=growth)).details == details


def test_without_anything():
    found = conclude(interrupted_checkup())
    assert found == interrupted_checkup().verdict
    assert found.severity is None


def test_comparisons_are_found_by_their_quantity():
    checkup = deep_checkup()
    assert checkup.comparison(GROWTH) is checkup.comparisons[0]
    assert dataclasses.replace(checkup, comparisons=()).comparison(GROWTH) is None
