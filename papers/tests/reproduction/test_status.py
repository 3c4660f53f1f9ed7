"""The status of a sweep counts every cell once and extrapolates from finished ones."""

import math
import random
import statistics

import pytest

from equipoise_papers.reproduction.catalogue import EXPERIMENTS
from equipoise_papers.reproduction.folders import cell_store
from equipoise_papers.reproduction.status import _time_left, sweep_status
from equipoise_papers.sweeps.cell import Result
from papers_support.toy_experiments import Number, Square, squares


def cells(scale):
    return tuple(
        Number(float(value)) for value in range({"smoke": 2, "small": 5, "paper": 9}[scale])
    )


@pytest.fixture
def store(calculator, monkeypatch, tmp_path):
    experiment = squares(calculator, cells=cells)
    monkeypatch.setitem(EXPERIMENTS, experiment.name, experiment)
    store = cell_store(experiment, tmp_path)
    store.prepare()
    return store


def test_every_cell_is_counted_once(store, tmp_path):
    for value, seconds in [(2.0, 1.0), (3.0, 3.0)]:
        store.save(Result(Number(value), Square(value**2), None, seconds))
    store.save(Result(Number(4.0), None, "no", 0.5))
    small, paper = sweep_status(tmp_path).rows  # no cell of smoke was begun
    assert [
        (row.scale, row.cells, row.finished, row.failed, row.missing) for row in (small, paper)
    ] == [
        ("small", 5, 2, 1, 2),
        ("paper", 9, 2, 1, 6),
    ]
    assert small.seconds == 4.5
    assert small.left.value == 3 * 2.0
    assert paper.left.value == 7 * 2.0


def test_nothing_finished_gives_no_estimate(store, tmp_path):
    store.save(Result(Number(4.0), None, "no", 0.5))
    assert sweep_status(tmp_path).rows[0].left is None


def test_an_experiment_of_another_version_is_named(store, tmp_path):
    (tmp_path / "toy.cubes" / "cells").mkdir(parents=True)
    assert sweep_status(tmp_path).unknown == ("toy.cubes",)


def test_a_folder_without_records(tmp_path):
    with pytest.raises(ValueError, match="holds no records"):
        sweep_status(tmp_path)


class TestTimeLeft:
    def test_one_cell_tells_nothing_about_the_spread(self):
        assert _time_left([2.0], 3).value == 6.0
        assert math.isinf(_time_left([2.0], 3).error)

    def test_nothing_left_takes_no_time(self):
        assert (_time_left([2.0], 0).value, _time_left([2.0], 0).error) == (0.0, 0.0)

    def test_the_error_is_the_deviation_of_what_the_rest_takes(self):
        """Over 4000 sweeps of 20 + 30 cells, the misses have Student's variance, 19/17."""
        times, misses = random.Random(0), []
        for _ in range(4000):
            seconds = [times.gauss(5.0, 1.0) for _ in range(50)]
            estimate = _time_left(seconds[:20], 30)
            misses.append((sum(seconds[20:]) - estimate.value) / estimate.error)
        excess = statistics.variance(misses) - 19 / 17
        assert abs(excess) < 3 * 19 / 17 * math.sqrt((2 + 6 / 15) / 4000)  # kurtosis 6/(19 − 4)
