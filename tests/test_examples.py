"""Examples run, and what each asserts in its last line holds."""

from __future__ import annotations

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise import BNP

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
# Of the optional ones: what must be installed, which is also the name of the extra.
NEEDS = {"huggingface_loop": ("transformers", "accelerate"), "lightning_loop": ("lightning",)}


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_holds(script):
    for package in NEEDS.get(script.stem, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"pip install equipoise[{script.stem.removesuffix('_loop')}]")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "BNP" in done.stdout


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
