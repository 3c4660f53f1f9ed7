"""A tiny cell of the benchmark."""

import math

import pytest
import torch

from equipoise_papers.trainability.looks import Look
from equipoise_papers.trainability.training import PARTS, RATES, Training
from papers_support.trainability_examples import network

CELL = Training(network(depth=1), "sgd", 20)


@pytest.fixture(scope="module")
def record():
    return CELL.run()


def test_every_rate_has_its_curve(record):
    assert tuple(curve.rate for curve in record.curves) == RATES["sgd"]
    assert record.chance == pytest.approx(math.log(10), rel=0.01)


def test_it_learns(record):
    assert record.best.reached < 0.8 * record.chance
    assert len(record.best.losses) == PARTS


def test_losses_are_finite(record):
    assert all(math.isfinite(loss) for curve in record.curves for loss in curve.losses)


def test_it_is_reproducible_and_leaves_the_random_state(record):
    before = torch.get_rng_state()
    assert CELL.run() == record
    assert torch.equal(before, torch.get_rng_state())


def test_divergence_is_a_record():
    wild = Training(network(norm="none", fault="saturated", depth=40, gain=3.0), "sgd", 20).run()
    last = wild.curves[-1]
    assert len(last.losses) < PARTS
    assert last.reached == math.inf


def test_a_look_is_finite_and_knows_all_scores():
    found = Look(network()).run()
    assert set(found.predicted) == set(found.measured)
    assert all(map(math.isfinite, [*found.measured.values(), *found.scores.values()]))
