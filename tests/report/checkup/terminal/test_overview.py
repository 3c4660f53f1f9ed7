import dataclasses
import re
from functools import partial

import pytest
from rich.cells import cell_len

from equipoise.records import Estimate
from equipoise.report.checkup.terminal.overview import log_bars, print_checkup, sparkline
from equipoise.report.checkup.words.first_screen import remedy_as_code
from support.console import printed
from support.report_examples import HOSTILE_NAMES

whole = partial(print_checkup, full=True)


class TestFirstScreen:
    def test_it_fits_on_a_screen(self, deep):
        deep = dataclasses.replace(deep, fix=None, smoothness=None, preconditioning=())
        assert len(printed(print_checkup, deep).splitlines()) <= 40

    def test_verdict_picture_findings_and_remedy_stand_there(self, deep):
        text = printed(print_checkup, deep)
        assert text.index("Will probably not train") < text.index("█")
        assert all(finding.title in text for finding in deep.headlines)
        assert all(line in text for line in deep.fix.code)
        assert "torch.nn.init.constant_(norm.bias" not in text  # not proved, as that was
        raceless = printed(print_checkup, dataclasses.replace(deep, fix=None))
        assert "torch.nn.init.constant_(norm.bias" in raceless
        assert "--full" in text

    def test_code_is_not_folded(self, deep):
        raceless = dataclasses.replace(deep, fix=None)
        lines = [line.strip() for line in printed(print_checkup, raceless).splitlines()]
        for line in remedy_as_code(raceless).splitlines():
            assert line.strip() in lines

    def test_what_was_asked_for_follows(self, deep):
        assert "What to change" in printed(print_checkup, deep)

    def test_tables_and_good_news_are_left_to_the_whole_report(self, deep):
        assert "Where gradients grow" not in printed(print_checkup, deep)
        assert all(finding.severity != "good" for finding in deep.headlines)
        assert len(deep.headlines) <= 3

    def test_notes_that_ask_for_nothing_are_details(self, deep):
        silent = tuple(
            dataclasses.replace(one, severity="note", remedy=None) for one in deep.findings
        )
        assert dataclasses.replace(deep, findings=silent).headlines == ()

    def test_the_verdicts_own_finding_does_not_repeat_it(self, deep):
        own = dataclasses.replace(deep.findings[0], title=deep.verdict.sentence)
        other = dataclasses.replace(deep.findings[0], title="Another")
        found = dataclasses.replace(deep, findings=(own, other)).headlines
        assert [one.title for one in found] == ["What to change", "Another"]
        assert found[0].remedy == own.remedy


def test_the_facts_are_there(deep):
    text = printed(whole, deep)
    for fact in (
        "Will probably not train (12 %, between 5 and 22 %)",
        "about 21 could train",
        "examples/deep_relu.py:build_model",
        "fashion-mnist",
        "2,149,898",
        "5 initialisations × 2 batches",
        "Keep fewer than 42 normalised layers",
        "1.471 ± 0.006",
        "differs",
        "96 of 96 operations",
        "Where gradients grow",
        "×1.47",
        "⋮",
        "The worst 8 of 33 layers",
        "Skipped stem.conv: 4 rows, 28 columns",
        "trains with 91 %",
        "verified",
        "not tried",
    ):
        assert fact in text


def test_findings_come_first_and_in_their_order(deep):
    text = printed(whole, deep)
    titles = [text.index(finding.title) for finding in deep.findings]
    assert titles == sorted(titles)
    assert titles[-1] < text.index("Predicted and measured")


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_line_is_wider_than_the_terminal(checkup, width):
    lines = printed(whole, checkup, width).splitlines()
    assert max(map(cell_len, lines)) <= width


def test_an_interrupted_checkup_says_so(interrupted):
    text = printed(whole, interrupted)
    assert "Interrupted" in text
    assert "Where gradients grow" not in text


def test_names_are_not_markup(hostile):
    text = printed(whole, hostile, width=400)
    for name in HOSTILE_NAMES[:8]:
        assert name in text


def test_names_cannot_steer_the_terminal(hostile):
    text = printed(whole, hostile, width=400)
    assert "\x1b" not in text
    assert r"esc\x1b[31m\udcff" in text
    assert text.encode("utf-8")


def test_colours_appear_where_the_terminal_has_them(deep):
    assert "\x1b[1;31m" in printed(whole, deep, force_terminal=True, color_system="standard")


def test_what_is_not_finite_is_named(hostile):
    text = printed(whole, hostile)
    assert "Gradients are not finite" in text
    assert "NaN" in text
    assert "∞" in text


def test_bars_of_equal_values_are_equal():
    assert log_bars([5.0, 5.0, 0.0], 4) == ["████", "████", ""]


@pytest.mark.parametrize("layers", [1, 7, 60, 1000])
def test_a_sparkline_fits(layers):
    assert 1 <= len(sparkline([1.1**i for i in range(layers)], 40)) <= 40


class TestTables:
    def test_the_layers_of_the_largest_step_are_shown(self, deep):
        layers = list(deep.growth.layers)
        layers[11:] = [
            dataclasses.replace(one, gradient=Estimate(one.gradient.value * 1e4, 0.0, "measured"))
            for one in layers[11:]
        ]
        jumping = dataclasses.replace(
            deep, growth=dataclasses.replace(deep.growth, layers=tuple(layers))
        )
        table = printed(whole, jumping).partition("Gradients per layer")[2].partition("h: a")[0]
        rows = re.findall(r"^ *(1[0-9]) ", table, re.MULTILINE)
        assert {"11", "12"} <= set(rows)
        assert "15" not in rows

    @pytest.mark.parametrize("width", [80, 120])
    def test_remedies_keep_number_and_verdict(self, deep, width):
        text = printed(print_checkup, deep, width)
        (row,) = re.findall(r"^ *1\. .*%.*$", text, re.MULTILINE)
        assert row.rstrip().endswith(("best", "better"))
        assert "…" not in row
        assert bool(re.search("evaluation +gap", text)) == (width == 120)
        assert ("gap: that" in text) == (width == 120)
