"""Smoothness in words and pictures: what was measured, on whose step, over how many seeds."""

from __future__ import annotations

import dataclasses
import io
import math

import pytest
from rich.console import Console

from equipoise.records import Estimate, from_plain, to_plain
from equipoise.report.checkup.figures.smoothness import along_figure, smoothness_figure
from equipoise.report.checkup.page import render_checkup
from equipoise.report.checkup.terminal.overview import print_checkup
from equipoise.report.checkup.words import smoothness as digest
from support.report_examples import deep_checkup, smooth_arm, smooth_start, smoothness, wild_arm


def printed(checkup, width=80):
    console = Console(file=io.StringIO(), width=width)
    print_checkup(checkup, console)
    return console.file.getvalue()


def at_start():
    return dataclasses.replace(deep_checkup(), smoothness=smooth_start())


class TestWords:
    def test_a_row_is_the_median_over_seeds(self):
        """The seeds have β 7.7, 8.4 and 9.1, and so the gradient is reliable for 1/β."""
        row = digest.measurement_rows(smooth_arm("unchanged", 7.0))[1]
        assert (row.step, row.beta, row.reliable, row.shift) == ("15", "8.4", "1.2", "0.45")

    def test_a_step_outside_of_the_points_is_a_bound(self):
        below, above = (digest.measurement_rows(smooth_arm("x", beta))[0] for beta in (70.0, 0.7))
        assert (below.reliable, above.reliable) == ("< 0.5", "> 4")

    def test_arms_say_their_rate_and_their_end(self):
        found = smoothness()
        assert digest.arm_line(found.arms[0], found) == "learning rate 0.1, final loss 0.31 ± 0.02"
        wild = dataclasses.replace(found, arms=(wild_arm("x"),))
        assert digest.arm_line(wild.arms[0], wild) == (
            "diverged at every learning rate down to 1×10⁻⁹, 1 of 3 seeds diverged"
        )
        single = dataclasses.replace(
            found.arms[0], at_edge=True, rate=0.3, loss=Estimate(0.3, math.nan, "")
        )
        assert digest.arm_line(single, found) == "learning rate ≥ 0.3, final loss 0.300"

    def test_seeds_and_optimiser_are_stated(self):
        assert "medians over 3 seeds" in digest.conditions(smoothness())
        one = dataclasses.replace(smoothness(), seeds=1, optimizer="adam")
        words = digest.conditions(one)
        assert "one seed" in words
        assert "60 steps of Adam" in words
        assert "along the optimiser's own step" in words
        assert "one seed, one batch" in digest.conditions(smooth_start())

    def test_a_given_rate_is_not_called_best(self):
        arms = tuple(dataclasses.replace(arm, rates=()) for arm in smoothness().arms)
        assert "and the given rate" in digest.conditions(
            dataclasses.replace(smoothness(), arms=arms)
        )

    def test_the_start(self):
        plain, without = digest.start_rows(smooth_start())
        assert (plain.reliable, plain.change, plain.gradient) == ("3×10⁻⁴", "130 %", "42")
        assert without.reliable == "> 1"

    def test_where_nothing_could_be_measured(self):
        arms = tuple(
            dataclasses.replace(a, runs=(), reason="it failed") for a in smooth_start().arms
        )
        nothing = dataclasses.replace(smooth_start(), arms=arms)
        assert digest.conditions(nothing) == "Nothing could be measured."
        checkup = dataclasses.replace(deep_checkup(), smoothness=nothing)
        assert "Unchanged: not tried, it failed" in printed(checkup)
        assert "it failed" in render_checkup(checkup)


class TestTheTerminal:
    @pytest.mark.parametrize("checkup", [deep_checkup(), at_start()], ids=["training", "start"])
    def test_80_columns_hold_every_word(self, checkup):
        text = printed(checkup)
        assert max(map(len, text.splitlines())) <= 80
        assert "How far the gradient is reliable" in text
        assert "without normalisers" in text.lower()

    def test_the_training(self):
        text = printed(deep_checkup())
        for words in (
            "Unchanged: learning rate 0.1, final loss",
            "along the step",
            "shift",
            "2.30",
        ):
            assert words in text
        assert "not tried, the model cannot be changed" in text

    def test_the_start(self):
        text = printed(at_start())
        assert "at 0.1" in text
        assert "3×10⁻⁴" in text


class TestThePage:
    @pytest.mark.parametrize("checkup", [deep_checkup(), at_start()], ids=["training", "start"])
    def test_it_holds_a_figure_and_numbers(self, checkup):
        page = render_checkup(checkup)
        assert page.count("<svg") == 5
        assert "How far the gradient is reliable" in page
        assert "without normalisers" in page

    def test_without_a_record_there_is_no_section(self):
        page = render_checkup(dataclasses.replace(deep_checkup(), smoothness=None))
        assert "gradient is reliable" not in page


class TestFigures:
    def test_every_arm_is_in_the_legend_once(self):
        figure = smoothness_figure(smoothness())
        for name in ("unchanged", "without normalisers"):
            assert figure.count(f">{name}</text>") == 1
        assert "loss along" in figure
        assert "step of training" in figure

    def test_what_cannot_be_drawn_is_counted(self):
        wild = dataclasses.replace(smoothness(), arms=(wild_arm("wild"),))
        assert "Not drawn: 4 losses that the axis cannot show." in smoothness_figure(wild)

    def test_losses_below_zero_have_a_linear_scale(self):
        measurement = smooth_start().arms[0].runs[0].measurements[0]
        below = dataclasses.replace(
            measurement, losses=tuple(loss - 2.3 for loss in measurement.losses)
        )
        assert "Not drawn" not in along_figure({"x": below})

    def test_one_curve_needs_no_legend(self):
        measurement = smooth_start().arms[0].runs[0].measurements[0]
        assert ">x</text>" not in along_figure({"x": measurement})
        assert ">x</text>" in along_figure({"x": measurement, "y": measurement})

    def test_two_drawings_are_equal(self):
        assert smoothness_figure(smoothness()) == smoothness_figure(smoothness())


def test_records_survive_being_stored():
    checkup = deep_checkup()
    assert from_plain(type(checkup), to_plain(checkup)).smoothness == checkup.smoothness


def test_reports_of_the_release_before_can_still_be_read():
    plain = to_plain(deep_checkup())
    del plain["smoothness"]
    assert from_plain(type(deep_checkup()), plain).smoothness is None
