"""A reproduction as a page: what it says first, and that it is whole, valid and escaped."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from equipoise.records import from_plain
from equipoise_papers.experiments.verdict import ours
from equipoise_papers.report import pictures
from equipoise_papers.report import words as digest
from equipoise_papers.report.page import render_reproduction, save_reproduction
from equipoise_papers.report.record import ReportPaper, ReproductionReport
from papers_support.reproduction_examples import (
    FAILS,
    HOLDS,
    OPEN,
    REPORTS,
    part,
    picture,
    row,
    verdict,
    whole,
)
from support.pages import Outline, words


@pytest.fixture(params=REPORTS.values(), ids=REPORTS, scope="module")
def report(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(report):
    return render_reproduction(report)


class TestThePage:
    def test_it_is_whole_and_valid(self, page):
        outline = Outline(page)
        ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        links = [link["href"] for link in outline.all("a")]
        assert {link.removeprefix("#") for link in links} <= set(ids)
        labels = {a["aria-labelledby"] for _, a in outline.tags if "aria-labelledby" in a}
        assert labels <= set(ids)
        assert not outline.all("script")
        assert page.encode("utf-8")

    def test_pictures_are_part_of_it(self, page):
        for image in Outline(page).all("img"):
            assert image["src"].startswith("data:image/png;base64,")
            assert image["alt"]
            assert (int(image["width"]), int(image["height"])) == (896, 672)

    def test_every_row_is_there_and_linked_from_the_top(self, report, page):
        links = [link["href"] for link in Outline(page).all("a")]
        for paper in report.papers:
            for shown in paper.rows:
                assert f"#{paper.key}-{digest.slug(shown.label)}" in links

    def test_two_renderings_are_equal(self, report, page):
        assert render_reproduction(report) == page

    def test_the_facts_are_there(self, tmp_path):
        text = words(render_reproduction(whole(tmp_path)))
        for fact in (
            "2 claims hold, 1 is partly open, 1 is mixed, 1 fails",
            "of 9 figures, tables and statements of 2 papers; 4 not finished or judged.",
            "Experiments run 7 of 9",
            "Settings 4 same setting, 0 reduced, 0 stand-in data",
            "1 of 3 holds, 2 refuted.",
            "Refuted: by two orders of magnitude: a factor 3.2.",
            "“words of Fig. 1” (Section 2)",
            "7 of 12 cells are finished; a claim is never judged by part of its numbers.",
            "Its records could not be drawn or judged: ValueError: no seeds",
            "Not run at scale small.",
            "scale small, 12 cells, 8 min",
            "equipoise reproduce one.fig1 --scale small",
            "As in Fig. 1. See Fig. 1 .",
            "OSError: no",
            "2026-11-21 10:39 UTC",
        ):
            assert fact in text

    def test_many_checks_are_folded(self, tmp_path):
        shown = part("one.fig1", verdict("one.fig1", (*(HOLDS,) * 9, FAILS)))
        paper = ReportPaper("one", "A Paper", "Nobody.", (), (), (row("Fig. 1", "mixed", shown),))
        report = dataclasses.replace(whole(tmp_path), papers=(paper,))
        text = words(render_reproduction(report))
        assert "2 more checks: 1 ✔, 1 ✖" in text
        assert text.count(FAILS.claim) == 2  # as what decides, and in the list

    def test_no_folder_of_the_machine_is_shown(self, tmp_path):
        assert "/home/me" not in render_reproduction(whole(tmp_path))

    def test_hostile_texts_are_escaped(self, tmp_path):
        page = render_reproduction(REPORTS["hostile"](tmp_path))
        assert not Outline(page).all("img")
        assert "\x1b" not in page
        assert "{{ 7 * 7 }}" in page


def test_it_is_stored_whole(tmp_path):
    report = whole(tmp_path)
    data, page = save_reproduction(report, tmp_path / "new")
    assert from_plain(ReproductionReport, json.loads(data.read_text("utf-8"))) == report
    assert page.read_text("utf-8") == render_reproduction(report)


class TestTheWords:
    @pytest.mark.parametrize(
        ("checks", "sentence"),
        [
            ((HOLDS,), "Holds: BN trains faster: 0.43 ± 0.01 against 1.01 ± 0.2."),
            (
                (HOLDS, OPEN),
                "Undecided: BN generalises better: 83.1 ± 0.9 % against 82.7 ± 0.8 %.",
            ),
            ((HOLDS, OPEN, FAILS), "Refuted: by two orders of magnitude: a factor 3.2."),
            ((HOLDS, ours(FAILS)), "Holds: BN trains faster: 0.43 ± 0.01 against 1.01 ± 0.2."),
            (
                (ours(HOLDS),),
                "The source claims nothing here that could be judged; we add checks of ours.",
            ),
            ((), "Nothing is judged at scale small."),
        ],
    )
    def test_why(self, checks, sentence):
        found = part("a.fig1", verdict("a.fig1", checks))
        assert digest.why(found, "small") == sentence

    def test_what_became_of_the_other_sentences(self):
        """Those of ours are left out, tolerances too, and more than fit are counted."""
        many = tuple(
            dataclasses.replace(HOLDS, claim=f"sentence {n} (within {n} %)") for n in range(14)
        )
        checks = (FAILS, dataclasses.replace(FAILS, claim="twice (a factor 2)"), ours(OPEN), *many)
        found = row("Fig. 1", "mixed", checks=checks, reason="Judged by tests.")
        assert digest.reason(found, "small") == (
            "Refuted: by two orders of magnitude: a factor 3.2. Refuted too: twice. Holds: "
            f"{'; '.join(f'sentence {n}' for n in range(12))}; 2 more."
        )

    def test_what_answers_the_question_comes_first(self):
        """With its numbers, and those of the sentence that decides the claim."""
        found = row("Fig. 1", "mixed", checks=(FAILS, OPEN, HOLDS))
        asked = dataclasses.replace(found.claim, answered_by=(HOLDS.claim,))
        text = digest.reason(dataclasses.replace(found, claim=asked), "small")
        assert text.startswith(
            f"Holds: {HOLDS.claim}: {HOLDS.found}. Refuted: {FAILS.claim}: {FAILS.found}. Und"
        )

    def test_a_part_that_is_not_finished_is_told(self):
        unfinished = verdict("one.fig2", (), outcome="incomplete", finished=5)
        found = row(
            "Fig. 1",
            "incomplete",
            part("one.fig1", verdict("one.fig1", (HOLDS,))),
            part("one.fig2", unfinished),
        )
        assert "5 of 12 cells are finished" in digest.reason(found, "small")

    def test_nothing_judged_is_not_zero_reproduced(self, tmp_path):
        assert digest.sentence(REPORTS["empty"](tmp_path)) == "Nothing is judged yet"

    def test_choices_of_several_experiments_are_told_once(self, tmp_path):
        report = whole(tmp_path)
        (first, _) = report.papers
        (shared,) = digest.shared_choices(first)
        assert shared == "Fashion-MNIST in place of CIFAR-10"
        assert digest.who_made(first, shared) == "1, 2 left, 4"
        assert words(render_reproduction(report)).count("in place of CIFAR-10") == 2
        assert digest.own_choices(first.rows[0].parts[0], digest.shared_choices(first)) == (
            "a choice of one.fig1",
        )

    def test_the_time_of_a_row_is_that_of_its_parts(self):
        both = row("Fig. 1", "mixed", part("a", verdict("a")), part("b", verdict("b")))
        assert digest.seconds(both) == "16 min"
        assert digest.seconds(row("Fig. 1", "not run", part("a"))) == ""


class TestPictures:
    def test_few_colours_take_less_room_and_keep_the_size(self, tmp_path):
        source = tmp_path / "figure.png"
        source.write_bytes(picture())
        small = pictures.reduced(source)
        assert len(small) < len(source.read_bytes())
        assert pictures.size(small) == (896, 672)

    def test_the_same_picture_gives_the_same_bytes(self, tmp_path):
        source = tmp_path / "figure.png"
        source.write_bytes(picture())
        assert pictures.reduced(source) == pictures.reduced(source)

    def test_an_address_holds_the_picture(self):
        assert re.fullmatch(r"data:image/png;base64,AAEC", pictures.inline(bytes([0, 1, 2])))
