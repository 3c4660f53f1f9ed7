"""Benchmarks run; without ``--quick`` they also judge their claims."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", BENCHMARKS, ids=lambda path: path.stem)
def test_benchmark_runs(script):
    done = subprocess.run(
        [sys.executable, script, "--quick"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "thousands/layer" in done.stdout


def test_there_are_benchmarks():
    assert [script.stem for script in BENCHMARKS] == ["stacked_training"]
