"""No finished cell is computed twice or lost, and redrawing computes nothing."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise_papers.reproduction.catalogue import EXPERIMENTS, FIGURES, catalogue, find
from equipoise_papers.reproduction.folders import cell_store
from equipoise_papers.reproduction.reproduce import reproduce
from equipoise_papers.sweeps.backends import Engine
from equipoise_papers.sweeps.worker import KeepHere
from papers_support.toy_experiments import Number, squares
from support.cases import each

PNG = b"\x89PNG"


def run(tmp_path, **options):
    return reproduce("toy.squares", scale="smoke", out=tmp_path, **options)


class TestResuming:
    def test_the_second_run_computes_nothing(self, toy, calculator, tmp_path):
        run(tmp_path)
        run(tmp_path)
        assert calculator.calls == [1.0, 2.0, 3.0]

    def test_without_the_records_it_computes_again(self, toy, calculator, tmp_path):
        run(tmp_path / "a")
        run(tmp_path / "b")
        assert calculator.calls == [1.0, 2.0, 3.0] * 2

    @pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
    def test_an_interruption_costs_only_the_cell_at_work(self, toy, calculator, tmp_path, stop):
        calculator.trouble = {3.0: stop()}
        with pytest.raises(stop):
            run(tmp_path)
        calculator.trouble, calculator.calls = {}, []
        assert run(tmp_path).panels[0].outcome == "holds"
        assert calculator.calls == [3.0]

    def test_a_kill_costs_only_the_cell_at_work(self, tmp_path):
        """In a process of its own, which ends itself without any chance to clean up."""
        script = (
            "import os, signal, sys\n"
            "from papers_support.toy_experiments import Calculator, squares\n"
            "from equipoise_papers import reproduce\n"
            "from equipoise_papers.reproduction.catalogue import EXPERIMENTS\n"
            "class Deadly(Calculator):\n"
            "    def run(self, cell):\n"
            "        if cell.value == 3.0: os.kill(os.getpid(), signal.SIGKILL)\n"
            "        return super().run(cell)\n"
            "EXPERIMENTS['toy.squares'] = squares(Deadly())\n"
            "reproduce('toy.squares', scale='smoke', out=sys.argv[1])\n"
        )
        command = [sys.executable, "-c", script, str(tmp_path)]
        done = subprocess.run(command, cwd=Path(__file__).parents[1], timeout=60, check=False)
        assert done.returncode < 0
        assert len(list((tmp_path / "toy.squares" / "cells").glob("*.json"))) == 2

    def test_progress_counts_stored_cells_too(self, toy, tmp_path):
        for known in (0, 3):
            steps = []
            run(tmp_path, progress=lambda *step, steps=steps: steps.append(step))
            assert steps == [("toy.squares", done, 3) for done in range(known, 4)]


class TestWhereToCompute:
    def test_on_threads(self, toy, calculator, tmp_path):
        assert run(tmp_path, backend="threading", jobs=2).panels[0].outcome == "holds"
        assert sorted(calculator.calls) == [1.0, 2.0, 3.0]

    @each("name", sorted(EXPERIMENTS))
    def test_every_published_experiment_reaches_other_processes(self, name):
        """It is sent by the names of its functions, not as code."""
        (experiment,) = find(name)
        work = KeepHere(cell_store(experiment, Path("folder")))
        sent = pickle.dumps(work)
        assert len(sent) < 1000
        cell = experiment.cells("smoke")[0]
        assert pickle.loads(sent).store.path(cell) == work.store.path(cell)
        assert pickle.loads(pickle.dumps(cell)) == cell

    @pytest.mark.parametrize(
        ("scale", "streamed"), [("smoke", [(1, 3)]), ("small", []), ("paper", [(None, 3)])]
    )
    def test_workers_are_for_long_work(self, toy, tmp_path, monkeypatch, scale, streamed):
        """Number of jobs and cells: one at a time; none, quick as they are; on all cores."""
        found = []

        def stream(engine, work, items, most):
            found.append((engine.jobs, most))
            yield from map(work, items)

        monkeypatch.setattr(Engine, "stream", stream)
        reproduce("toy.squares", scale=scale, out=tmp_path)
        assert found == streamed

    def test_a_shard_without_cells_is_no_error(self, toy, calculator, tmp_path):
        (panel,) = run(tmp_path, shard=(7, 7)).panels
        assert (panel.outcome, panel.finished, calculator.calls) == ("incomplete", 0, [])

    def test_a_shard_that_does_not_exist(self, toy, tmp_path):
        with pytest.raises(ValueError, match="a shard is i/n"):
            run(tmp_path, shard=(3, 2))


class TestFailures:
    def test_a_failed_cell_is_a_record_with_its_reason(self, toy, calculator, tmp_path):
        calculator.trouble = {2.0: ArithmeticError("it overflowed")}
        (panel,) = run(tmp_path).panels
        assert (panel.outcome, panel.finished, panel.cells) == ("incomplete", 2, 3)
        assert panel.checks == ()  # a claim is never judged by half of its numbers
        assert panel.failures == (f"{Number(2.0)}: ArithmeticError: it overflowed",)

    def test_the_next_run_tries_it_again_and_only_it(self, toy, calculator, tmp_path):
        calculator.trouble = {2.0: ArithmeticError("it overflowed")}
        run(tmp_path)
        calculator.trouble, calculator.calls = {}, []
        assert run(tmp_path).panels[0].outcome == "holds"
        assert calculator.calls == [2.0]

    def test_nothing_but_failures_is_no_crash(self, toy, calculator, tmp_path):
        calculator.trouble = {value: ValueError("no") for value in (1.0, 2.0, 3.0)}
        result = run(tmp_path)
        assert result.figure is None
        assert result.panels[0].outcome == "incomplete"


class TestRedrawing:
    def test_it_computes_nothing_and_draws_all(self, toy, calculator, tmp_path):
        run(tmp_path)
        folder = tmp_path / "toy.squares" / "smoke"
        made = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert set(made) == {"figure.png", "figure.svg", "summary.md", "verdict.json"}
        for name in made:
            (folder / name).unlink()
        calculator.trouble = {value: AssertionError("computed") for value in (1.0, 2.0, 3.0)}
        run(tmp_path, redraw=True)
        again = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert calculator.calls == [1.0, 2.0, 3.0]
        assert {name: again[name] for name in ("figure.png", "figure.svg")} == {
            name: made[name] for name in ("figure.png", "figure.svg")
        }

    def test_a_part_is_marked_incomplete(self, toy, calculator, tmp_path):
        calculator.trouble = {2.0: KeyboardInterrupt()}
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
        (panel,) = run(tmp_path, redraw=True).panels
        assert (panel.outcome, panel.finished) == ("incomplete", 1)

    def test_without_records_it_says_what_to_do_and_writes_nothing(self, toy, tmp_path):
        with pytest.raises(ValueError, match="without --redraw first"):
            run(tmp_path / "new", redraw=True)
        assert not (tmp_path / "new").exists()


class TestOutputs:
    def test_figure_verdict_and_summary(self, toy, tmp_path):
        result = run(tmp_path)
        folder = tmp_path / "toy.squares" / "smoke"
        assert Path(result.figure).read_bytes().startswith(PNG)
        assert "<svg" in (folder / "figure.svg").read_text()
        verdict = json.loads((folder / "verdict.json").read_text())
        assert verdict["outcome"] == "holds"
        assert verdict["checks"] == [
            {"claim": "the squares add up to 14", "found": "14", "holds": True, "ours": False}
        ]
        assert verdict["command"].startswith("equipoise reproduce toy.squares --scale smoke")
        summary = (folder / "summary.md").read_text()
        assert "**The claim: holds** (same setting) at scale *smoke*" in summary
        assert "| the squares add up to 14 | 14 | yes |" in summary

    def test_a_claim_that_fails_is_not_reproduced(self, toy, calculator, monkeypatch, tmp_path):
        """The twin: the same claim about other numbers."""
        wrong = squares(calculator, cells=lambda scale: tuple(map(calculator.number, (1.0, 4.0))))
        monkeypatch.setitem(EXPERIMENTS, "toy.squares", wrong)
        (panel,) = run(tmp_path).panels
        assert panel.outcome == "fails"
        assert not panel.checks[0].holds


def test_smoke_is_the_source_s_setting_only_if_it_leaves_nothing_out(
    toy, calculator, monkeypatch, tmp_path
):
    (all_of_them,) = run(tmp_path).panels
    assert all_of_them.fidelity == "same setting"
    few = {"smoke": (1.0, 2.0), "small": (1.0, 2.0, 3.0)}
    less = squares(calculator, cells=lambda scale: tuple(map(calculator.number, few[scale])))
    monkeypatch.setitem(EXPERIMENTS, "toy.squares", less)
    (fewer,) = run(tmp_path).panels
    assert fewer.fidelity == "reduced"


def test_a_whole_figure_has_a_sheet_and_an_overview(calculator, monkeypatch, tmp_path):
    panels = ("toy.fig1a", "toy.fig1b")
    for name in panels:
        monkeypatch.setitem(EXPERIMENTS, name, squares(calculator, name=name))
    monkeypatch.setitem(FIGURES, "toy.fig1", ("Squares twice", panels))
    result = reproduce("toy.fig1", scale="smoke", out=tmp_path)
    folder = tmp_path / "toy.fig1" / "smoke"
    assert Path(result.figure) == folder / "figure.png"
    assert Path(result.figure).read_bytes().startswith(PNG)
    overview = (folder / "summary.md").read_text()
    for name in panels:
        assert f"../../{name}/smoke/summary.md" in overview
        assert (tmp_path / name / "smoke" / "summary.md").exists()


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(
        ValueError, match=r"there is no experiment 'yang2019.fig9'. Did you mean 'yang2019.fig"
    ):
        find("yang2019.fig9")


def test_an_unknown_scale(toy, tmp_path):
    with pytest.raises(ValueError, match="scale must be one of smoke, small, paper, got 'huge'"):
        reproduce("toy.squares", scale="huge", out=tmp_path)


def test_the_catalogue_names_everything_that_can_be_found():
    for entry in catalogue().entries:
        assert tuple(experiment.name for experiment in find(entry.name)) == entry.panels
