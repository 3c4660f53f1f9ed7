"""Records of a tracked training."""

import json
import math

import pytest

from equipoise.probes.activations import LayerActivations
from equipoise.probes.tracker.record import Band, Series, TrackedStep, Tracking, TrackingCost
from equipoise.records import from_plain, to_plain

COST = TrackingCost(200, 2, 10.0, 0.5, {"landscape": 0.3, "growth": 0.2})
TRACKING = Tracking(
    (
        TrackedStep(0, {"loss": 2.0, "l_min": 1.0, "l_max": 3.0}),
        TrackedStep(50, {"loss": math.nan, "l_min": -math.inf, "l_max": math.inf}),
        TrackedStep(100, {"loss": 1.0, "growth/rate": 1.5}),
    ),
    COST,
)


def test_series_leave_out_steps_without_the_number():
    assert TRACKING.series("growth/rate") == Series((100,), (1.5,))
    assert TRACKING.series("loss").steps == (0, 50, 100)


def test_bands_keep_what_is_not_finite():
    assert TRACKING.band("l") == Band((0, 50), (1.0, -math.inf), (3.0, math.inf))


def test_names_in_order_of_appearance():
    assert TRACKING.names == ("loss", "l_min", "l_max", "growth/rate")


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(KeyError, match=r"nothing is named 'beta'; there are loss, l_min"):
        TRACKING.series("beta")


def test_costs():
    assert COST.percent == 5
    assert COST.seconds_per_step == 0.05
    assert COST.seconds_per_sample == 0.25
    assert COST.steps_per_sample == 5


@pytest.mark.parametrize(
    "record", [TRACKING, COST, LayerActivations("fc", "Linear", 8, 4, 0.0, 1.0, 0.25)]
)
def test_json_and_back(record):
    text = json.dumps(to_plain(record), allow_nan=False)
    again = from_plain(type(record), json.loads(text))
    assert to_plain(again) == to_plain(record)
