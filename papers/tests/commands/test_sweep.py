"""Shards, their status and their merging, from the command line."""

import json
from pathlib import Path

import pytest

from papers_support.toy_tasks import rewrite

NAME = "yang2019.fig1d"  # two cells, a tenth of a second

pytestmark = pytest.mark.usefixtures("blank_figures")


@pytest.fixture
def shards(equipoise):
    """One folder for each of two shards, computed one after the other."""
    for index in (1, 2):
        done = equipoise(
            "reproduce", NAME, "--scale", "smoke", "--shard", f"{index}/2", "--out", f"part{index}"
        )
        assert done.code == 0
        assert "1 of 2 cells are finished" in done.out


def test_shards_are_gathered_and_judged(equipoise, shards):
    done = equipoise("gather", "part1", "part2", "--out", "whole")
    assert (done.code, done.err) == (0, "")
    assert done.out == "whole: 2 cells of 1 experiment, 2 of them new\n"
    done = equipoise("reproduce", NAME, "--scale", "smoke", "--redraw", "--out", "whole")
    assert f"{NAME} holds reduced, at scale smoke" in done.out


def test_gather_as_json(equipoise, shards):
    done = equipoise("gather", "part1", "part2", "--out", "whole", "--json")
    assert done.json == {
        "folder": "whole",
        "experiments": [NAME],
        "cells": 2,
        "added": 2,
        "damaged": [],
    }


def test_gather_refuses_different_records_and_tells_which(equipoise, shards):
    (path,) = Path("part1").rglob("cells/*.json")
    text = path.read_text()
    alpha = json.loads(text)["cell"]["alpha"]
    changed = Path("part2", NAME, "cells", path.name)
    changed.write_text(text)
    rewrite(changed, '"method": "', '"method": "another ')
    done = equipoise("gather", "part1", "part2", "--out", "whole")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert f"{NAME} {{'alpha': {alpha}" in done.err
    assert str(path) in done.err
    assert str(changed) in done.err
    assert not Path("whole").exists()


def test_status_counts_cells(equipoise, shards):
    done = equipoise("sweep", "status", "part1")
    assert (done.code, done.err) == (0, "")
    (line,) = (line for line in done.out.splitlines() if "smoke" in line)
    assert line.split()[:5] == [NAME, "smoke", "1/2", "0", "1"]


def test_status_is_what_is_asked_for(equipoise, shards):
    Path("part1").rename("reproduction")
    asked = equipoise("sweep", "status", "reproduction")
    assert asked.code == 0
    assert equipoise("sweep").out == asked.out


def test_status_as_json(equipoise, shards):
    done = equipoise("sweep", "status", "part1", "--json")
    (row,) = done.json["rows"]
    assert (row["cells"], row["finished"], row["failed"], row["missing"]) == (2, 1, 0, 1)
    assert row["left"]["value"] == row["seconds"]


def test_an_unknown_experiment_and_a_damaged_file_are_named(equipoise, shards):
    cells = Path("part1", "toy.cubes", "cells")
    cells.mkdir(parents=True)
    (cells / "0.json").write_text("{")
    assert "toy.cubes: unknown to this version" in equipoise("sweep", "status", "part1").out
    done = equipoise("gather", "part1", "--out", "whole")
    assert f"left out, not a record: {cells / '0.json'}" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sweep", "status", "nowhere"), "'nowhere' holds no records. Name a folder that"),
        (("gather", "nowhere", "--out", "whole"), "'nowhere' holds no records"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(equipoise, arguments, message):
    done = equipoise(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err


@pytest.mark.parametrize("arguments", [("sweep",), ("sweep", "stop"), ("gather", "part1")])
def test_usage_errors(equipoise, arguments):
    assert equipoise(*arguments).code == 2
