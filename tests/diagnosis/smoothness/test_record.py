"""How far a gradient is reliable, in closed form and at the edges of floats."""

from __future__ import annotations

import math

import pytest

from equipoise.diagnosis.smoothness.record import Smoothness, SmoothnessMeasurement, reliable_step
from equipoise.records import from_plain, to_plain

STEPS = (0.5, 1.0, 2.0, 4.0)


@pytest.mark.parametrize("curvature", [0.3, 0.5, 1.0, 1.7])
def test_on_a_parabola_it_is_one_over_the_curvature(curvature):
    """∇L(θ − ηg) − g = −ηhg, whose length is ‖g‖ at η = 1/h."""
    changes = [eta * curvature * 3.0 for eta in STEPS]
    assert reliable_step(STEPS, changes, 3.0) == pytest.approx(1 / curvature)


def test_the_first_crossing_counts():
    assert reliable_step(STEPS, (1.0, 3.0, 0.0, 0.0), 2.0) == 0.75


def test_beyond_the_points_and_before_them():
    assert reliable_step(STEPS, (0.1, 0.2, 0.3, 0.4), 1.0) == math.inf
    assert reliable_step(STEPS, (1.0, 2.0, 3.0, 4.0), 1.0) == STEPS[0]


@pytest.mark.parametrize("wild", [math.inf, math.nan])
def test_an_overflow_counts_as_a_large_change(wild):
    assert reliable_step(STEPS, (0.1, wild, wild, wild), 1.0) == 0.5
    assert reliable_step(STEPS, (wild,) * 4, 1.0) == 0.5


@pytest.mark.parametrize("length", [0.0, math.inf, math.nan])
def test_without_a_gradient_there_is_no_reliable_step(length):
    assert math.isnan(reliable_step(STEPS, (0.0,) * 4, length))


def test_bands():
    measurement = SmoothnessMeasurement(
        0, 1.0, 2.0, STEPS, (3.0, 1.0, 2.0, 5.0), (1.0, 4.0, 2.0, 3.0), 1.0
    )
    assert measurement.loss_band == (1.0, 5.0)
    assert measurement.gradient_change_band == (1.0, 4.0)
    broken = SmoothnessMeasurement(0, 1.0, 2.0, STEPS, (3.0, math.nan, 2.0, 5.0), (1.0,) * 4, 1.0)
    assert all(map(math.isnan, broken.loss_band))


def test_a_record_survives_being_stored():
    empty = Smoothness("sgd", 60, 3, ())
    assert from_plain(Smoothness, to_plain(empty)) == empty
