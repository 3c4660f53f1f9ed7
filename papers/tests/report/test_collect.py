"""Verdicts on disk become one record, row by row, and nothing is made up."""

from __future__ import annotations

import dataclasses
import json

import pytest

from equipoise.records import from_plain, to_plain
from equipoise_papers.experiments.verdict import Check, Verdict
from equipoise_papers.report import collect as reproduction_report
from equipoise_papers.report.collect import collect_report, publish
from equipoise_papers.report.record import ReproductionReport
from equipoise_papers.reproduction.archive import unpack
from equipoise_papers.reproduction.catalogue import EXPERIMENTS
from equipoise_papers.reproduction.reproduce import reproduce
from papers_support.toy_experiments import squares
from papers_support.toy_report import LATER, PAPER, TOY, catalogue_of


@pytest.fixture(autouse=True)
def only_toys(monkeypatch, calculator):
    """A catalogue of two toy experiments, and one paper with rows for them."""
    monkeypatch.setattr(reproduction_report, "PAPERS", (PAPER,))
    with catalogue_of(*(squares(calculator, name=name) for name in (TOY, LATER))):
        yield


@pytest.fixture
def done(tmp_path):
    """A folder where the first was reproduced."""
    reproduce(TOY, out=tmp_path)
    return tmp_path


def rows(root, **options):
    return {row.label: row for row in collect_report(root, "small", **options).rows}


class TestCollecting:
    def test_every_row_of_the_paper_is_there_in_its_order(self, done):
        assert list(rows(done)) == [row.label for row in PAPER.rows]

    def test_a_row_that_was_run_has_its_verdict(self, done):
        row = rows(done)["Fig. 2"]
        assert row.status == "holds"
        assert row.parts[0].verdict.checks[0].found == "14"
        assert row.parts[0].figure == f"{TOY}/small/figure.png"

    def test_a_row_that_was_not_says_so(self, done):
        row = rows(done)["Table 1"]
        assert row.status == "not run"
        assert (row.parts[0].verdict, row.parts[0].figure) == (None, None)
        assert row.parts[0].claim == "1 + 4 + 9 = 14"

    def test_a_verdict_of_another_scale_does_not_count(self, done):
        report = collect_report(done, "smoke")
        assert [row.status for row in report.rows if row.parts] == ["not run", "not run"]
        assert report.created is None

    def test_a_row_without_an_experiment_keeps_its_reason(self, done):
        assert rows(done)["Fig. 1"].status == "no experiment"
        assert rows(done)["Fig. 1"].reason == "It measures nothing."

    def test_a_row_that_another_shows_has_that_one_s_status(self, done):
        assert rows(done)["Fig. 3"].status == "holds"

    def test_what_could_not_be_judged_says_why(self, done):
        row = rows(done, problems={TOY: "ValueError: no"})["Fig. 2"]
        assert (row.status, row.parts[0].verdict) == ("incomplete", None)
        assert row.parts[0].problem == "ValueError: no"

    def test_commands_name_no_folder_of_ours(self, done):
        (part,) = rows(done)["Fig. 2"].parts
        assert part.command == f"equipoise reproduce {TOY} --scale small"
        assert (part.verdict.command, part.verdict.folder) == (part.command, f"{TOY}/small")

    def test_an_experiment_that_does_not_exist_yet_is_not_run(self, done):
        del EXPERIMENTS[LATER]
        assert rows(done)["Table 1"].status == "not run"

    def test_a_damaged_verdict_is_refused(self, done):
        verdict = done / TOY / "small" / "verdict.json"
        verdict.write_text(verdict.read_text()[:-30])
        with pytest.raises(ValueError, match=r"verdict\.json' is no verdict of this version"):
            collect_report(done, "small")

    def test_it_survives_json(self, done):
        report = collect_report(done, "small")
        assert from_plain(ReproductionReport, json.loads(json.dumps(to_plain(report)))) == report

    def test_time_is_that_of_all_cells(self, done):
        cells = [json.loads(path.read_text()) for path in done.glob("*/cells/*.json")]
        assert collect_report(done, "small").seconds == pytest.approx(
            sum(cell["seconds"] for cell in cells)
        )

    def test_cells_that_experiments_share_count_once(self, done, calculator):
        before = collect_report(done, "small").seconds
        sibling = squares(calculator, name=LATER, family=TOY)
        EXPERIMENTS[LATER] = sibling
        reproduce(LATER, out=done)
        assert collect_report(done, "small").seconds == before


YES, NO, OPEN = Check("a", "", True), Check("b", "", False), Check("c", "", None)


