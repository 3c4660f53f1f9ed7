"""Second-order pooling in words, on the terminal and on the page."""

import dataclasses
import math
from functools import partial

from equipoise.diagnosis.second_order.record import MatrixSpectrum, SecondOrderPooling
from equipoise.records import Estimate
from equipoise.report.checkup.page import render_checkup
from equipoise.report.checkup.terminal.overview import print_checkup
from equipoise.report.checkup.words.second_order import spectrum_rows
from support.console import printed
from support.report_examples import interrupted_checkup

MEASURED = SecondOrderPooling(
    layer="head.pooling",
    kind="RUNPool",
    samples=16,
    positions=49,
    channels=32,
    before=MatrixSpectrum((0.7, 0.1, 0.05), 1234.0, 31.0),
    after=MatrixSpectrum((0.3, 0.21, 0.1), 99.0, 31.0),
    direction_share=0.69,
    eigen_residual=0.02,
    shrinks=True,
    cost=Estimate(0.1234, 0.01, "CPU time, 7 turns"),
)
TWICE = dataclasses.replace(
    MEASURED, layer="<twice>", before=None, after=None, cost=None, reason="it ran 2 times"
)


def reports(*layers):
    """What the terminal and the page show of these layers."""
    checkup = dataclasses.replace(interrupted_checkup(), second_order=layers)
    return printed(partial(print_checkup, full=True), checkup), render_checkup(checkup)


def test_both_reports_say_what_normalisation_did():
    for text in reports(MEASURED):
        assert "Spectra of second-order pooling" in text
        for number in ("0.70, 0.10", "0.30, 0.21", "1234", "99", "31/32", "0.69 (0.020)"):
            assert number in text
        assert "12.3 %" in text
        assert "shrunk" in text


def test_without_such_a_layer_both_are_silent():
    for text in reports():
        assert "Spectra of second-order pooling" not in text


def test_what_was_not_measured_has_a_reason():
    terminal, page = reports(MEASURED, TWICE)
    assert "<twice>: it ran 2 times" in terminal
    assert "&lt;twice&gt;</span>: it ran 2 times" in page
    assert len(spectrum_rows([MEASURED, TWICE])) == 2


def test_a_layer_that_shrinks_nothing_does_not_claim_to():
    plain = dataclasses.replace(MEASURED, shrinks=False)
    terminal, _ = reports(plain)
    assert "shrunk" not in terminal


def test_a_zero_matrix_has_no_condition_number():
    empty = MatrixSpectrum((math.nan, math.nan), math.nan, 0.0)
    before, _ = spectrum_rows([dataclasses.replace(MEASURED, before=empty)])
    assert (before.condition, before.rank) == ("–", "0/32")
