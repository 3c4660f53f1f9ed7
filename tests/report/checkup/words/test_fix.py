"""Remedies in words: every arm beside the model as it is."""

import dataclasses

import pytest

from equipoise.records import Estimate
from equipoise.report.checkup.page import render_checkup
from equipoise.report.checkup.terminal.overview import print_checkup
from equipoise.report.checkup.words.fix import answer, further, rows
from support.console import printed
from support.report_examples import fixing, page_of


def test_the_answer_names_the_remedy_and_both_losses():
    assert answer(fixing()) == (
        "Start every norm's shift β at 0.5: loss in evaluation mode on held-out data "
        "0.26 ± 0.02 instead of 0.66 ± 0.02."
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "No remedy trains this model measurably better."),
        ({"gains": ()}, "No remedy could be judged."),
        ({"gains": (), "interrupted": True}, "Stopped before remedies could be judged."),
    ],
)
def test_that_none_helps_is_an_answer(changes, words):
    assert answer(dataclasses.replace(fixing(), best=None, **changes)) == words


def test_a_choice_that_may_be_chance_says_so():
    gains = tuple(dataclasses.replace(gain, helps=False) for gain in fixing().gains)
    unsure = dataclasses.replace(fixing(), gains=gains)
    assert answer(unsure).endswith("instead of 0.66 ± 0.02. Over so few seeds that may be chance.")
    assert rows(unsure)[1].verdict == "ahead"


def test_what_is_ahead_by_chance_alone_is_named():
    """Two seeds can hardly tell: the picture shows a loss that falls to half."""
    gains = tuple(dataclasses.replace(gain, helps=False, ahead=True) for gain in fixing().gains)
    unsure = dataclasses.replace(fixing(), best=None, gains=gains, seeds=2)
    assert answer(unsure) == (
        "No remedy is better beyond chance over 2 seeds; ahead is start every norm's shift β at "
        "0.5: loss in evaluation mode on held-out data 0.26 ± 0.02 instead of 0.66 ± 0.02."
    )


def test_a_large_gap_is_written_like_other_numbers():
    first, *rest = fixing().arms
    far = dataclasses.replace(first, held_out=Estimate(7e9, 7e9, "measured"))
    row, *_ = rows(dataclasses.replace(fixing(), arms=(far, *rest)))
    assert row.gap == "+7×10⁹"
    near = dataclasses.replace(first, held_out=Estimate(first.loss.value - 0.5, 0.1, "measured"))
    row, *_ = rows(dataclasses.replace(fixing(), arms=(near, *rest)))
    assert row.gap == "−0.50"


def test_every_arm_has_a_row_but_those_that_were_not_trained():
    plain, shift, groups = rows(fixing())
    assert (plain.verdict, shift.verdict, groups.verdict) == ("–", "best", "not better")
    assert (shift.gap, shift.accuracy, shift.predicted) == ("+0.10", "90 %", "80 %")
    assert groups.loss == "3 of 3 diverged"


def test_a_rate_at_the_edge_is_marked():
    first, *rest = fixing().arms
    at_edge = dataclasses.replace(first, at_edge=True, rate=0.1)
    row, *_ = rows(dataclasses.replace(fixing(), arms=(at_edge, *rest)))
    assert row.rate == "≥ 0.1"


def test_what_was_not_trained_stands_with_what_theory_says():
    assert further(fixing()) == ["batches of 256 samples (99 %)"]


def test_the_answer_comes_right_after_the_verdict(deep):
    text = printed(print_checkup, deep)
    assert text.index("What to change") < text.index(deep.headlines[0].title)
    for words in ("Start every norm's shift", "█", "best", "not better", "init.constant_"):
        assert words in text
    page = page_of("deep")
    assert page.index('id="fix"') < page.index('id="findings"')
    assert 'id="fix-' in page


def test_an_arm_that_was_not_trained_has_a_reason(deep):
    assert "Tanh: there is no <layer>" in printed(print_checkup, deep)
    assert "Tanh: there is no &lt;layer&gt;" in render_checkup(deep)


def test_the_page_has_the_section_only_with_a_fix():
    assert "What to change" in page_of("deep")
    assert "What to change" not in page_of("interrupted")