class TestSeveralParts:
    """A row is judged by the sentences of all its parts, not by their verdicts."""

    @pytest.fixture
    def judged(self, tmp_path, calculator, monkeypatch):
        """The status and answer of a row of two experiments with these checks."""

        def row_of(one, other, answered_by=()):
            claim = dataclasses.replace(PAPER.claims["Fig. 2"], answered_by=answered_by)
            row = dataclasses.replace(PAPER.rows[1], experiments=(TOY, LATER))
            paper = dataclasses.replace(PAPER, rows=(row,), claims={row.label: claim})
            monkeypatch.setattr(reproduction_report, "PAPERS", (paper,))
            for name, checks in ((TOY, one), (LATER, other)):
                EXPERIMENTS[name] = squares(
                    calculator, name=name, judge=lambda _, checks=checks: Verdict(checks)
                )
                reproduce(name, out=tmp_path)
            (found,) = collect_report(tmp_path, "small").rows
            return found.status, found.answer

        return row_of

    @pytest.mark.parametrize(
        ("one", "other", "expected"),
        [
            ((YES,), (YES,), ("holds", "yes")),
            ((YES,), (NO,), ("mixed", "partly")),
            ((NO,), (NO,), ("fails", "no")),
            # "Undecided" beside "fails", as verdicts, would hide that a sentence holds.
            ((YES, OPEN), (NO,), ("mixed", "partly")),
            ((NO, OPEN), (NO,), ("fails", "no")),
            ((YES,), (OPEN,), ("partly open", "undecided")),
            ((OPEN,), (OPEN,), ("undecided", "undecided")),
            ((YES,), (), ("incomplete", None)),
            ((), (), ("not judged", None)),
        ],
    )
    def test_their_sentences_combine(self, judged, one, other, expected):
        assert judged(one, other) == judged(other, one) == expected

    @pytest.mark.parametrize(
        ("pattern", "answer"), [("a", "yes"), ("b*", "no"), ("?", "partly"), ("d", None)]
    )
    def test_some_of_them_answer_the_question(self, judged, pattern, answer):
        assert judged((YES, NO), (OPEN,), (pattern,)) == ("mixed", answer)


class TestPublishing:
    def test_everything_is_in_one_folder(self, done, tmp_path):
        page = tmp_path / "page"
        published = publish(done, page=page)
        names = {str(path.relative_to(page)) for path in page.rglob("*") if path.is_file()}
        assert names == {
            "reproduction.html",
            "reproduction.json",
            "index.md",
            "toy.md",
            f"figures/{TOY}.png",
            f"figures/small/{TOY}.png",
            f"records/{TOY}.jsonl.xz",
        }
        assert {str(page / name) for name in names} == {*published.files}
        assert published.bytes == sum((page / name).stat().st_size for name in names)

    def test_verdicts_are_made_again_from_records(self, done, tmp_path, calculator):
        later = squares(calculator, judge=lambda results: pytest.fail("broken"))
        EXPERIMENTS[TOY] = later
        with pytest.raises(pytest.fail.Exception):
            publish(done, page=tmp_path / "page")

    def test_a_judge_that_raises_is_reported_on_the_page(self, done, tmp_path, calculator):
        def judge(results):
            raise ZeroDivisionError("no seeds")

        EXPERIMENTS[TOY] = squares(calculator, judge=judge)
        report = publish(done, page=tmp_path / "page").report
        (part,) = report.rows[1].parts
        assert part.problem == "ZeroDivisionError: no seeds"
        assert "no seeds" in (tmp_path / "page" / "reproduction.html").read_text("utf-8")

    def test_nothing_is_computed(self, done, tmp_path, calculator):
        before = len(calculator.calls)
        publish(done, page=tmp_path / "page")
        assert len(calculator.calls) == before

    def test_figures_and_records_that_are_gone_leave_the_folder(self, done, tmp_path, calculator):
        page = tmp_path / "page"
        publish(done, page=page)
        del EXPERIMENTS[TOY]
        (done / TOY / "small" / "verdict.json").unlink()
        publish(done, page=page)
        assert not list(page.rglob(f"{TOY}*"))

    def test_what_is_published_is_enough_to_judge_again(self, done, tmp_path, calculator):
        publish(done, page=tmp_path / "page")
        elsewhere = tmp_path / "elsewhere"
        unpack(tmp_path / "page" / "records", out=elsewhere)
        before = len(calculator.calls)
        (panel,) = reproduce(TOY, out=elsewhere, redraw=True).panels
        assert panel.outcome == "holds"
        assert len(calculator.calls) == before

    def test_a_folder_without_records_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match="holds no records"):
            publish(tmp_path, page=tmp_path / "page")
        assert not (tmp_path / "page").exists()
