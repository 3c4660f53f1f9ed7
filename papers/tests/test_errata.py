"""The page of errata: anchors can be cited, what it names exists, and reports lead to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from equipoise_papers.report.papers import PAPERS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "papers" / "docs" / "errata.md").read_text("utf-8")
ANCHORS = re.findall(r"^\(([\w-]+)\)=$", TEXT, re.MULTILINE)


def lost(names):
    """Paths of tests that are not there."""
    return [name for name in names if not (ROOT / name).exists()]


def test_anchors_are_unique():
    assert len(ANCHORS) > 30
    assert len(set(ANCHORS)) == len(ANCHORS)


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.key)
def test_what_a_report_names_is_there(paper):
    assert paper.key in ANCHORS
    assert paper.found
    assert {one.anchor for one in paper.found} <= {*ANCHORS}


def test_every_test_that_is_named_is_there():
    named = {*re.findall(r"`((?:papers/)?tests/[\w./]+)`", TEXT)}
    assert len(named) > 10
    assert lost(named) == []
    assert lost(["tests/theory/test_that_nobody_wrote.py"]) != []


def test_links_within_the_page_lead_somewhere():
    assert {*re.findall(r"\]\(#([\w-]+)\)", TEXT)} <= {*ANCHORS}
