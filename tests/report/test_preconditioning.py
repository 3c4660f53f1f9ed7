"""Preconditioning and its trial in words: promises beside gains, and honest comparisons."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from equipoise.records import from_plain, to_plain
from equipoise.report.checkup.figures.trial import trial_figure
from equipoise.report.checkup.page import render_checkup
from equipoise.report.checkup.terminal.overview import print_checkup
from equipoise.report.checkup.words import preconditioning as digest
from equipoise.report.checkup.words import trial as trial_words
from support.report_examples import coupled, deep_checkup, preconditioned, trial


def printed(checkup, width=80):
    console = Console(file=io.StringIO(), width=width)
    print_checkup(checkup, console)
    return console.file.getvalue()


def test_layers_with_a_measured_hessian_come_first():
    layers = [coupled("a"), preconditioned("b"), coupled("c")]
    assert [layer.layer for layer in digest.largest_gain_first(layers)] == ["b", "a", "c"]


def test_the_gain_is_the_hessians_where_it_is_known():
    assert preconditioned("a").gain == pytest.approx(8.2e4 / 3607.8)
    assert coupled("a").gain == pytest.approx((31.1 / 31.2) ** 2)


def test_every_arm_is_compared_with_the_first():
    plain, standardised, bnp, failed = trial_words.rows(trial())
    assert (plain.after, plain.step, plain.verdict) == ("200 (100 %)", "×1.00", "–")
    assert (standardised.verdict, bnp.verdict) == ("not better", "better")
    assert bnp.after == "64 (44 %)"
    assert failed.loss == "3 of 3 diverged"


def test_a_rate_at_the_edge_is_marked():
    first, *rest = trial().arms
    at_edge = dataclasses.replace(first, at_edge=True, rate=0.1)
    row, *_ = trial_words.rows(dataclasses.replace(trial(), arms=(at_edge, *rest)))
    assert row.rate == "≥ 0.1"


def test_a_terminal_of_80_columns_shows_every_word():
    text = printed(deep_checkup())
    for words in ("standardised", "not better", "7.1×10⁷", "64/257", "catches up"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_page_holds_figure_and_tables():
    page = render_checkup(deep_checkup())
    assert "Trained side by side" in page
    assert 'id="trial-' in page
    without = dataclasses.replace(deep_checkup(), trial=None, preconditioning=())
    assert "side by side" not in render_checkup(without)


def test_variants_without_a_curve_are_named_as_not_drawn():
    assert "Not drawn: 1 variant that diverged or was not tried." in trial_figure(trial())


def test_records_survive_being_stored():
    checkup = deep_checkup()
    assert from_plain(type(checkup), to_plain(checkup)).trial == checkup.trial


def test_reports_of_the_release_before_can_still_be_read():
    plain = to_plain(deep_checkup())
    del plain["trial"], plain["preconditioning"]
    assert from_plain(type(deep_checkup()), plain).trial is None
