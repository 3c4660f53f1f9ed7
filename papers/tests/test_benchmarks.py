"""Benchmarks run; without ``--quick`` they also judge their claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.forked_ranks import printed_by

BENCHMARKS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))
# What each prints, among much else.
PRINTED = {
    "calibrate_trainability": "expected calibration error",
    "depth_limit_scatter": "another training",
    "faint_trainings": "networks known",
    "longer_trainings": "networks known",
    "soak": "| sweep | SIGKILL | 1 |",
    "stacked_training": "thousands/layer",
}


@pytest.mark.parametrize("script", BENCHMARKS, ids=lambda path: path.stem)
def test_benchmark_runs(script, tmp_path):
    """In a process of its own, because it forks."""
    assert PRINTED[script.stem] in printed_by(script, tmp_path, "--quick")


def test_there_are_benchmarks():
    assert [script.stem for script in BENCHMARKS] == sorted(PRINTED)
