"""A kind of cell names its record's class, and is identified by its fields alone."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest

from equipoise_papers.sweeps.cell import Cell, compute
from equipoise_papers.sweeps.store import CellStore


@dataclass(frozen=True, slots=True)
class Root(Cell[float]):
    square: float

    def run(self):
        return self.square**0.5


@dataclass(frozen=True, slots=True)
class Weight(Cell[tuple]):
    square: float

    def run(self):
        return (self.square,)


class Special(Root):
    """A kind of a kind."""


def test_the_record_s_class_is_the_type_argument():
    assert (Root.record_type, Weight.record_type, Special.record_type) == (float, tuple, float)


def test_a_kind_without_one_is_refused():
    with pytest.raises(TypeError, match=r"write class Nameless\(Cell\[R\]\)"):

        class Nameless(Cell):
            pass


def test_a_kind_that_cannot_run_is_refused():
    @dataclass(frozen=True)
    class Idle(Cell[float]):
        seed: int

    with pytest.raises(TypeError, match="abstract"):
        Idle(1)


def test_a_result_has_the_record_or_the_reason():
    good, bad = compute(Root(4.0)), compute(Root("four"))
    assert (good.record, good.failure) == (2.0, None)
    assert bad.record is None
    assert bad.failure.startswith("TypeError: ")
    assert min(good.seconds, bad.seconds) >= 0


def test_only_fields_are_hashed(tmp_path):
    """Renaming a kind loses no record: none of its name is in the file's."""
    store = CellStore(tmp_path, "toy.roots")
    assert store.identity(Root(4.0)) == {
        "experiment": "toy.roots",
        "revision": 1,
        "cell": {"square": 4.0},
    }
    assert store.path(Root(4.0)) == store.path(Weight(4.0)) == store.path(Special(4.0))
    assert store.path(Root(4.0)) != store.path(Root(5.0))


def test_cells_reach_other_processes():
    assert pickle.loads(pickle.dumps(Root(4.0))) == Root(4.0)
