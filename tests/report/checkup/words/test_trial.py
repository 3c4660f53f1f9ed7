"""A side-by-side training in words: every variant compared with the unchanged model."""

import dataclasses

from equipoise.report.checkup.page import render_checkup
from equipoise.report.checkup.terminal.overview import print_checkup
from equipoise.report.checkup.words.trial import rows
from support.console import printed
from support.report_examples import page_of, trial


def test_every_arm_is_compared_with_the_first():
    plain, standardised, bnp, failed = rows(trial())
    assert (plain.after, plain.step, plain.verdict) == ("200 (100 %)", "×1.00", "–")
    assert (standardised.verdict, bnp.verdict) == ("not better", "better")
    assert bnp.after == "64 (44 %)"
    assert failed.loss == "3 of 3 diverged"


def test_a_rate_at_the_edge_is_marked():
    first, *rest = trial().arms
    at_edge = dataclasses.replace(first, at_edge=True, rate=0.1)
    row, *_ = rows(dataclasses.replace(trial(), arms=(at_edge, *rest)))
    assert row.rate == "≥ 0.1"


def test_a_terminal_of_80_columns_shows_every_word(deep):
    text = printed(print_checkup, deep)
    for words in ("standardised", "not better", "catches up", "64 (44 %)"):
        assert words in text


def test_a_variant_that_was_not_tried_has_a_reason(interrupted):
    first, *rest = trial().arms
    arms = (first, dataclasses.replace(rest[0], reason="there is no <layer>"))
    checkup = dataclasses.replace(interrupted, trial=dataclasses.replace(trial(), arms=arms))
    assert "Standardised inputs: not tried, there is no <layer>" in printed(print_checkup, checkup)
    page = render_checkup(checkup)
    assert "Standardised inputs: not tried, there is no &lt;layer&gt;" in page


def test_the_page_has_the_section_only_with_a_trial():
    assert "Trained side by side" in page_of("deep")
    assert 'id="trial-' in page_of("deep")
    assert "side by side" not in page_of("interrupted")
