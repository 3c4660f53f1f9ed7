"""Findings about width follow from records written by hand."""

import dataclasses
import math

import pytest

from equipoise.diagnosis.width.findings import conclude_coordinate_check
from equipoise.diagnosis.width.record import CoordinateCheck, LayerOverWidth, WidthTrend
from equipoise.records import Estimate
from equipoise.records.codec import from_plain, to_plain


def trend(name, slope=0.0):
    estimate = Estimate(slope, 0.02, "written by hand")
    return WidthTrend((1.0, 1.0), estimate, (1.0, 1.0), slope, name)


STABLE = trend("stable")
LAYER = LayerOverWidth("up", "Linear", False, STABLE, STABLE, STABLE, STABLE)
HEAD = dataclasses.replace(LAYER, layer="head", is_last=True)
RECORD = CoordinateCheck("Adam", (64, 128), 3, 2, (LAYER, HEAD), True)


def concluded(transfers=False, **changes):
    layers = (dataclasses.replace(LAYER, **changes), HEAD)
    return conclude_coordinate_check(
        dataclasses.replace(RECORD, layers=layers, transfers=transfers)
    )


def test_no_record_has_no_findings():
    assert conclude_coordinate_check(None) == []


def test_rates_that_carry_over_are_good():
    (finding,) = conclude_coordinate_check(RECORD)
    assert finding.severity == "good"


def test_growing_changes_name_the_layer_and_its_rate():
    (finding,) = concluded(own_change=trend("grows", 0.98), rate_exponent=-1.0)
    assert finding.severity == "warning"
    assert "up: ∝ width^(0.98 ± 0.02)" in finding.detail
    assert "get_submodule('up').parameters(), 'lr': lr * (width / 64) ** -1}" in finding.remedy


def test_vanishing_changes_get_a_larger_rate():
    (finding,) = concluded(own_change=trend("vanishes", -0.5), rate_exponent=0.5)
    assert "learn less" in finding.title
    assert "** 0.5" in finding.remedy


@pytest.mark.parametrize(("name", "slope"), [("grows", 0.5), ("vanishes", -0.5)])
def test_activations_that_depend_on_width(name, slope):
    (finding,) = concluded(output=trend(name, slope))
    assert "before training" in finding.title
    assert f"width ** {-slope:g}" in finding.remedy


def test_changes_that_only_add_up():
    (finding,) = concluded(change=trend("grows", 0.5))
    assert "no layer's own change" in finding.title


def test_a_divergence_is_critical():
    lost = dataclasses.replace(trend("not finite", math.nan), sizes=(1.0, math.inf))
    (finding,) = concluded(change=lost)
    assert (finding.severity, "at width 128" in finding.detail) == ("critical", True)


def test_what_is_undecided_asks_for_more():
    (finding,) = concluded(transfers=None, change=trend("undecided", 0.25))
    assert (finding.severity, "seeds=8" in finding.remedy) == ("note", True)


def test_the_record_is_stored_and_read():
    assert from_plain(CoordinateCheck, to_plain(RECORD)) == RECORD
