"""Smoothness in words: what was measured, on whose step, over how many seeds."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import pytest

from equipoise.records import Estimate
from equipoise.report.checkup.page import render_checkup
from equipoise.report.checkup.terminal.overview import print_checkup
from equipoise.report.checkup.words import smoothness as words
from support.console import printed
from support.report_examples import (
    interrupted_checkup,
    page_of,
    smooth_arm,
    smooth_start,
    smoothness,
    wild_arm,
)


def checkup_with(found):
    """Nothing but this smoothness, so that its page is quick to render."""
    return dataclasses.replace(interrupted_checkup(), smoothness=found)


class TestWords:
    def test_a_row_is_the_median_over_seeds(self):
        """The seeds have β 7.7, 8.4 and 9.1, and so the gradient is reliable for 1/β."""
        row = words.measurement_rows(smooth_arm("unchanged", 7.0))[1]
        assert (row.step, row.beta, row.reliable, row.shift) == ("15", "8.4", "1.2", "0.45")

    def test_the_ends_of_a_range_can_be_told_apart(self):
        arm = smooth_arm("unchanged", 7.0)
        run = arm.runs[0]
        narrow = dataclasses.replace(run.measurements[0], losses=(1.091, 1.104), loss=1.1)
        runs = (dataclasses.replace(run, measurements=(narrow,)),)
        row, *_ = words.measurement_rows(dataclasses.replace(arm, runs=runs))
        assert row.losses == "1.09 … 1.10"

    def test_a_step_outside_of_the_points_is_a_bound(self):
        below, above = (words.measurement_rows(smooth_arm("x", beta))[0] for beta in (70.0, 0.7))
        assert (below.reliable, above.reliable) == ("< 0.5", "> 4")

    def test_arms_say_their_rate_and_their_end(self):
        found = smoothness()
        assert words.arm_line(found.arms[0], found) == "learning rate 0.1, final loss 0.31 ± 0.02"
        wild = dataclasses.replace(found, arms=(wild_arm("x"),))
        assert words.arm_line(wild.arms[0], wild) == (
            "diverged at every learning rate down to 1×10⁻⁹, 1 of 3 seeds diverged"
        )
        single = dataclasses.replace(
            found.arms[0], at_edge=True, rate=0.3, loss=Estimate(0.3, math.nan, "")
        )
        assert words.arm_line(single, found) == "learning rate ≥ 0.3, final loss 0.300"

    def test_seeds_and_optimiser_are_stated(self):
        assert "medians over 3 seeds" in words.conditions(smoothness())
        one = dataclasses.replace(smoothness(), seeds=1, optimizer="adam")
        text = words.conditions(one)
        assert "one seed" in text
        assert "60 steps of Adam" in text
        assert "along the optimiser's own step" in text
        assert "one seed, one batch" in words.conditions(smooth_start())

    def test_a_given_rate_is_not_called_best(self):
        arms = tuple(dataclasses.replace(arm, rates=()) for arm in smoothness().arms)
        assert "and the given rate" in words.conditions(
            dataclasses.replace(smoothness(), arms=arms)
        )

    def test_the_start(self):
        plain, without = words.start_rows(smooth_start())
        assert (plain.reliable, plain.change, plain.gradient) == ("3×10⁻⁴", "130 %", "42")
        assert without.reliable == "> 1"

    def test_where_nothing_could_be_measured(self):
        arms = tuple(
            dataclasses.replace(a, runs=(), reason="it failed") for a in smooth_start().arms
        )
        nothing = dataclasses.replace(smooth_start(), arms=arms)
        assert words.conditions(nothing) == "Nothing could be measured."
        checkup = checkup_with(nothing)
        assert "Unchanged: not tried, it failed" in printed(
            partial(print_checkup, full=True), checkup
        )
        assert "it failed" in render_checkup(checkup)


FOUND = {"training": smoothness(), "start": smooth_start()}


class TestTheTerminal:
    @pytest.mark.parametrize("found", FOUND.values(), ids=FOUND)
    def test_80_columns_hold_every_word(self, found):
        text = printed(partial(print_checkup, full=True), checkup_with(found))
        assert max(map(len, text.splitlines())) <= 80
        assert "How far the gradient is reliable" in text
        assert "without normalisers" in text.lower()

    def test_the_training(self):
        text = printed(partial(print_checkup, full=True), checkup_with(smoothness()))
        for part in (
            "Unchanged: learning rate 0.1, final loss",
            "along the step",
            "shift",
            "2.30",
            "not tried, the model cannot be changed",
        ):
            assert part in text

    def test_the_start(self):
        text = printed(partial(print_checkup, full=True), checkup_with(smooth_start()))
        assert "change at 0.1" in text
        assert "3×10⁻⁴" in text


class TestThePage:
    @pytest.mark.parametrize("found", FOUND.values(), ids=FOUND)
    def test_it_holds_a_figure_and_numbers(self, found):
        page = render_checkup(checkup_with(found))
        assert page.count("<svg") == 1
        assert "How far the gradient is reliable" in page
        assert "without normalisers" in page.lower()

    def test_without_a_record_there_is_no_section(self):
        assert "gradient is reliable" not in page_of("interrupted")
