"""Preconditioning in words: layers whose Hessian was measured come first."""

from functools import partial

import pytest

from equipoise.report.checkup.terminal.overview import print_checkup
from equipoise.report.checkup.words import preconditioning
from support.console import printed
from support.report_examples import coupled, preconditioned


def test_layers_with_a_measured_hessian_come_first():
    layers = [coupled("a"), preconditioned("b"), coupled("c")]
    assert [layer.layer for layer in preconditioning.largest_gain_first(layers)] == ["b", "a", "c"]


def test_the_gain_is_the_hessians_where_it_is_known():
    assert preconditioned("a").gain == pytest.approx(8.2e4 / 3607.8)
    assert coupled("a").gain == pytest.approx((31.1 / 31.2) ** 2)


def test_a_terminal_of_80_columns_shows_the_numbers(deep):
    text = printed(partial(print_checkup, full=True), deep)
    for words in ("7.1×10⁷", "64/257", "The 8 largest gains of 33 layers."):
        assert words in text
