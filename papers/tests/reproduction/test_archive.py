"""Packed records take little room, are the same bytes every time, and come back unchanged."""

from __future__ import annotations

import lzma

import pytest

from equipoise_papers.reproduction.archive import pack, packed_records, stored_cells, unpack
from equipoise_papers.reproduction.reproduce import reproduce
from papers_support.toy_tasks import rewrite

NAME = "toy.squares"


@pytest.fixture
def stored(toy, tmp_path):
    """A folder with the toy's records."""
    reproduce(NAME, out=tmp_path / "records")
    return tmp_path / "records"


def contents(root):
    return {path.name: path.read_bytes() for path in sorted(root.glob("*/cells/*.json"))}


def test_a_round_trip_gives_back_the_very_files(stored, tmp_path):
    pack(stored, tmp_path / "packed", "small")
    unpacked = unpack(tmp_path / "packed", out=tmp_path / "back")
    assert contents(tmp_path / "back") == contents(stored)
    assert (unpacked.cells, unpacked.added) == (3, 3)


def test_the_same_records_give_the_same_bytes(stored, tmp_path):
    (first,) = pack(stored, tmp_path / "first", "small")
    (second,) = pack(stored, tmp_path / "second", "small")
    assert first.read_bytes() == second.read_bytes()
    assert first.name == f"{NAME}.jsonl.xz"


def test_a_record_that_changed_since_it_was_written_is_not_packed(stored, tmp_path):
    cell = sorted(stored.glob("*/cells/*.json"))[0]
    cell.write_text(cell.read_text().replace('"seconds": ', '"seconds": 1'))
    with pytest.raises(ValueError, match="has changed since it was written"):
        pack(stored, tmp_path / "packed", "small")


def test_other_records_give_other_bytes(stored, tmp_path):
    (first,) = pack(stored, tmp_path / "first", "small")
    cell = sorted(stored.glob("*/cells/*.json"))[0]
    rewrite(cell, '"seconds": ', '"seconds": 1')
    (second,) = pack(stored, tmp_path / "second", "small")
    assert first.read_bytes() != second.read_bytes()


def test_each_line_is_one_record(stored, tmp_path):
    (packed,) = pack(stored, tmp_path / "packed", "small")
    lines = lzma.decompress(packed.read_bytes()).decode().splitlines()
    assert len(lines) == 3
    assert all(line.startswith('{"schema":') for line in lines)


def test_records_of_no_known_cell_are_left_out(stored, tmp_path):
    (stored / NAME / "cells" / "0123456789abcdef.json").write_text("{}")
    assert len(stored_cells(stored, "small")[NAME]) == 3


def test_what_is_there_already_stays(stored, tmp_path):
    pack(stored, tmp_path / "packed", "small")
    before = contents(stored)
    assert unpack(tmp_path / "packed", out=stored).added == 0
    assert contents(stored) == before


def test_a_different_record_of_the_same_cell_is_refused(stored, tmp_path):
    pack(stored, tmp_path / "packed", "small")
    for cell in stored.glob("*/cells/*.json"):
        rewrite(cell, '"record": {\n  "value": ', '"record": {\n  "value": 7')
    with pytest.raises(ValueError, match="different records in two places"):
        unpack(tmp_path / "packed", out=stored)


@pytest.mark.parametrize("damage", [b"", b"nonsense"])
def test_a_damaged_archive_is_refused(stored, tmp_path, damage):
    (packed,) = pack(stored, tmp_path / "packed", "small")
    packed.write_bytes(packed.read_bytes()[:40] + damage)
    with pytest.raises(ValueError, match="does not hold packed records of this version"):
        unpack(tmp_path / "packed", out=tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_nothing_to_unpack_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no packed records"):
        unpack(tmp_path, out=tmp_path / "back")


def test_packed_records_are_read_by_cell(toy, stored, tmp_path):
    pack(stored, tmp_path / "packed", "small")
    records = packed_records(tmp_path / "packed", toy, "small")
    assert {cell.value: record.value for cell, record in records.items()} == {1: 1, 2: 4, 3: 9}
