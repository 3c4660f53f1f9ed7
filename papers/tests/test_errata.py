"""The page of errata: anchors can be cited, the tests it names run, and reports lead to it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from equipoise_papers.report.papers import PAPERS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "papers" / "docs" / "errata.md").read_text("utf-8")
ANCHORS = re.findall(r"^\(([\w-]+)\)=$", TEXT, re.MULTILINE)
# A pytest id or a path, or the last one's file; perhaps a word for -k.
NAMED = re.compile(r"(?:`((?:papers/)?tests/[^`]+)`|[Ss]ame\s+file)(?:,\s+`([^`/]+)`)?")


@dataclass(frozen=True)
class Named:
    """Tests that the page names: ``pytest "ID"``, or ``pytest FILE -k WORD``."""

    id: str
    word: str = ""

    @property
    def path(self) -> str:
        return self.id.split("::", 1)[0]

    def selects(self, collected: str) -> bool:
        """Whether pytest, run as the page says, would run a collected test."""
        if not collected.startswith(self.id) or self.word.lower() not in collected.lower():
            return False
        rest = collected.removeprefix(self.id)
        return self.id.endswith("/") or rest == "" or rest.startswith(("::", "["))


def named_in(text: str) -> list[Named]:
    """All tests that a text names, in order."""
    found: list[Named] = []
    for written, word in NAMED.findall(text):
        found.append(Named(written or found[-1].path, word))
    return found


def collected_from(paths: set[str]) -> list[str]:
    """Ids of all tests there, as pytest writes them; none is run."""
    options = ["--collect-only", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *sorted(paths)]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_anchors_are_unique():
    assert len(ANCHORS) > 30
    assert len(set(ANCHORS)) == len(ANCHORS)


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.key)
def test_what_a_report_names_is_there(paper):
    assert paper.key in ANCHORS
    assert paper.found
    assert {one.anchor for one in paper.found} <= {*ANCHORS}


def test_every_entry_names_a_test_or_says_that_there_is_none():
    entries = re.split(r"^\([\w-]+\)=\n(?=\*\*)", TEXT, flags=re.MULTILINE)[1:]
    assert len(entries) > 30
    silent = [
        entry.splitlines()[0]
        for entry in entries
        if not NAMED.search(entry) and "*No test" not in entry
    ]
    assert silent == []


def missing_from(collected: list[str], named: list[Named]) -> list[Named]:
    return [each for each in named if not any(map(each.selects, collected))]


def test_every_test_that_is_named_runs(request):
    """Among the tests of this run, or if it leaves some out, those of their files."""
    named = named_in(TEXT)
    assert len(named) > 40
    if missing := missing_from([item.nodeid for item in request.session.items], named):
        assert missing_from(collected_from({each.path for each in missing}), missing) == []


def test_words_for_pytest_are_words():
    """`-k "Theorem 4.1"` is a syntax error."""
    assert [each for each in named_in(TEXT) if each.word and not each.word.isidentifier()] == []


@pytest.mark.parametrize(
    ("named", "selected"),
    [
        (Named("tests/test_a.py::TestB::test_c"), True),
        (Named("tests/test_a.py::TestB::test_c[d e]"), True),
        (Named("tests/test_a.py::TestB"), True),
        (Named("tests/test_a.py"), True),
        (Named("tests/"), True),
        (Named("tests/test_a.py", "testb"), True),
        (Named("tests/test_a.py", "other"), False),
        (Named("tests/test_a.py::TestB::test_c[d]"), False),
        (Named("tests/test_a.py::TestB::test"), False),
        (Named("tests/test_a.py::Test"), False),
        (Named("tests/test"), False),
    ],
)
def test_what_a_name_selects(named, selected):
    assert named.selects("tests/test_a.py::TestB::test_c[d e]") == selected


def test_names_are_read_with_their_file():
    text = "Shown by `tests/a.py::test_b[c d]`, `tests/e.py`, `word`. Same\nfile, `Other`; `BNP`."
    assert named_in(text) == [
        Named("tests/a.py::test_b[c d]"),
        Named("tests/e.py", "word"),
        Named("tests/e.py", "Other"),
    ]


def test_links_within_the_page_lead_somewhere():
    assert {*re.findall(r"\]\(#([\w-]+)\)", TEXT)} <= {*ANCHORS}
