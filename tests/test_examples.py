"""Examples run, and what each asserts in its last line holds."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path

import pytest

from equipoise import BNP

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
# Of the optional ones: what must be installed, which is also the name of the extra.
NEEDS = {"huggingface_loop": ("transformers", "accelerate"), "lightning_loop": ("lightning",)}


# In this process, because loading the packages takes longer than the trainings.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_holds(script, tmp_path, monkeypatch, capsys):
    for package in NEEDS.get(script.stem, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"pip install equipoise[{script.stem.removesuffix('_loop')}]")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    assert "BNP" in capsys.readouterr().out


def test_without_bnp_the_claim_fails(monkeypatch):
    """The one new line does nothing here."""
    monkeypatch.setattr(BNP, "attach", lambda bnp, optimizer: bnp.detach())
    script = next(path for path in EXAMPLES if path.stem == "plain_loop")
    with pytest.raises(AssertionError):
        runpy.run_path(str(script), run_name="__main__")


def test_examples_are_short():
    assert {path.stem for path in EXAMPLES} >= {"plain_loop", *NEEDS}
    for path in EXAMPLES:
        assert len(path.read_text("utf-8").splitlines()) <= 60, path.name
