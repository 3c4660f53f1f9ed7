"""Every figure and table of the papers has its row, every experiment belongs to exactly one."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from equipoise_papers.report.papers import PAPERS
from equipoise_papers.reproduction.catalogue import EXPERIMENTS, FIGURES

ROOT = Path(__file__).parents[3]
ROWS = [(paper.key, row) for paper in PAPERS for row in paper.rows]
NAMED = Counter(name for _, row in ROWS for name in row.experiments)

# As counted in the papers' text: figures, then tables. yu2020's main text was not available.
FIGURES_AND_TABLES = {"yang2019": (6, 0), "santurkar2018": (14, 0), "lange2022": (9, 3)}


def missing(names, named):
    """Names that no row has, or more than one."""
    return {name for name in names if named[name] != 1}


def test_every_experiment_is_in_exactly_one_row():
    assert missing(EXPERIMENTS, NAMED) == set()


def test_an_experiment_without_a_row_or_in_two_would_be_found():
    assert missing(["none", "one", "two"], Counter(["one", "two", "two"])) == {"none", "two"}


def test_every_experiment_of_a_row_exists():
    assert sorted({*NAMED} - {*EXPERIMENTS}) == []


def test_whole_figures_are_made_of_panels_in_rows():
    assert {panel for _, panels in FIGURES.values() for panel in panels} <= {*NAMED}


@pytest.mark.parametrize(("key", "row"), ROWS, ids=[f"{key} {row.label}" for key, row in ROWS])
class TestEachRow:
    def test_it_has_an_experiment_or_says_why_not(self, key, row):
        assert bool(row.experiments) != bool(row.reason)

    def test_it_says_what_is_shown(self, key, row):
        assert row.shows.endswith(".")

    def test_its_experiments_are_of_its_paper(self, key, row):
        assert all(name.startswith(f"{key}.") for name in row.experiments)

    def test_what_it_points_to_is_a_row_with_an_experiment(self, key, row):
        seen = {other.label: other for paper, other in ROWS if paper == key}
        assert all(seen[label].experiments for label in row.see)


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.key)
def test_labels_are_unique(paper):
    assert len({row.label for row in paper.rows}) == len(paper.rows)


@pytest.mark.parametrize("key", FIGURES_AND_TABLES)
@pytest.mark.parametrize(("kind", "which"), [("Fig.", 0), ("Table", 1)])
def test_numbers_run_without_a_gap_and_in_order(key, kind, which):
    (paper,) = (paper for paper in PAPERS if paper.key == key)
    found = [re.match(rf"{re.escape(kind)} (\d+)", row.label) for row in paper.rows]
    numbers = [int(match[1]) for match in found if match]
    assert numbers == sorted(numbers)
    assert sorted({*numbers}) == list(range(1, FIGURES_AND_TABLES[key][which] + 1))


def test_every_paper_is_in_the_bibliography():
    known = (ROOT / "docs" / "bibliography.md").read_text("utf-8")
    assert all(f"**[{paper.key}]**" in known for paper in PAPERS)


def test_files_that_reasons_name_exist():
    named = {
        name.rstrip(".")
        for _, row in ROWS
        for name in re.findall(r"\b(?:tests|docs)/[\w./]+", row.reason)
    }
    assert named
    assert all((ROOT / name).exists() for name in named)
