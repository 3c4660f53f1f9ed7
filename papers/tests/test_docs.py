"""The sessions and scripts of the papers' documents run; what the code cites is known."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

PAPERS = Path(__file__).parents[1]
PAGES = sorted([*PAPERS.glob("docs/**/*.md"), PAPERS / "README.md"])


def blocks(page: Path, language: str) -> list[str]:
    pattern = rf"^```{language}\n(.*?)^```"
    return re.findall(pattern, page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p, "pycon")], ids=lambda page: page.name
)
def test_sessions_run(page):
    """All blocks of a page are one session."""
    session = "\n".join(blocks(page, "pycon"))
    test = doctest.DocTestParser().get_doctest(session, {}, page.name, str(page), 0)
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_script_of_a_big_training_runs_and_resumes(tmp_path, monkeypatch, capsys):
    (script,) = blocks(PAPERS / "docs" / "training.md", "python")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        exec(script.replace("steps=400", "steps=60"), {})
    first, second = capsys.readouterr().out.strip().split("one process: ")[1:]
    assert first.startswith("128 samples a step.\nBatch norm: statistics over all 128 samples.\n")
    assert first.strip() == second.strip()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits.pt", "digits.pt.previous"]


def test_every_citation_is_in_the_bibliography():
    text = (PAPERS.parent / "docs" / "bibliography.md").read_text("utf-8")
    known = set(re.findall(r"\*\*\[(\w+)\]\*\*", text))
    for path in sorted((PAPERS / "src").rglob("*.py")):
        cited = set(re.findall(r"\[([a-z]+\d{4})\]", path.read_text("utf-8")))
        assert cited <= known, f"{path.name} cites {sorted(cited - known)}"


@pytest.mark.parametrize(
    "folder", ["big", "stacked", "santurkar2018.one_unit", "yu2020.expected_spectra"]
)
def test_every_public_name_has_a_docstring(folder):
    module = importlib.import_module(f"equipoise_papers.{folder}")
    for name in module.__all__:
        member = getattr(module, name)
        if inspect.isclass(member) or inspect.isfunction(member):
            assert (member.__doc__ or "").strip(), f"{folder}.{name} has no docstring"


def test_no_machine_path_or_registry_in_the_papers():
    marks = re.compile(r"/work/|/root/|pypi\.org/simple|find-links|extra-index")
    for pattern in ("*.*", "docs/**/*.md", "src/**/*.py", "benchmarks/*.py"):
        for path in PAPERS.glob(pattern):
            if path.is_file():
                assert not marks.search(path.read_text("utf-8")), path
