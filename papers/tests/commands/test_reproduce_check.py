"""``equipoise reproduce check``."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from equipoise_papers.reproduction.archive import pack
from equipoise_papers.reproduction.catalogue import EXPERIMENTS

NAME = "yang2019.fig1d"  # two cells, a tenth of a second
SMOKE = ("--scale", "smoke")
CHECK = ("reproduce", "check", *SMOKE, "--page", "docs", "--cells", "2", "--out", "new")

pytestmark = pytest.mark.usefixtures("blank_figures")


@pytest.fixture
def page(equipoise, monkeypatch):
    """Packed records of one experiment, the only one of the catalogue."""
    for name in [*EXPERIMENTS]:
        if name != NAME:
            monkeypatch.delitem(EXPERIMENTS, name)
    equipoise("reproduce", NAME, *SMOKE)
    pack("reproduction", Path("docs", "records"), "smoke")
    return Path("docs")


@pytest.fixture
def changed(page):
    """Its records, as if other code had computed them; files without a checksum are read."""
    (path,) = page.glob("records/*.jsonl.xz")
    documents = [json.loads(line) for line in lzma.decompress(path.read_bytes()).splitlines()]
    for document in documents:
        document["record"]["transition"]["value"] += 1.0
        del document["checksum"]
    lines = "\n".join(map(json.dumps, documents))
    path.write_bytes(lzma.compress(lines.encode()))


def test_records_of_this_code_pass(equipoise, page):
    done = equipoise(*CHECK)
    assert done.code == 0
    assert done.err.startswith("2 cells of 1 experiment: about ")
    assert f"1 of 1: {NAME}: 2 equal" in done.err
    assert "2 cells computed anew: 2 equal to the last bit or within rounding." in done.out
    assert f"{NAME}    2 of 2       2 " in done.out


def test_the_second_time_nothing_is_computed(equipoise, page):
    equipoise(*CHECK)
    assert "2 of them computed already" in equipoise(*CHECK).err


def test_as_json(equipoise, page):
    done = equipoise(*CHECK, "--json").json
    (row,) = done["rows"]
    assert (row["experiment"], row["equal"], row["agreement"]) == (NAME, 2, "equal")


def test_records_of_other_code_are_counted(equipoise, changed):
    """They have a seed, and two cells decide nothing."""
    done = equipoise(*CHECK)
    assert done.code == 0
    assert "too few" in done.out
    assert f"1 of 1: {NAME}: 2 different" in done.err


def test_a_failure_is_exit_code_one(equipoise, page, monkeypatch):
    def run(cell):
        raise FloatingPointError("no convergence")

    (kind,) = {type(cell) for cell in EXPERIMENTS[NAME].cells("smoke")}
    monkeypatch.setattr(kind, "run", run)
    done = equipoise(*CHECK)
    assert done.code == 1
    assert "2 of 2 cells failed: " in done.err.splitlines()[-1]
    assert "FloatingPointError: no convergence" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check",), "holds no packed records"),
        (("check", "--cells", "0"), "--cells must be at least 1, got 0"),
        (("check", "--only", "yang2019.fig9"), "there is no experiment 'yang2019.fig9'"),
        (("check", "--redraw"), "check computes cells anew"),
        (("check", "--shard", "1/2"), "give each machine another --seed"),
        ((NAME, "--cells", "3"), "--cells says what `equipoise reproduce check` draws"),
        (("all", "--only", NAME), "--only says what `equipoise reproduce check` draws"),
        (("report", "--seed", "0"), "--seed says what `equipoise reproduce check` draws"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(equipoise, arguments, message):
    done = equipoise("reproduce", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err
