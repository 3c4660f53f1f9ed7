"""Second-order pooling in both reports."""

import dataclasses
import io
import math

import pytest
from rich.console import Console

from equipoise.diagnosis.second_order.record import MatrixSpectrum, SecondOrderPooling
from equipoise.records import Estimate
from equipoise.report.checkup.page import render_checkup
from equipoise.report.checkup.terminal.overview import print_checkup
from equipoise.report.checkup.words import second_order as digest
from support.report_examples import deep_checkup

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


def printed(*layers):
    buffer = io.StringIO()
    checkup = dataclasses.replace(deep_checkup(), second_order=layers)
    print_checkup(checkup, Console(file=buffer, width=80))
    return buffer.getvalue(), render_checkup(checkup)


@pytest.mark.parametrize("text", printed(MEASURED), ids=["terminal", "page"])
class TestBothReports:
    def test_say_what_normalisation_did(self, text):
        for number in ("0.70, 0.10", "0.30, 0.21", "1234", "99", "31/32", "0.69 (0.020)"):
            assert number in text
        assert "12.3 %" in text
        assert "shrunk" in text

    def test_say_nothing_without_such_a_layer(self, text):
        assert "Spectra of second-order pooling" in text
        for other in printed():
            assert "Spectra of second-order pooling" not in other


def test_what_was_not_measured_has_a_reason():
    terminal, page = printed(MEASURED, TWICE)
    assert "<twice>: it ran 2 times" in terminal
    assert "&lt;twice&gt;</span>: it ran 2 times" in page
    assert len(digest.spectrum_rows([MEASURED, TWICE])) == 2


def test_a_layer_that_shrinks_nothing_does_not_claim_to():
    plain = dataclasses.replace(MEASURED, shrinks=False)
    terminal, _ = printed(plain)
    assert "shrunk" not in terminal


def test_a_zero_matrix_has_no_condition_number():
    empty = MatrixSpectrum((math.nan, math.nan), math.nan, 0.0)
    before, _ = digest.spectrum_rows([dataclasses.replace(MEASURED, before=empty)])
    assert (before.condition, before.rank) == ("–", "0/32")
