"""Two replicas with 32 rows each train as one process does with 64; so do uneven shards."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support.bnp_problems import attached, batches, flat, mlp
from support.bnp_replicas import CASES, ROWS, STEPS

HERE = Path(__file__).parents[2] / "support"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two processes computed."""
    folder = tmp_path_factory.mktemp("replicas")
    result = folder / "result.pt"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
    processes = [
        subprocess.Popen(
            [sys.executable, HERE / "bnp_replicas.py", str(r), folder / "meet", result],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(2)
    ]
    try:
        for process in processes:
            _, error = process.communicate(timeout=100)
            assert process.returncode == 0, error
    finally:
        for process in processes:
            process.kill()
    return torch.load(result, weights_only=True)


def alone(case):
    name, options = CASES[case]
    return flat(attached(mlp(), name, batches(STEPS, rows=ROWS), **options)[0])


@pytest.mark.parametrize("case", CASES)
def test_replicas_are_one_process(found, case):
    torch.testing.assert_close(found[f"ddp {case}"], alone(case), rtol=0, atol=1e-13)


@pytest.mark.parametrize("case", ["sgd", "adamw"])
def test_shards_are_the_whole(found, case):
    torch.testing.assert_close(found[f"fsdp {case}"], alone(case), rtol=0, atol=1e-13)


def test_without_common_statistics_replicas_drift_apart(found):
    assert found["drift"] > 1e-4
    assert (found["statistics apart"] - alone("sgd")).abs().max() > 1e-4
