"""Every figure and table of the papers has its row, every experiment belongs to exactly one."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path

import pytest

from equipoise_papers.report.papers import PAPERS
from equipoise_papers.report.rows import Row
from equipoise_papers.reproduction.catalogue import EXPERIMENTS, FIGURES

ROOT = Path(__file__).parents[3]
ROWS = [(paper.key, row) for paper in PAPERS for row in paper.rows]
NAMED = Counter(name for _, row in ROWS for name in row.experiments)

# As counted in the papers' text: figures, then tables. yu2020's main text was not available.
FIGURES_AND_TABLES = {"yang2019": (6, 0), "santurkar2018": (14, 0), "lange2022": (9, 3)}


def missing(names, named):
    """Names that no row has, or more than one."""
    return {name for name in names if named[name] != 1}


# The benchmark of the library's verdict is in no paper.
OURS = {"trainability"}


def test_every_experiment_is_in_exactly_one_row():
    assert missing({*EXPERIMENTS} - OURS, NAMED) == set()


def test_an_experiment_without_a_row_or_in_two_would_be_found():
    assert missing(["none", "one", "two"], Counter(["one", "two", "two"])) == {"none", "two"}


def test_every_experiment_of_a_row_exists():
    assert sorted({*NAMED} - {*EXPERIMENTS}) == []


def test_whole_figures_are_made_of_panels_in_rows():
    assert {panel for _, panels in FIGURES.values() for panel in panels} <= {*NAMED}


def faults(rows):
    """What is wrong with rows, each given with its paper's key."""
    known = {(key, row.label): row for key, row in rows}
    found = []
    for key, row in rows:
        if bool(row.experiments) == bool(row.reason):
            found.append((row.label, "needs either an experiment or a reason"))
        if not row.shows.endswith("."):
            found.append((row.label, "does not say what is shown in a sentence"))
        strange = [name for name in row.experiments if not name.startswith(f"{key}.")]
        found += [(row.label, f"{name} is another paper's") for name in strange]
        for label in row.see:
            seen = known.get((key, label))
            if seen is None or not seen.experiments:
                found.append((row.label, f"{label} is no row with an experiment"))
    return found


def test_rows_have_no_faults():
    assert faults(ROWS) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"reason": "It is proved."}, "needs either"),
        ({"experiments": ()}, "needs either"),
        ({"shows": "A drawing"}, "in a sentence"),
        ({"experiments": ("two.fig1",)}, "two.fig1 is another paper's"),
        ({"see": ("Fig. 2",)}, "Fig. 2 is no row"),
        ({"see": ("Fig. 3",)}, "Fig. 3 is no row with an experiment"),
    ],
)
def test_a_fault_would_be_found(changes, fault):
    good = Row("Fig. 1", "A drawing.", ("one.fig1",))
    other = Row("Fig. 3", "Another.", reason="It measures nothing.")
    assert faults([("one", good), ("one", other)]) == []
    ((label, found),) = faults([("one", dataclasses.replace(good, **changes)), ("one", other)])
    assert label == "Fig. 1"
    assert fault in found


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.key)
def test_every_row_has_its_claim_and_no_words_are_quoted_twice(paper):
    assert {row.label for row in paper.rows} == paper.claims.keys()
    assert all(claim.question.endswith("?") for claim in paper.claims.values())
    quotes = [claim.quote for claim in paper.claims.values() if claim.quote]
    assert len(set(quotes)) == len(quotes)


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
    named |= {tested.test.split("::")[0] for _, row in ROWS for tested in row.tested}
    assert named
    assert all((ROOT / name).exists() for name in named)
