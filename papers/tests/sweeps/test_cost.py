"""What a grid costs follows from a few steps of a few cells, on a clock that the cells move."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from equipoise_papers.sweeps import cost as module
from equipoise_papers.sweeps.cell import Cell, Excerpt, Work
from equipoise_papers.sweeps.cost import cost
from equipoise_papers.sweeps.store import CellStore


@dataclass(frozen=True, slots=True)
class Done:
    steps: int


class Clock:
    now = 0.0
    runs = 0

    def perf_counter(self):
        return self.now

    process_time = perf_counter


clock = Clock()


@dataclass(frozen=True, slots=True)
class Timed(Cell[Done]):
    """A training of half a second, and what its steps and looks take besides."""

    steps: int
    looks: int
    a_step: float
    seed: int = 0

    def excerpt(self, steps):
        return Excerpt(replace(self, steps=steps, looks=1), self.steps, self.looks)

    def run(self):
        clock.runs += 1
        clock.now += 0.5 + self.a_step * self.steps + 0.2 * self.looks
        return Done(self.steps)


class Whole(Timed):
    """No training: it is computed whole."""

    def excerpt(self, steps):
        return None


@dataclass(frozen=True, slots=True)
class Deep(Cell[Done]):
    """A training whose steps take 1 ms a layer and 1 µs an operation."""

    steps: int
    depth: int
    width: int = 64
    seed: int = 0

    def excerpt(self, steps):
        return Excerpt(replace(self, steps=steps), self.steps, 1)

    def work(self):
        calls = self.steps * self.depth
        return Work(calls, calls * self.width**2)

    def run(self):
        clock.runs += 1
        clock.now += 0.01 * self.depth + self.true_seconds
        return Done(self.steps)

    @property
    def true_seconds(self):
        calls = self.steps * self.depth
        return 1e-3 * calls + 1e-6 * calls * self.width**2


class Broken(Timed):
    def run(self):
        raise ValueError("its data are not there")


@pytest.fixture(autouse=True)
def time(monkeypatch):
    clock.now, clock.runs = 0.0, 0
    monkeypatch.setattr(module, "time", clock)


@pytest.fixture
def store(tmp_path):
    return CellStore(tmp_path, "toy.timed")


def test_steps_and_looks_are_extrapolated(store):
    """The start counts with every look, which is too much rather than too little."""
    cells = [Timed(1000, 10, 0.1, seed) for seed in range(100)]
    found = cost(store, cells, patience=60.0)
    assert found.value == pytest.approx(100 * (1000 * 0.1 + 10 * 0.7))
    assert found.value >= 100 * (0.5 + 1000 * 0.1 + 10 * 0.2)
    assert found.error == pytest.approx(0, abs=1e-6)
    assert found.method == "8 of 100 cells timed"
    assert not list(store.path(cells[0]).parent.glob("*.json"))


def test_cells_of_other_sizes_are_looked_at_too(store):
    """Deep networks at the end of a grid are not priced as the shallow ones before them."""
    cells = [Timed(1000, 1, 0.001 * (1 + place), place) for place in range(100)]
    truth = sum(0.5 + 0.2 + 1000 * cell.a_step for cell in cells)
    found = cost(store, cells)
    assert abs(found.value - truth) < 2 * found.error
    assert abs(found.value - truth) < 0.2 * truth
    first = 100 * (0.7 + 1000 * cells[0].a_step)
    assert first < 0.1 * truth


def test_impatience_ends_after_one_cell(store):
    found = cost(store, [Timed(1000, 1, 3.0, seed) for seed in range(100)], patience=1.0)
    assert clock.runs == 3  # to load data, and twice to tell steps from the rest
    assert found.method == "1 of 100 cells timed"


def test_what_is_no_training_is_kept(store):
    cells = [Whole(10, 0, 0.1, seed) for seed in range(20)]
    cost(store, cells)
    assert sum(store.finished(cell) is not None for cell in cells) == 8


def test_a_cell_that_cannot_be_computed_says_why(store):
    with pytest.raises(ValueError, match="its data are not there"):
        cost(store, [Broken(10, 1, 0.1)])


@pytest.mark.parametrize("width", [8, 64, 256])
def test_deep_cells_follow_from_shallow_ones(store, width):
    """The deepest network alone takes longer to time than there is patience for."""
    depths = (10, 20, 40, 80, 160, 320, 640, 1280)
    cells = [Deep(1000, depth, width, seed) for depth in depths for seed in range(7)]
    found = cost(store, cells, patience=24.0)
    truth = sum(cell.true_seconds for cell in cells)
    assert found.value == pytest.approx(truth, rel=0.02)
    assert found.error < 0.05 * truth
    assert clock.now < 30.0


def test_the_error_tells_that_work_is_not_all(store):
    """Cells that take up to twice as long as their work says are no better known than that."""

    class Moody(Deep):
        @property
        def true_seconds(self):
            return Deep.true_seconds.fget(self) * (1 + self.seed % 2)

    cells = [Moody(1000, 10 + seed, 8, seed) for seed in range(100)]
    found = cost(store, cells)
    assert found.error > 0.2 * found.value


def test_every_kind_is_estimated_by_itself(store):
    """Many quick predictions do not make the few trainings cheap.

    Cells that are computed whole take no time on a real clock.
    """
    trainings = [Deep(1000, depth) for depth in (10, 20, 40)]
    predictions = [Whole(1, 0, 0.001, seed) for seed in range(1000)]
    found = cost(store, [*predictions, *trainings])
    truth = sum(cell.true_seconds for cell in trainings)
    assert found.value == pytest.approx(truth, rel=0.02)
