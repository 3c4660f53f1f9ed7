import dataclasses
import functools
import math
import re
import xml.etree.ElementTree as ET

import matplotlib as mpl
import pytest

from equipoise.probes.record import GradientGrowth
from equipoise.records import Estimate
from equipoise.report.checkup.figures.layers import (
    conditioning_figure,
    forward_figure,
    gradient_figure,
)
from equipoise.report.checkup.figures.profile import profile_figure
from support.report_examples import CHECKUPS, HOSTILE_NAMES

WORDS = re.compile(r">([^<>]+)</text>")


def every_figure(checkup):
    return [
        gradient_figure(checkup.growth, checkup.predictions),
        profile_figure(checkup.sites),
        forward_figure(checkup.growth),
        conditioning_figure(checkup.conditioning),
    ]


@functools.cache
def drawn(name):
    """The figures of one of the example check-ups, drawn once."""
    return every_figure(CHECKUPS[name]())


@pytest.fixture(params=["deep", "hostile"])
def figures(request):
    return drawn(request.param)


class TestSharingAPage:
    def test_well_formed(self, figures):
        for figure in figures:
            assert ET.fromstring(figure).tag.endswith("svg")

    def test_identifiers_are_unique_across_figures(self, figures):
        ids = re.findall(r'\bid="([^"]+)"', "".join(figures))
        assert len(ids) == len(set(ids))

    def test_references_lead_to_identifiers(self, figures):
        for figure in figures:
            ids = set(re.findall(r'\bid="([^"]+)"', figure))
            assert set(re.findall(r'(?:href="|url\()#([^")]+)', figure)) <= ids

    def test_no_style_sheet_and_no_request_leaks(self, figures):
        for figure in figures:
            assert "<style" not in figure
            assert "<metadata" not in figure
            assert set(re.findall(r"https?://[^\"]+", figure)) <= {
                "http://www.w3.org/2000/svg",
                "http://www.w3.org/1999/xlink",
            }

    def test_every_colour_comes_from_the_page(self, figures):
        for figure in figures:
            fallbacks_removed = re.sub(r"var\(--figure-\w+, #\w{6}\)", "", figure)
            assert not re.search(r"#[0-9a-f]{6}\b(?![^<]*href)", fallbacks_removed)

    def test_no_name_enters_a_figure(self):
        for figure in drawn("hostile"):
            assert not any(name in figure for name in HOSTILE_NAMES)
            assert "alert" not in figure


class TestDeterminism:
    def test_two_drawings_are_equal(self, hostile):
        assert every_figure(hostile) == drawn("hostile")

    def test_the_users_style_has_no_part_and_is_left_alone(self, deep):
        ordinary = drawn("deep")
        with mpl.rc_context({"axes.facecolor": "red", "lines.linewidth": 9, "axes.titlesize": 3}):
            before = dict(mpl.rcParams)
            assert every_figure(deep) == ordinary
            assert dict(mpl.rcParams) == before


class TestGradients:
    def test_prediction_is_drawn_only_where_there_is_one(self, deep):
        assert "predicted" in WORDS.findall(gradient_figure(deep.growth, deep.predictions))
        assert "predicted" not in WORDS.findall(gradient_figure(deep.growth))
        nothing = [None] * len(deep.growth.layers)
        assert gradient_figure(deep.growth, nothing) == gradient_figure(deep.growth)

    @pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, 1e300])
    def test_a_useless_prediction_is_left_out(self, deep, value):
        useless = [
            dataclasses.replace(one, gradient=Estimate(value, 0.0, "theory"))
            for one in deep.predictions
        ]
        assert "predicted" not in WORDS.findall(gradient_figure(deep.growth, useless))

    def test_what_has_no_logarithm_is_counted(self, deep, hostile):
        assert "Not drawn" not in gradient_figure(deep.growth)
        assert "Not drawn: 6 layers without a finite, positive gradient." in gradient_figure(
            hostile.growth
        )

    def test_ticks_of_a_narrow_range_differ(self, deep):
        """Five ticks of a network that is even all read 3×10⁻⁴."""
        even = tuple(
            dataclasses.replace(
                layer, gradient=Estimate(2.8e-4 * 1.01**i, 0.0, "measured"), weight_gradient=None
            )
            for i, layer in enumerate(deep.growth.layers[:13])
        )
        drawn = gradient_figure(dataclasses.replace(deep.growth, layers=even))
        ticks = [text for text in WORDS.findall(drawn) if "10⁻⁴" in text]
        assert len(ticks) > 2
        assert len(ticks) == len(set(ticks))

    def test_nothing_to_draw(self, deep):
        lost = Estimate(math.nan, math.nan, "measured")
        layers = tuple(
            dataclasses.replace(
                layer, gradient=lost, weight_gradient=None, second_moment=lost, correlation=lost
            )
            for layer in deep.growth.layers
        )
        growth = GradientGrowth(layers, None, None, 1, 1)
        assert "nothing to draw" in WORDS.findall(gradient_figure(growth))
        assert ET.fromstring(forward_figure(growth)) is not None

    def test_a_single_layer(self, deep):
        growth = GradientGrowth(deep.growth.layers[:1], None, None, 1, 1)
        assert "1" in WORDS.findall(gradient_figure(growth))
        assert ET.fromstring(forward_figure(growth)) is not None


class TestProfile:
    def test_kinds_have_their_own_points(self, deep):
        words = WORDS.findall(profile_figure(deep.sites))
        assert [w for w in words if w.isalpha()][-4:] == [
            "weights", "normalisers", "others", "predicted",
        ]  # fmt: skip

    def test_theory_is_cut_where_nothing_is_predicted(self, deep):
        cut = [dataclasses.replace(site, gradient=None) for site in deep.sites]
        assert "predicted" not in WORDS.findall(profile_figure(cut))

    def test_what_has_no_logarithm_is_counted(self, hostile):
        assert "Not drawn: 10 operations" in profile_figure(hostile.sites)


def test_conditioning_counts_infinite_values(hostile):
    assert "Not drawn: 23 values without a finite logarithm." in conditioning_figure(
        hostile.conditioning
    )
