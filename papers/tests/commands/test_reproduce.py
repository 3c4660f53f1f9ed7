"""``equipoise reproduce`` computes what is missing, draws it and says what it means."""

import json
import os
from pathlib import Path

import pytest

NAME = "yang2019.fig1d"  # its smoke scale takes a tenth of a second


def test_it_writes_figure_verdict_and_summary(equipoise):
    done = equipoise("reproduce", NAME, "--scale", "smoke")
    assert done.code == 0
    assert "yang2019.fig1d holds reduced, at scale smoke" in done.out
    folder = Path("reproduction", NAME, "smoke")
    assert f"Figure: {folder / 'figure.png'}" in done.out
    assert {path.name for path in folder.iterdir()} == {
        "figure.png",
        "figure.svg",
        "summary.md",
        "verdict.json",
    }


def test_json_holds_the_verdict_and_nothing_else_is_printed(equipoise):
    done = equipoise("reproduce", NAME, "--scale", "smoke", "--json")
    (panel,) = done.json["panels"]
    stored = json.loads(Path("reproduction", NAME, "smoke", "verdict.json").read_text())
    assert panel == stored
    assert panel["outcome"] == "holds"


def test_the_command_in_the_verdict_gives_the_same_records(equipoise, folder):
    out = folder / "a folder"
    equipoise("reproduce", NAME, "--scale", "smoke", "--out", out)
    verdict = json.loads((out / NAME / "smoke" / "verdict.json").read_text())
    assert verdict["command"] == f"equipoise reproduce {NAME} --scale smoke --out '{out}'"


def test_scale_paper_says_first_what_it_costs(equipoise):
    done = equipoise("reproduce", NAME, "--scale", "paper", "--jobs", "1")
    assert done.code == 0
    assert f"{NAME}: 2 cells, about " in done.err
    again = equipoise("reproduce", NAME, "--scale", "paper", "--jobs", "1")
    assert "cells" not in again.err  # none is missing


def test_redraw_uses_what_is_stored(equipoise):
    equipoise("reproduce", NAME, "--scale", "smoke")
    (figure,) = Path().rglob("figure.png")
    figure.unlink()
    cells = {path: path.stat().st_mtime_ns for path in Path().rglob("cells/*.json")}
    assert equipoise("reproduce", NAME, "--scale", "smoke", "--redraw").code == 0
    assert figure.exists()
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("cells/*.json")} == cells


def test_list(equipoise):
    done = equipoise("reproduce", "--list")
    assert done.code == 0
    for name in ("yang2019.fig1 ", "yang2019.fig1a", "yang2019.fig2", "yang2019.fig4d"):
        assert name in done.out


def test_list_of_some(equipoise):
    entries = equipoise("reproduce", "--list", "yang2019.fig4", "--json").json["entries"]
    assert [entry["name"][-5:] for entry in entries] == [
        ".fig4",
        "fig4a",
        "fig4b",
        "fig4c",
        "fig4d",
    ]
    refused = equipoise("reproduce", "--list", "yang2020")
    assert refused.code == 2
    assert "no name begins with 'yang2020'. Did you mean 'yang2019." in refused.err


def test_list_as_json(equipoise):
    entries = {
        entry["name"]: entry
        for entry in equipoise("reproduce", "--list", "--json").json["entries"]
    }
    assert entries["yang2019.fig1"]["panels"] == [f"yang2019.fig1{panel}" for panel in "abcd"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("yang2019.fig9",), "there is no experiment 'yang2019.fig9'. Did you mean 'yang2019.fig"),
        ((), "which figure? Give a name such as yang2019.fig1, or --list them all."),
        ((NAME, "--redraw"), "holds no records of yang2019.fig1d at scale small to redraw"),
        ((NAME, "--out", "nets.py"), "cannot write records to"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(equipoise, arguments, message):
    done = equipoise("reproduce", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--jobs", "0"), "jobs must be at least 1, got 0"),
        (("--shard", "3/2"), "a shard is i/n with 1 ≤ i ≤ n, such as 1/4 to 4/4, got 3/2"),
        (("--scheduler", "tcp://host:1"), "the backend loky works on this machine"),
        (("--backend", "dask", "--jobs", "2"), "a Dask cluster brings its own"),
    ],
)
def test_an_engine_that_cannot_work_is_refused_before_any_work(equipoise, arguments, message):
    done = equipoise("reproduce", NAME, *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err
    assert not Path("reproduction").exists()


def test_a_malformed_shard_is_a_usage_error(equipoise):
    done = equipoise("reproduce", NAME, "--shard", "half")
    assert done.code == 2
    assert "argument --shard: takes I/N, such as 1/4, got 'half'" in done.err


def test_a_lost_worker_is_one_line_and_exit_code_one(equipoise, monkeypatch):
    def lose(*arguments, **keywords):
        raise ChildProcessError("a worker is gone.")

    monkeypatch.setattr("equipoise_papers.reproduction.reproduce.reproduce", lose)
    done = equipoise("reproduce", NAME)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("equipoise reproduce: a worker is gone.")
    assert done.err.count("\n") == 1


def test_failed_cells_are_one_line_and_exit_code_one(equipoise, monkeypatch):
    def fail(cell):
        raise RuntimeError("a cell of ours")

    monkeypatch.setattr("equipoise_papers.yang2019.fig1.covariances.DeepNetwork.run", fail)
    done = equipoise("reproduce", NAME, "--scale", "smoke", "--jobs", "1")
    assert done.code == 1
    assert "cells of yang2019.fig1d failed. The first: " in done.err
    assert "a cell of ours" in done.err
    assert equipoise("reproduce", NAME, "--scale", "smoke", "--redraw").code == 0


def test_an_unknown_scale_is_a_usage_error(equipoise):
    done = equipoise("reproduce", NAME, "--scale", "huge")
    assert done.code == 2
    assert "invalid choice: 'huge'" in done.err


def test_a_folder_of_data_must_exist(equipoise):
    done = equipoise("reproduce", NAME, "--scale", "smoke", "--data-dir", "nowhere")
    assert done.code == 2
    assert "There is no folder 'nowhere' to look for data in." in done.err


def test_workers_are_told_of_it_by_the_environment(equipoise, folder, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_DATA", "elsewhere")
    assert equipoise("reproduce", NAME, "--scale", "smoke", "--data-dir", folder).code == 0
    assert Path(os.environ["EQUIPOISE_DATA"]) == folder.resolve()
