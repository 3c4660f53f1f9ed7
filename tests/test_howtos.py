"""Every block of code of the how-tos and the tutorial runs, from top to bottom of its page."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import matplotlib
import pytest
import torch

from support.howtos import run, run_cells

FOLDER = Path(__file__).parents[1] / "docs" / "howto"
TUTORIALS = sorted(FOLDER.with_name("tutorial").glob("*.md"))
INDEX = FOLDER / "index.md"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path != INDEX)
NEEDS = {"huggingface": "transformers", "lightning": "lightning"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("nets", None)  # another test's
    yield tmp_path
    sys.modules.pop("nets", None)


@pytest.mark.filterwarnings("ignore")  # of packages, which readers see too
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_runs(page, folder):
    package = NEEDS.get(page.stem)
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"pip install equipoise[{page.stem}]")
    assert run(page, folder) >= 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(
    importlib.util.find_spec("myst_nb") is not None, reason="building the documents runs it"
)
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_shows_what_it_claims(page):
    matplotlib.use("agg")
    threads = torch.get_num_threads()
    try:
        assert run_cells(page) >= 5
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "block",
    [
        "```python\nassert 1 + 1 == 3\n```\n",
        "```console\n$ equipoise checkup nowhere.py:build\n```\n",
        "```console\n$ equipoise theory --activation relu --batch-size 8  # exit code 1\n```\n",
        "```bash\necho nobody knows how to run this\n```\n",
    ],
)
def test_a_wrong_block_would_fail(block, folder):
    page = folder / "page.md"
    page.write_text(block)
    with pytest.raises(AssertionError):
        run(page, folder)


def test_a_step_of_ci_that_was_tried_out_before_is_not_run_again(folder, monkeypatch):
    page, ran = folder / "page.md", []
    page.write_text(
        "```console\n$ equipoise theory\n$ equipoise theory  # exit code 2\n```\n"
        "```yaml\n- run: equipoise theory >> $SUMMARY\n- run: equipoise report\n```\n"
    )
    monkeypatch.setattr("support.howtos._run_command", ran.append)
    run(page, folder)
    assert ran == ["equipoise theory", "equipoise theory  # exit code 2", "equipoise report"]


def test_the_index_names_every_page():
    listed = re.findall(r"\{doc\}`(\w+)`", INDEX.read_text("utf-8"))
    assert sorted(listed) == [page.stem for page in PAGES]
