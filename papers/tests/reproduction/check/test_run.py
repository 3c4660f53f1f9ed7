"""Records computed anew agree with published ones, unless the code has changed."""

from __future__ import annotations

import pytest

from equipoise.records import to_plain
from equipoise_papers.reproduction.archive import pack, unpack
from equipoise_papers.reproduction.catalogue import EXPERIMENTS
from equipoise_papers.reproduction.check import run
from equipoise_papers.reproduction.check.record import CheckFailedError
from equipoise_papers.reproduction.folders import cell_store
from equipoise_papers.sweeps import cell
from equipoise_papers.sweeps.backends import Engine
from equipoise_papers.sweeps.grid import sweep
from papers_support.toy_trials import Code, Prediction, Trial, trials


@pytest.fixture
def code(monkeypatch):
    """The code that trials are computed by."""
    monkeypatch.setattr(Trial, "code", Code())
    return Trial.code


@pytest.fixture
def stopped_clock(monkeypatch):
    """A clock by which every computation takes no time at all."""
    monkeypatch.setattr(cell.time, "perf_counter", lambda: 0.0)


@pytest.fixture
def page(code, monkeypatch, tmp_path):
    """A page with the packed records of all trials, the only experiment of the catalogue."""
    for name in [*EXPERIMENTS]:
        monkeypatch.delitem(EXPERIMENTS, name)
    experiment = trials()
    monkeypatch.setitem(EXPERIMENTS, experiment.name, experiment)
    store = cell_store(experiment, tmp_path / "first")
    sweep(store, experiment.cells("small"), engine=Engine(jobs=1))
    pack(tmp_path / "first", tmp_path / "page" / "records", "small")
    code.calls.clear()
    return tmp_path / "page"


@pytest.fixture
def check(page, tmp_path):
    def run_check(**options):
        return run.check_published(
            page, **({"cells": 40, "jobs": 1, "out": tmp_path / "new"} | options)
        )

    return run_check


def by_kind(found):
    return {row.kind: row for row in found.rows}


def test_equal_records_pass(check):
    found = check()
    assert [row.agreement for row in found.rows] == ["equal", "equal"]
    assert sum(row.cells for row in found.rows) == 40
    assert all(row.equal == row.cells for row in found.rows)
    found.raise_if_failed()


def test_times_are_left_out(check):
    assert by_kind(check())["Trial"].left_out == ("step_seconds: a time",)


def test_rounding_passes(check, code):
    code.shift = code.offset = 1e-9
    assert {row.agreement for row in check().rows} == {"rounding"}


def test_noise_passes(check, code):
    code.rounding = 1
    row = by_kind(check())["Trial"]
    assert row.agreement == "noise"
    assert row.differing >= row.cells - 1  # two draws may lie close together
    check().raise_if_failed()


def test_a_few_trials_that_differ_decide_nothing(check, code):
    code.rounding = 1
    row = by_kind(check(cells=7))["Trial"]
    assert row.agreement == "undecided"


def test_a_bias_is_found_and_cells_are_named(check, code):
    code.rounding, code.shift = 1, 0.4  # four times the scatter
    found = check()
    row = by_kind(found)["Trial"]
    assert row.agreement == "changed"
    assert any(test.changed and test.question == "bias" for test in row.evidence)
    with pytest.raises(CheckFailedError, match=r"toy.trials: .* Trial\(setting=\d+, seed=\d\)"):
        found.raise_if_failed()


def test_more_scatter_is_found_though_its_mean_is_zero(check, code):
    code.rounding, code.scatter = 1, 10.0
    row = by_kind(check())["Trial"]
    assert {test.question for test in row.evidence if test.changed} == {"range"}


def test_trials_that_newly_diverge_are_found(check, code):
    code.diverges = True
    row = by_kind(check())["Trial"]
    assert (row.agreement, row.flipped) == ("changed", row.cells)


def test_one_prediction_that_changed_is_enough(check, code):
    code.offset = 1e-3
    found = check(cells=2)
    row = by_kind(found)["Prediction"]
    assert row.agreement == "changed"
    (deviation,) = row.deviations
    assert (deviation.fields, deviation.commit) == (("depth",), run._commit())
    with pytest.raises(CheckFailedError, match=r"1 of 1 cells differ .*Prediction"):
        found.raise_if_failed()


def test_a_cell_that_fails_is_named(check, code):
    code.trouble = range(20)
    found = check()
    assert by_kind(found)["Trial"].agreement == "failed"
    with pytest.raises(CheckFailedError, match="FloatingPointError: no convergence"):
        found.raise_if_failed()


def test_the_second_check_computes_nothing(check, code):
    first = check()
    assert len(code.calls) == 40
    assert to_plain(check()) == to_plain(first)
    assert len(code.calls) == 40


def test_a_larger_one_computes_what_is_missing(check, code):
    check(cells=20)
    check(cells=30)
    assert len(code.calls) == len({*code.calls}) == 30


def test_failures_are_tried_again(check, code):
    code.trouble = range(20)
    check()
    code.trouble = ()
    assert {row.agreement for row in check().rows} == {"equal"}


def test_another_commit_begins_anew(check, code, monkeypatch):
    check()
    monkeypatch.setattr(run, "_commit", lambda: "0123456")
    check()
    assert len(code.calls) == 80


def test_published_records_are_not_taken_for_new_ones(check, page, tmp_path):
    folder = check(cells=2).folder
    for path in (tmp_path / "new").glob("*/*/cells/*.json"):
        path.unlink()
    unpack(page / "records", out=folder)
    with pytest.raises(ValueError, match=r"is the published record itself.*--out"):
        check()


def test_equal_times_of_computing_are_no_sign_of_a_copy(stopped_clock, check):
    assert to_plain(check()) == to_plain(check())


def test_what_it_takes_is_said_first(check):
    lines = []
    check(cells=10, say=lines.append)
    assert lines == [
        "10 cells of 1 experiment: about less than 0.1 s by the published times",
        "1 of 1: toy.trials: 10 equal",
    ]
    check(cells=12, say=lines.append)
    assert lines[2].startswith("12 cells of 1 experiment, 10 of them computed already: ")


def test_predictions_have_no_seed_and_trials_have():
    assert run._is_random(to_plain(Trial(1, 2)))
    assert not run._is_random(to_plain(Prediction(1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cells": 0}, "--cells must be at least 1, got 0"),
        ({"cells": 1}, "--cells must be at least 2, one of each kind of cells"),
        ({"only": "toy.errors"}, "there is no experiment 'toy.errors'"),
        ({"scale": "large"}, "scale must be one of smoke, small, paper"),
        ({"jobs": 0}, "jobs must be at least 1"),
    ],
)
def test_wrong_arguments_are_refused(check, options, message):
    with pytest.raises(ValueError, match=message):
        check(**options)


def test_a_page_without_records_is_refused(check, tmp_path):
    with pytest.raises(ValueError, match=r"holds no packed records.*equipoise reproduce report"):
        run.check_published(tmp_path / "elsewhere", jobs=1, out=tmp_path)


def test_records_of_no_known_cell_are_refused(check, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "toy.trials", trials(revision=2))
    with pytest.raises(ValueError, match="holds no records of any experiment at scale small"):
        check()
