"""The pages of questions and of old and new verdicts say what the index says."""

from __future__ import annotations

import re
from fnmatch import filter as filter_names
from pathlib import Path

import pytest

from equipoise_papers.report.papers import PAPERS

DOCS = Path(__file__).parents[1] / "docs"
_LINK = re.compile(r"\[([^\]]+)\]\((?:reproduction/)?(\w+\.md#[\w-]+)\)")


def cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def index():
    """Cells of every row of the index, by its address, as a reader sees them."""
    text = (DOCS / "reproduction" / "index.md").read_text("utf-8")
    found = {}
    for line in text.splitlines():
        if line.startswith("| [") and (link := _LINK.match(line, 2)):
            found[link[2]] = [re.sub(r"\\(.)", r"\1", cell) for cell in cells(line)]
    return found


def table(name):
    text = (DOCS / name).read_text("utf-8")
    return [cells(line) for line in text.splitlines() if line.startswith("| ") and "](" in line]


def published_checks(paper):
    """What was checked in each row, as its page says it."""
    found = {}
    for line in (DOCS / "reproduction" / f"{paper.key}.md").read_text("utf-8").splitlines():
        text = re.sub(r"\\(.)", r"\1", line)
        if line.startswith("## "):
            label = text[3:]
        elif line.startswith("| ") and not line.startswith("| Check |"):
            found.setdefault(label, []).append(re.sub(r"\\(.)", r"\1", cells(line)[0]))
    return found


QUESTIONS = table("questions.md")


def test_there_are_twenty():
    assert len(QUESTIONS) == 20
    assert all(question.endswith("?") for question, _, _ in QUESTIONS)


@pytest.mark.parametrize(("question", "answer", "rows"), QUESTIONS, ids=lambda text: text[:40])
def test_the_index_answers(question, answer, rows):
    """It has the rows, their outcomes, and the words that the answer rests on."""
    named = re.findall(r"\]\(reproduction/(\w+\.md#[\w-]+)\) \*\*([\w ]+)\*\*", rows)
    assert named
    for address, outcome in named:
        assert f"**{outcome}**" in index()[address][2]
    shown = " ".join(" ".join(index()[address]) for address, _ in named)
    quoted = re.findall(r"“([^”]+)”", answer)
    assert quoted
    assert [words for words in quoted if words not in shown] == []


def test_every_row_has_its_old_and_its_new_verdict():
    rows = {}
    for row, _, now, setting, why in (line for line in table("verdicts.md") if len(line) == 5):
        link = _LINK.match(row)
        assert link
        rows[link[2]] = (now, setting)
        assert why
    expected = {
        address: (outcome.split("**")[1], fidelity)
        for address, (_, _, outcome, fidelity, _) in index().items()
    }
    assert rows == expected


def test_every_open_row_has_a_reason_and_a_price():
    prices = [line for line in table("verdicts.md") if len(line) == 3]
    named = {address for rows, _, _ in prices for _, address in _LINK.findall(rows)}
    assert all(why and price for _, why, price in prices)
    outcomes = {address: outcome for address, (_, _, outcome, _, _) in index().items()}
    open_ = {a for a, outcome in outcomes.items() if "open**" in outcome or "undecided" in outcome}
    assert open_
    assert open_ - named == set()
    assert not any("**holds**" in outcomes[address] for address in named)


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.key)
def test_every_question_is_answered_by_checks_that_there_are(paper):
    """A pattern without a check would leave its question open."""
    checks = published_checks(paper)
    asked = [(label, p) for label, claim in paper.claims.items() for p in claim.answered_by]
    assert asked
    unanswered = [(label, p) for label, p in asked if not filter_names(checks[label], p)]
    assert unanswered == []
