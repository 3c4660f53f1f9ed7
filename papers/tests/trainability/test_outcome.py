"""Progress beside a reference, on records written by hand."""

import math

import pytest

from equipoise_papers.trainability.looks import Look
from equipoise_papers.trainability.outcome import designs, outcomes
from equipoise_papers.trainability.training import PARTS, Curve, Trained, Training
from papers_support.trainability_examples import network, records, trained


@pytest.mark.parametrize(
    ("loss", "progress"), [(2.0, 0.0), (1.5, 0.5), (1.0, 1.0), (0.5, 1.5), (3.0, -1.0)]
)
def test_progress_is_the_share_of_what_the_reference_wins(loss, progress):
    (found,) = outcomes(records(network(depth=8), loss))
    assert found.progress == pytest.approx(progress)
    assert found.trained == (progress >= 0.5)


def test_the_better_optimiser_counts():
    deep = network(depth=8)
    results = {**records(deep, 1.8), Training(deep, "adamw", 100): trained(1.2)}
    (found,) = outcomes(results)
    assert found.progress == pytest.approx(0.8)
    assert found.by_optimizer == {"sgd": pytest.approx(0.2), "adamw": pytest.approx(0.8)}


def test_what_diverged_has_not_trained():
    deep = network(depth=8)
    diverged = Trained((Curve(1.0, (2.0, 2.0)),), 2.0)
    (found,) = outcomes({**records(deep, 1.0), Training(deep, "sgd", 100): diverged})
    assert found.progress == -math.inf
    assert not found.trained


def test_a_reference_that_learns_nothing_tells_nothing():
    assert outcomes(records(network(depth=8), 1.0, reference=1.9)) == ()


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_what_is_incomplete_is_left_out(missing):
    results = list(records(network(depth=8), 1.0).items())
    assert outcomes(dict(results))
    del results[missing]
    assert outcomes(dict(results)) == ()


def test_designs_are_grouped_and_ordered_by_depth():
    results = {}
    for one in (network(depth=8), network(depth=4), network(depth=6, seed=9)):
        results |= records(one, 1.0)
    assert all(isinstance(cell, Training | Look) for cell in results)
    groups = designs(outcomes(results))
    assert {seed: [o.network.depth for o in group] for seed, group in groups.items()} == {
        3: [4, 8],
        9: [6],
    }


class TestCurves:
    def test_the_end_counts(self):
        assert Curve(0.1, tuple(map(float, range(PARTS)))).reached == PARTS - 1.5

    def test_of_equal_ones_the_smaller_rate_is_best(self):
        same = (1.0,) * PARTS
        assert Trained((Curve(0.3, same), Curve(0.1, same)), 2.0).best.rate == 0.1
