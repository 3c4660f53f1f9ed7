"""A sample of any number of layers becomes at most eight numbers."""

import math

import pytest

from equipoise.probes.tracker.headline import headline


def sample(**layers):
    """Numbers of layers given as (gradient, ratio, dead)."""
    values = {"gradients/norm": 3.0, "updates/ratio": 0.1}
    for name, (gradient, ratio, dead) in layers.items():
        values[f"gradients/{name}/norm"] = gradient
        values[f"updates/{name}/ratio"] = ratio
        values[f"activations/{name}/dead"] = dead
    return values


@pytest.mark.parametrize("depth", [1, 3, 200])
def test_few_numbers_at_any_depth(depth):
    layers = {f"blocks.{i}": (1.0, 0.1, 0.0) for i in range(depth)}
    values = sample(**layers) | {"growth/rate": 1.5, "landscape/beta": 2.0, "ics/cosine": 0.5}
    assert len(headline(values)) <= 8


def test_spread_is_in_powers_of_ten():
    assert headline(sample(a=(100.0, 0.1, 0), b=(1.0, 0.1, 0)))["gradient_spread"] == 1.0


def test_the_worst_layers_are_found_and_a_silent_one_counts():
    found = headline(sample(a=(1.0, 0.5, 0), b=(0.0, 0.0, 0), c=(1.0, math.nan, 0)))
    assert (found["update_ratio_max"], found["update_ratio_min"]) == (0.5, 0.0)
    assert found["gradient_spread"] == 0.0


def test_constant_pixels_of_the_data_are_not_dead_units():
    found = headline(sample(first=(1.0, 0.1, 0.4), second=(1.0, 0.1, 0.1), third=(1.0, 0.1, 0.3)))
    assert found["dead_units"] == pytest.approx(0.2)


def test_unknown_numbers_are_left_out():
    assert headline({}) == {}
    assert "dead_units" not in headline(sample(a=(1, 0.1, math.nan), b=(1, 0.1, math.nan)))
