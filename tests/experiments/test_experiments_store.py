"""A cell's file is found again by what it was computed from, and by nothing else."""

import json
import math

import pytest
from toy_experiments import Number, Square, squares

from equipoise.experiments import Result
from equipoise.experiments.store import CellStore


@pytest.fixture
def store(calculator, tmp_path):
    return CellStore(squares(calculator), tmp_path)


@pytest.mark.parametrize("value", [0.1 + 0.2, -0.0, math.inf, math.pi * 1e-300])
def test_a_record_comes_back_to_the_last_bit(store, value):
    store.save(Result(Number(1.0), Square(value), None, 0.5))
    assert store.load(Number(1.0)) == Result(Number(1.0), Square(value), None, 0.5)


def test_a_failure_comes_back_with_its_reason(store):
    store.save(Result(Number(1.0), None, "ValueError: no", 0.5))
    assert store.load(Number(1.0)).failure == "ValueError: no"


def test_another_cell_is_not_found(store):
    store.save(Result(Number(1.0), Square(1.0), None, 0.5))
    assert store.load(Number(math.nextafter(1.0, 2.0))) is None


@pytest.mark.parametrize("change", [{"revision": 2}, {"name": "toy.cubes"}])
def test_another_revision_or_experiment_has_other_files(store, calculator, tmp_path, change):
    store.save(Result(Number(1.0), Square(1.0), None, 0.5))
    other = CellStore(squares(calculator, **change), tmp_path)
    assert other.load(Number(1.0)) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace('"schema": 1', '"schema": 99'),
        lambda text: text.replace('"value": 4.0', '"other": 4.0'),
        lambda text: text.replace('"value": 2.0', '"value": 7.0'),
    ],
    ids=["half", "empty", "list", "schema", "record", "cell"],
)
def test_a_damaged_file_counts_as_never_computed(store, damage):
    store.save(Result(Number(2.0), Square(4.0), None, 0.5))
    path = store.path(Number(2.0))
    whole = path.read_text()
    assert damage(whole) != whole
    path.write_text(damage(whole))
    assert store.load(Number(2.0)) is None


def test_the_file_says_what_it_is(store):
    store.save(Result(Number(2.0), Square(4.0), None, 0.5))
    data = json.loads(store.path(Number(2.0)).read_text())
    assert data["experiment"] == "toy.squares"
    assert data["cell"] == {"value": 2.0}
    assert data["record"] == {"value": 4.0}


def test_a_folder_that_cannot_be_made(calculator, tmp_path):
    (tmp_path / "file").write_text("")
    store = CellStore(squares(calculator), tmp_path / "file" / "cells")
    with pytest.raises(ValueError, match=r"cannot write records to .* Name another folder"):
        store.prepare()
