"""The user's optimiser in words, on the terminal and on the page."""

import dataclasses
import math
from functools import partial

from equipoise.diagnosis.optimizer.record import OptimizerCheck, RateTrial
from equipoise.report.checkup.page import render_checkup
from equipoise.report.checkup.terminal.overview import print_checkup
from equipoise.report.checkup.words.optimizer import trial_rows
from support.console import printed
from support.report_examples import interrupted_checkup

TRIED = OptimizerCheck(
    optimizer="SGD",
    rate=10.0,
    parameters=("weight",),
    left_out=(),
    held=1,
    climbs=False,
    half_life=math.inf,
    trials=(
        RateTrial(rate=10.0, steps=12, before=2.3, after=math.inf, everywhere=False),
        RateTrial(rate=0.1, steps=12, before=2.3, after=1.234, everywhere=True),
    ),
    outcome="too large",
)
NOT_TRIED = dataclasses.replace(TRIED, trials=(), outcome="not tried", reason="it maximises")


def reports(found):
    """What the terminal and the page show of it."""
    checkup = dataclasses.replace(interrupted_checkup(), optimizer=found)
    return printed(partial(print_checkup, full=True), checkup), render_checkup(checkup)


def test_both_reports_tell_what_steps_did_by_rising_rate():
    rows = [(row.rate, row.after, row.lowered) for row in trial_rows(TRIED)]
    assert rows == [("0.1", "1.234", "on every batch"), ("10, yours", "∞", "no")]
    for text in reports(TRIED):
        assert text.index("1.234") < text.index("10, yours")


def test_both_reports_tell_why_none_were_taken():
    for text in reports(NOT_TRIED):
        assert "Steps of SGD were not tried: it maximises." in " ".join(text.split())


def test_without_an_optimiser_there_is_no_section():
    for text in reports(None):
        assert "Steps of" not in text
