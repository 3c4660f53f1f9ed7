"""``equipoise reproduce all``, ``report`` and ``unpack``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from equipoise_papers.reproduction.catalogue import EXPERIMENTS

NAMES = ("yang2019.fig1d", "lange2022.fig2")  # their smoke scales take a tenth of a second
SMOKE = ("--scale", "smoke")

pytestmark = pytest.mark.usefixtures("blank_figures")


@pytest.fixture(autouse=True)
def quick():
    """A catalogue of two quick experiments; afterwards it is as before, in its order."""
    before = dict(EXPERIMENTS)
    EXPERIMENTS.clear()
    EXPERIMENTS.update({name: before[name] for name in NAMES})
    yield
    EXPERIMENTS.clear()
    EXPERIMENTS.update(before)


@pytest.fixture
def broken(quick):
    """The first of them breaks off."""

    def judge(results):
        raise OSError("no space")

    EXPERIMENTS[NAMES[0]] = dataclasses.replace(EXPERIMENTS[NAMES[0]], judge=judge)


def test_all_prints_every_verdict_and_tells_how_far_it_is(equipoise):
    done = equipoise("reproduce", "all", *SMOKE)
    assert done.code == 0
    assert done.err.startswith("1 of 2: yang2019.fig1d: holds, ")
    assert "2 of 2: lange2022.fig2: " in done.err
    for name in NAMES:
        assert name in done.out
        assert Path("reproduction", name, "smoke", "verdict.json").is_file()


def test_a_failure_is_named_at_the_end_and_the_others_run(equipoise, broken):
    done = equipoise("reproduce", "all", *SMOKE)
    assert done.code == 1
    last = done.err.splitlines()[-1]
    assert last.startswith("equipoise reproduce: 1 of 2 experiments failed: yang2019.fig1d. ")
    assert "OSError: no space" in last
    assert Path("reproduction", NAMES[1], "smoke", "verdict.json").is_file()


def test_all_as_json(equipoise):
    runs = equipoise("reproduce", "all", *SMOKE, "--json").json["runs"]
    assert [run["experiment"] for run in runs] == list(NAMES)


def test_report_writes_the_page(equipoise):
    equipoise("reproduce", "all", *SMOKE)
    done = equipoise("reproduce", "report", *SMOKE)
    assert done.code == 0
    page = Path("reproduction", "report", "reproduction.html")
    assert f"Report: {page}" in done.out
    assert page.is_file()


def test_the_page_goes_where_it_is_told(equipoise, folder):
    equipoise("reproduce", NAMES[0], *SMOKE)
    published = equipoise("reproduce", "report", *SMOKE, "--page", "docs", "--json").json
    assert published["page"] == "docs/reproduction.html"
    assert json.loads(Path("docs", "reproduction.json").read_text("utf-8")) == published["report"]
    assert all(Path(name).is_file() for name in published["files"])


def test_unpacked_records_are_enough_to_redraw(equipoise):
    equipoise("reproduce", NAMES[0], *SMOKE)
    equipoise("reproduce", "report", *SMOKE, "--page", "docs")
    done = equipoise("reproduce", "unpack", "--page", "docs", "--out", "new")
    assert done.code == 0
    assert "new: 2 cells of 1 experiment, 2 of them new" in done.out
    redrawn = equipoise("reproduce", NAMES[0], *SMOKE, "--out", "new", "--redraw", "--json").json
    assert redrawn["panels"][0]["outcome"] == "holds"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report",), "'reproduction' holds no records"),
        (("unpack",), "holds no packed records"),
        (("all", "--redraw"), "all --redraw would compute nothing"),
        (("all", "--page", "docs"), "--page is where `report` writes to"),
        ((NAMES[0], "--page", "docs"), "--page is where `report` writes to"),
        (("all", "--jobs", "0"), "jobs must be at least 1, got 0"),
        (("all", "--out", "nets.py"), "cannot write records to"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(equipoise, arguments, message):
    done = equipoise("reproduce", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err
    assert not Path("docs").exists()
