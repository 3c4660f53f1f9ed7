"""The verdict follows from the probability of training, or else from growth."""

import dataclasses
import math

import pytest

from equipoise.diagnosis import verdict
from equipoise.diagnosis.broken import Broken
from equipoise.diagnosis.initialisation.stuck import Stuck
from equipoise.diagnosis.record import GROWTH
from equipoise.probes.record import GradientGrowth
from equipoise.records import Estimate, wording
from equipoise.records.finding import Finding
from support.report_examples import deep_checkup, interrupted_checkup


def conclude(checkup, trainability=None, findings=()):
    return verdict.conclude(checkup.growth, trainability, findings)


def with_rate(value):
    checkup = deep_checkup()
    growth = dataclasses.replace(checkup.growth, rate=Estimate(value, 0.01, "measured"))
    return dataclasses.replace(checkup, growth=growth)


def test_it_names_probability_reason_and_depth():
    stored = deep_checkup().verdict
    assert conclude(deep_checkup(), stored.trainability, deep_checkup().findings) == stored


def finding(severity, title):
    return Finding(severity, title, "")


@pytest.fixture
def healthy():
    """A probability without a reason against it."""
    chance = {"probability": 0.97, "low": 0.9, "high": 0.99}
    return dataclasses.replace(
        deep_checkup().verdict.trainability, **chance, reason="", depth=None
    )


@pytest.mark.parametrize("severity", ["critical", "warning"])
def test_what_is_to_be_mended_stands_beside_a_good_forecast(healthy, severity):
    found = conclude(
        with_rate(1.001),
        healthy,
        [finding("note", "A note"), finding("warning", "A warning"), finding(severity, "Worse")],
    )
    assert found.severity == severity
    title = {"critical": "Worse", "warning": "A warning"}[severity]
    assert found.details.endswith(f"from layer to layer. Found as well: {title}")


def test_a_critical_mistake_comes_before_any_forecast(healthy):
    """Such as gradients of the wrong sign, of which theory knows nothing."""
    mistake = Finding("critical", "Labels 0 and 1 for -1 and 1", "Half are 0.", "Take 2 y - 1.")
    found = verdict.conclude(None, healthy, [mistake], mistake=mistake)
    assert found.sentence == "Not ready to train: labels 0 and 1 for -1 and 1"
    assert found.details.startswith("Take 2 y - 1. But for that, it will train (97 %")
    assert "Found as well" not in found.details
    assert found.trainability == healthy
    unknown = verdict.conclude(None, None, [mistake], mistake=mistake)
    assert unknown.details == "Take 2 y - 1"


def test_what_keeps_it_from_training_comes_before_a_mistake(healthy):
    mistake = finding("critical", "A mistake")
    broken = Broken(("a",), missing=True)
    found = verdict.conclude(None, None, [mistake], obstacle=broken, mistake=mistake)
    assert found.sentence == "Will not train: its gradients are nan"


def test_what_is_left_of_a_model_is_not_all_of_it(healthy):
    """'Will train' stood above models most of whose weights were detached."""
    most = finding("warning", "Most of the weights get no gradient")
    found = verdict.conclude(None, healthy, [most], rest=most)
    assert found.sentence == "Most of it will not train"
    assert found.details.startswith(
        "Most of the weights get no gradient. What is left of it will train (97 %"
    )
    assert "Found as well" not in found.details
    unknown = verdict.conclude(None, None, [most], rest=most)
    assert (unknown.sentence, unknown.details) == (found.sentence, most.title)


def test_the_forecast_itself_is_not_found_as_well(healthy):
    sentence = conclude(with_rate(1.001), healthy).sentence
    found = conclude(with_rate(1.001), healthy, [finding("warning", sentence)])
    assert "Found as well" not in found.details


@pytest.mark.parametrize(
    ("obstacle", "sentence"),
    [
        (Broken(("a",), missing=True), "Will not train: its gradients are nan"),
        (Broken(("a",)), "Will not train: its gradients overflow"),
        (Stuck(silent=("a",)), "Most of it will never train"),
        (Stuck(zero=("a",)), "Part of it will never train"),
    ],
)
def test_an_obstacle_stands_above_everything(obstacle, sentence):
    checkup = deep_checkup()
    found = verdict.conclude(checkup.growth, None, checkup.findings, obstacle=obstacle)
    assert (found.sentence, found.details) == (sentence, wording.capital(obstacle.words))


def test_no_obstacle_is_none(healthy):
    plain = conclude(with_rate(1.001), healthy)
    for obstacle in (Broken(), Stuck(), None):
        again = verdict.conclude(with_rate(1.001).growth, healthy, [], obstacle=obstacle)
        assert again == plain


def test_without_a_reason_it_names_growth(healthy):
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
    found = verdict.conclude(checkup.growth, None, [], unknown="theory stops at a sort.")
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


def test_a_head_that_starts_at_zero_is_named_and_the_rest_judged_as_after_it_moved(healthy):
    """As that of torchvision's ViT: its silence is no doubt about the network."""
    first = deep_checkup().growth.layers[0]
    layers = (dataclasses.replace(first, gradient=Estimate(0.0, 0.0, "measured")),) * 5
    growth = GradientGrowth(layers, None, None, 1, 1)
    quantities = dataclasses.replace(healthy.measured, silence=0.0)
    silent = dataclasses.replace(quantities, silence=0.9)
    judged = dataclasses.replace(healthy, predicted=quantities, measured=silent)
    found = verdict.conclude(growth, judged, [], zeros=("head.weight",))
    assert found.details == (
        "No layer before gets a gradient until head.weight has moved, which starts at zero, as "
        "is often meant. It is judged as after the first steps"
    )
    awake = verdict.conclude(growth, dataclasses.replace(judged, measured=quantities), [])
    assert awake.details == "No layer gets a gradient as yet"


def test_without_anything():
    found = conclude(interrupted_checkup(), findings=interrupted_checkup().findings)
    assert found == interrupted_checkup().verdict
    assert found.severity is None


def test_comparisons_are_found_by_their_quantity():
    checkup = deep_checkup()
    assert checkup.comparison(GROWTH) is checkup.comparisons[0]
    assert dataclasses.replace(checkup, comparisons=()).comparison(GROWTH) is None


def test_printed_a_checkup_is_its_verdict_and_headlines():
    """As a record of numbers it would be 100 kB."""
    deep = deep_checkup()
    first, *rest = str(deep).splitlines()
    assert first == f"{deep.target} on {deep.data}: {deep.verdict}"
    assert deep.verdict.sentence in first
    assert len(rest) == len(deep.headlines) > 0
    assert all(one.title in line for one, line in zip(deep.headlines, rest, strict=True))
