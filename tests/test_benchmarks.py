"""Benchmarks run and their claims hold; times are printed, never asserted here."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


# In this process, because loading PyTorch takes longer than most of them.
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("script", BENCHMARKS, ids=lambda path: path.stem)
def test_benchmark_runs(script, monkeypatch, capsys):
    monkeypatch.syspath_prepend(script.parent)  # as Python does for a script
    monkeypatch.setattr(sys, "argv", [str(script), "--quick"])
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out
