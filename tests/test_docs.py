"""What the documents claim runs, and what the code cites is in the bibliography."""

from __future__ import annotations

import doctest
import re
import tomllib
from pathlib import Path

import pytest

from equipoise.cli.main import main

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md"])
ROOMS = sorted(path.stem for path in ROOT.glob("docs/reference/*.md") if path.stem != "index")


def sessions(page: Path) -> str:
    """All ``pycon`` blocks of a page, as one session."""
    blocks = re.findall(r"^```pycon\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return "\n".join(blocks)


@pytest.mark.parametrize("page", [p for p in PAGES if sessions(p)], ids=lambda page: page.name)
def test_sessions_of_the_documents_run(page):
    test = doctest.DocTestParser().get_doctest(sessions(page), {}, page.name, str(page), 0)
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert result.attempted > 0
    assert result.failed == 0


def test_a_wrong_session_would_fail(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```pycon\n>>> 1 + 1\n3\n```\n")
    test = doctest.DocTestParser().get_doctest(sessions(page), {}, "page", None, 0)
    assert doctest.DocTestRunner(verbose=False).run(test, out=lambda _: None).failed == 1


def test_every_citation_is_in_the_bibliography():
    known = set(
        re.findall(r"\*\*\[(\w+)\]\*\*", (ROOT / "docs/bibliography.md").read_text("utf-8"))
    )
    for path in sorted((ROOT / "src").rglob("*.py")):
        cited = set(re.findall(r"\[([a-z]+\d{4})\]", path.read_text("utf-8")))
        assert cited <= known, f"{path.name} cites {sorted(cited - known)}"


def test_the_theory_table_in_the_documents_is_what_the_command_prints(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    arguments = ["--activation", "relu", "tanh", "gelu", "--batch-size", "8", "64", "512"]
    assert main(["theory", *arguments]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    shown = (ROOT / "docs" / "theory.md").read_text("utf-8").splitlines()
    rows = [line for line in shown if re.match(r" (relu|tanh|gelu) ", line)]
    assert len(rows) == 9
    assert [row for row in rows if row not in printed] == []


def test_the_spectra_in_the_documents_are_what_the_command_prints(capsys):
    """Some rows, which are enough to notice a table that nobody made anew."""
    arguments = ["--activation", "identity", "hardswish", "gelu", "--batch-size", "4", "64"]
    assert main(["theory", "--spectrum", "--markdown", *arguments]) == 0
    *_, first, _, third, _, fifth, sixth = capsys.readouterr().out.splitlines()
    shown = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs" / "spectra.md").read_text("utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| activation")
    ]
    assert len({row[0] for row in shown}) >= 12
    assert {int(row[1]) for row in shown} >= {4, 5, 6, 10**6}
    for line in (first, third, fifth, sixth):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        row = next(row for row in shown if row[:2] == cells[:2])
        for ours, theirs in zip(cells[2:-2], row[2:-2], strict=True):
            assert float(ours) == pytest.approx(float(theirs), abs=1e-11)


def test_the_version_is_that_of_the_changelogs_first_section():
    """Of what is not released yet, a development version; the citation names the last release."""
    sections = re.findall(
        r"^## ([\d.]+)(?: \((.*)\))?$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    newest, date = sections[0]
    expected = f"{newest}.dev0" if date == "unreleased" else newest
    for folder in (ROOT, ROOT / "papers"):
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
        assert project["version"] == expected
    assert f"equipoise=={expected}" in project["dependencies"]
    released = next(section for section in sections if section[1] != "unreleased")
    cited = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f'version: {released[0]}\ndate-released: "{released[1]}"' in cited


def test_no_machine_path_or_registry_in_the_repository():
    marks = re.compile(r"/work/|/root/|pypi\.org/simple|find-links|extra-index")
    for path in [*ROOT.glob("*.*"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py")]:
        if path.is_file():
            assert not marks.search(path.read_text("utf-8")), path
