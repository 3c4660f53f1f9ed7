"""A cell's file is found again by what it was computed from, and by nothing else."""

import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from equipoise_papers.sweeps.cell import Cell, Result, compute
from equipoise_papers.sweeps.store import CellStore


@dataclass(frozen=True, slots=True)
class Square:
    value: float


@dataclass(frozen=True, slots=True)
class Number(Cell[Square]):
    value: float

    def run(self):
        return Square(self.value**2)


@dataclass(frozen=True, slots=True)
class Root(Cell[float]):
    """Another kind of cell, for the same store."""

    square: float

    def run(self):
        return self.square**0.5


NAME = "toy.squares"


@pytest.fixture
def store(tmp_path):
    return CellStore(tmp_path, NAME)


@pytest.mark.parametrize("value", [0.1 + 0.2, -0.0, math.inf, math.pi * 1e-300])
def test_a_record_comes_back_to_the_last_bit(store, value):
    store.save(Result(Number(1.0), Square(value), None, 0.5))
    assert store.load(Number(1.0)) == Result(Number(1.0), Square(value), None, 0.5)


def test_a_failure_comes_back_with_its_reason(store):
    store.save(Result(Number(1.0), None, "ValueError: no", 0.5))
    assert store.load(Number(1.0)).failure == "ValueError: no"
    assert store.finished(Number(1.0)) is None


def test_a_failure_never_replaces_a_record_but_a_record_replaces_a_failure(store):
    for first, second in [(Square(1.0), None), (None, Square(1.0))]:
        cell = Number(float(first is None))
        store.save(Result(cell, first, first and "no", 0.5))
        store.save(Result(cell, second, second and "no", 0.5))
        assert store.finished(cell).record == Square(1.0)


def test_cells_of_different_kinds_have_records_of_their_own_class(store):
    for cell in (Number(3.0), Root(9.0)):
        store.save(compute(cell))
    assert store.load(Number(3.0)).record == Square(9.0)
    assert store.load(Root(9.0)).record == 3.0


def test_no_flipped_bit_changes_a_record(store):
    """Without the checksum, one bit of a digit would make it another digit."""
    saved = Result(Number(1.5), Square(2.25), None, 0.5)
    store.save(saved)
    path = store.path(saved.cell)
    content = path.read_bytes()
    lost = 0
    for place in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        found = store.load(saved.cell)
        lost += found is None
        assert found is None or (found.record, found.failure) == (saved.record, None)
    assert lost > 6 * len(content)  # most are noticed, the others are in blanks or the key's name
    path.write_bytes(content.replace(b"2.25", b"2.75"))
    assert store.load(saved.cell) is None


def test_a_file_from_before_checksums_is_read(store):
    saved = Result(Number(1.5), Square(2.25), None, 0.5)
    store.save(saved)
    document = json.loads(store.path(saved.cell).read_text())
    del document["checksum"]
    store.path(saved.cell).write_text(json.dumps(document))
    assert store.load(saved.cell) == saved


def test_another_cell_is_not_found(store):
    store.save(Result(Number(1.0), Square(1.0), None, 0.5))
    assert store.load(Number(math.nextafter(1.0, 2.0))) is None


@pytest.mark.parametrize("change", [{"revision": 2}, {"name": "toy.cubes"}])
def test_another_revision_or_experiment_has_other_files(store, tmp_path, change):
    store.save(Result(Number(1.0), Square(1.0), None, 0.5))
    other = CellStore(tmp_path, **({"name": NAME} | change))
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


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    store = CellStore(tmp_path / "file" / "cells", NAME)
    with pytest.raises(ValueError, match=r"cannot write records to .* Name another folder"):
        store.prepare()


def test_drafts_of_killed_writers_are_removed_when_nobody_writes_them_any_more(store, tmp_path):
    store.save(Result(Number(1), Square(1), None, 0.5))
    (folder,) = {path.parent for path in tmp_path.rglob("*.json")}
    old, new = (folder / f".{name}.0f.part" for name in ("old", "new"))
    for draft in (old, new):
        draft.touch()
    os.utime(old, (0, 0))
    store.prepare()
    assert not old.exists()
    assert new.exists()
    assert store.finished(Number(1)) is not None


def test_a_write_that_fails_is_one_clear_line_and_leaves_nothing(store, monkeypatch):
    def full(path, *arguments, **keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=r"cannot write records to .*No space left on device"):
        store.save(Result(Number(2.0), Square(4.0), None, 0.5))
    assert list(store.path(Number(2.0)).parent.iterdir()) == []


class TestManyWriters:
    """A reader sees one whole file, whoever writes the same cell at the same time."""

    CELL = Number(2.0)

    def write_and_read(self, store):
        def write(value):
            store.save(Result(self.CELL, Square(value), None, 0.5))
            return store.load(self.CELL) is not None

        with ThreadPoolExecutor(8) as pool:
            return all(pool.map(write, range(200)))

    def test_they_never_show_half_a_file(self, store, tmp_path):
        assert self.write_and_read(store)
        assert [path.suffix for path in tmp_path.iterdir()] == [".json"]

    def test_with_a_common_draft_they_would(self, store, monkeypatch):
        """The twin: between the two steps of one writer another takes the draft away."""
        rename = Path.replace

        def second_writer_first(draft, target):
            rename(draft, target)
            return rename(draft, target)

        monkeypatch.setattr("equipoise.files.uuid4", Draft)
        monkeypatch.setattr(Path, "replace", second_writer_first)
        with pytest.raises(ValueError, match="cannot write records"):
            store.save(Result(self.CELL, Square(1.0), None, 0.5))


class Draft:
    hex = "common"
