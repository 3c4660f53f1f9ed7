"""Two replicas with 32 rows each train as one process does with 64; so do uneven shards."""

from pathlib import Path

import pytest
import torch

from support.bnp_problems import attached, batches, flat, mlp
from support.bnp_replicas import CASES, ROWS, STEPS
from support.forked_ranks import results_of

SCRIPT = Path(__file__).parents[2] / "support" / "bnp_replicas.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two processes computed."""
    return results_of(SCRIPT, tmp_path_factory.mktemp("replicas"))


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
