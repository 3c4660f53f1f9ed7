"""A probe in one line: how far the gradient is reliable."""

import dataclasses
import math

import pytest

from equipoise.report.probe.page import render_probe
from equipoise.report.probe.terminal import print_probe
from equipoise.report.probe.words import sentence
from support.console import printed
from support.probe_reports import interrupted, landscape, whole


@pytest.mark.parametrize(
    ("curvature", "reach"), [(6.0, "1.7"), (100.0, "less than 0.5"), (0.1, "more than 4")]
)
def test_outside_of_the_points_it_is_a_bound(curvature, reach):
    found = dataclasses.replace(whole(), landscape=landscape(curvature))
    assert sentence(found) == f"At initialisation the gradient is reliable for {reach} steps"


@pytest.mark.parametrize(
    ("norm", "words"),
    [(0.0, "The gradient is zero"), (math.inf, "The gradient is not finite")],
)
def test_without_a_gradient_it_says_so(norm, words):
    found = dataclasses.replace(interrupted(), landscape=landscape(norm=norm))
    assert sentence(found) == words
    assert words in printed(print_probe, found)
    assert words in render_probe(found)
