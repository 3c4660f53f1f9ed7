"""Benchmarks run; without ``--quick`` they also judge their claims."""

from __future__ import annotations

import runpy
import sys
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


# In processes of their own, with more options; the sweep is killed in the middle, not at its end.
FORKING = {"soak": ("--seed", "5"), "stacked_training": ()}


@pytest.mark.parametrize("script", BENCHMARKS, ids=lambda path: path.stem)
def test_benchmark_runs(script, tmp_path, monkeypatch, capsys):
    if script.stem in FORKING:
        printed = printed_by(script, tmp_path, "--quick", *FORKING[script.stem])
    else:  # in this one, which has imported what they import
        monkeypatch.setattr(sys, "argv", [str(script), "--quick"])
        runpy.run_path(str(script), run_name="__main__")
        printed = capsys.readouterr().out
    assert PRINTED[script.stem] in printed


def test_there_are_benchmarks():
    assert [script.stem for script in BENCHMARKS] == sorted(PRINTED)
