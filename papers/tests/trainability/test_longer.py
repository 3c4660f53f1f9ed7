"""Networks that did not train in the benchmark's steps, and do in more."""

import math

import pytest

from equipoise_papers.trainability import longer
from equipoise_papers.trainability.experiment import networks
from equipoise_papers.trainability.outcome import outcomes
from equipoise_papers.trainability.training import Training
from papers_support.trainability_examples import network, records


@pytest.fixture(scope="module")
def found():
    """One network that has trained, and two that have not."""
    results = {}
    for depth, loss in ((4, 1.0), (8, 1.9), (16, 2.0)):
        results |= records(network(depth=depth), loss)
    return sorted(outcomes(results), key=lambda one: one.network.depth)


def test_every_network_of_the_benchmark_has_a_key_of_its_own():
    every = networks("small")
    assert len({*map(longer.key, every)}) == len({*every})


def test_a_file_keeps_what_is_written_to_it(tmp_path):
    known = {"3-8": (0.1, 0.5), "3-16": (-math.inf, -2.0)}
    file = tmp_path / "longer.json"
    assert longer.read(file) == {}
    longer.write(file, known)
    assert longer.read(file) == known
    assert len(file.read_text().splitlines()) == len(known) + 2


def test_only_what_has_not_trained_is_trained_on(found):
    assert [one.network.depth for one in longer.missing(found, {})] == [8, 16]
    assert [one.network.depth for one in longer.missing(found, {"3-8": (0.0,)})] == [16]


def test_a_network_that_trains_later_has_trained(found):
    kept = longer.continued(found, {"3-8": (0.1, 0.6, 0.4), "3-16": (0.0, 0.2)})
    assert {one.network.depth: one.trained for one in kept} == {4: True, 8: True, 16: False}
    assert kept[1].progress == 0.6


def test_one_that_waits_for_its_training_is_left_out(found):
    kept = longer.continued(found, {"3-8": (0.6,)})
    assert [one.network.depth for one in kept] == [4, 8]


def test_a_long_training_begins_as_the_short_one(monkeypatch):
    monkeypatch.setattr(longer, "STEPS", 20)
    deep = network(depth=2)
    results = {
        Training(one, name, 20): Training(one, name, 20).run()
        for one in (deep, deep.reference)
        for name in ("sgd", "adamw")
    }
    chance = results[Training(deep, "adamw", 20)].chance
    best = min(record.best.reached for cell, record in results.items() if cell.network != deep)
    first = min(
        curve.losses[0]
        for curve in results[Training(deep, "adamw", 20)].curves
        if curve.rate in longer.RATES
    )
    monkeypatch.setattr("equipoise_papers.trainability.outcome._LEAST_SPAN", 0.0)
    progress = longer.progress_of(deep, results)
    assert len(progress) == 10
    assert progress[0] == pytest.approx((chance - first) / (chance - best), rel=1e-3)
