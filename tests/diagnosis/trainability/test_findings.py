"""What a probability means for the user, in words and in a severity."""

import dataclasses

import pytest

from equipoise.diagnosis.trainability.findings import conclude_trainability
from equipoise.diagnosis.trainability.judge import judge
from equipoise.diagnosis.trainability.words import forecast
from support.trainability_examples import CALIBRATION, network

FOUND = dataclasses.replace(
    judge(network(), 32, CALIBRATION, depth=False),
    reason="gradients vanish",
    alike=100,
    alike_trained=0.25,
)


def at(probability, **changes):
    ends = {"low": 0.9 * probability, "high": 0.1 + 0.9 * probability}
    return dataclasses.replace(FOUND, probability=probability, **ends, **changes)


@pytest.mark.parametrize(
    ("probability", "words"),
    [
        (0.001, "Will not train (under 1 %, between 0 and 11 %)"),
        (0.05, "Will not train (5 %, between 4 and 15 %)"),
        (0.3, "Will probably not train (30 %, between 27 and 37 %)"),
        (0.5, "May train or not (50 %, between 45 and 56 %)"),
        (0.7, "Will probably train (70 %, between 63 and 73 %)"),
        (0.8, "Will probably train (80 %, between 72 and 82 %)"),
        (0.96, "Will train (96 %, between 86 and 97 %)"),
        (0.999, "Will train (over 99 %, between 89 and 100 %)"),
    ],
)
def test_forecasts(probability, words):
    assert forecast(at(probability)) == words


@pytest.mark.parametrize(
    ("probability", "low", "high", "words"),
    [
        (0.96, 0.51, 0.99, "Will train (96 %, between 51 and 99 %)"),
        (0.96, 0.45, 0.99, "Will probably train (96 %, between 45 and 99 %)"),
        (0.94, 0.02, 0.99, "May train or not (94 %, between 2 and 99 %)"),
        (0.05, 0.01, 0.6, "Will probably not train (5 %, between 1 and 60 %)"),
        (0.05, 0.01, 0.95, "May train or not (5 %, between 1 and 95 %)"),
    ],
)
def test_a_wide_interval_makes_no_sure_forecast(probability, low, high, words):
    found = dataclasses.replace(FOUND, probability=probability, low=low, high=high)
    assert forecast(found) == words
    (finding,) = conclude_trainability(found, "Do this.")
    assert (finding.severity == "note") == words.startswith("May")


@pytest.mark.parametrize(
    ("probability", "severity"),
    [
        (0.0, "critical"),
        (0.19, "critical"),
        (0.2, "warning"),
        (0.49, "warning"),
        (0.64, "warning"),
        (0.65, "note"),
        (0.79, "note"),
        (0.8, "good"),
        (1.0, "good"),
    ],
)
def test_severities(probability, severity):
    (finding,) = conclude_trainability(at(probability), "Do this.")
    assert finding.severity == severity
    assert finding.title == forecast(at(probability))
    assert (finding.remedy == "Do this.") == (severity != "good")


def test_the_reason_comes_before_the_evidence():
    (finding,) = conclude_trainability(at(0.1), "")
    assert finding.detail == (
        "Gradients vanish. Of 100 small networks that theory and one pass found as likely to "
        "train, 25 % did (docs/trainability.md)."
    )


def test_without_a_reason_none_is_given():
    (finding,) = conclude_trainability(at(0.95, reason=""), "")
    assert finding.detail.startswith("Of 100 small networks")


def test_what_is_outside_is_named():
    (finding,) = conclude_trainability(at(0.4, outside=("explosion", "size")), "")
    assert finding.detail.endswith(
        "None of them was as far out in explosion, size: the interval is wider for that."
    )
    assert "None of them" not in conclude_trainability(at(0.4), "")[0].detail


def test_what_is_not_known_is_no_finding():
    assert conclude_trainability(None, "Do this.") == []
