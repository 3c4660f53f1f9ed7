"""Merging stores: records before failures, the first of equals, and conflicts refused."""

import pytest

from equipoise_papers.sweeps.cell import Result
from equipoise_papers.sweeps.merge import choose, transfer
from equipoise_papers.sweeps.store import CellStore
from papers_support.toy_tasks import Draw, Total, store_in

CELL = Draw(1)


@pytest.fixture
def folders(tmp_path):
    made = tmp_path / "a", tmp_path / "b"
    for folder in made:
        folder.mkdir()
    return made


def put(folder, value=None, cell=CELL, seconds=0.5):
    record = None if value is None else Total(value, 1)
    store_in(folder).save(Result(cell, record, None if record else "no", seconds))
    return store_in(folder).path(cell)


def test_stores_of_different_cells_add_up(folders, tmp_path):
    for seed, folder in enumerate(folders):
        put(folder, float(seed), Draw(seed))
    assert transfer(choose(folders), tmp_path / "c") == 2
    for seed in range(2):
        assert store_in(tmp_path / "c").finished(Draw(seed)).record.value == seed


def test_equal_records_are_no_conflict_however_long_they_took(folders):
    first = put(folders[0], 1.0, seconds=1.0)
    put(folders[1], 1.0, seconds=2.0)
    choice = choose(folders)
    assert choice.conflicts == []
    assert list(choice.files.values()) == [first]


def test_different_records_of_a_cell_are_a_conflict(folders):
    files = put(folders[0], 1.0), put(folders[1], 1.0 + 2**-52)
    (conflict,) = choose(folders).conflicts
    assert conflict.files == files
    assert "'seed': 1" in str(conflict)


@pytest.mark.parametrize("values", [(None, 1.0), (1.0, None)])
def test_a_record_is_preferred_to_a_failure(folders, values):
    files = [put(folder, value) for folder, value in zip(folders, values, strict=True)]
    choice = choose(folders)
    assert list(choice.files.values()) == [files[values.index(1.0)]]
    assert choice.conflicts == []


def test_of_two_failures_the_first_stays(folders):
    files = [put(folder) for folder in folders]
    assert list(choose(folders).files.values()) == files[:1]


def test_what_is_in_place_is_not_written_again(folders):
    put(folders[0], 1.0)
    assert transfer(choose(folders), folders[0]) == 0


@pytest.mark.parametrize("damage", [lambda text: text[:50], lambda text: text.replace("1", "2")])
def test_a_file_that_is_not_what_its_name_says_is_left_out(folders, damage):
    path = put(folders[0], 4.0)
    path.write_text(damage(path.read_text()))
    choice = choose(folders)
    assert (choice.damaged, choice.files) == ([path], {})


def test_missing_folders_are_empty(tmp_path):
    assert choose([tmp_path / "none"]).files == {}


def test_another_revision_is_another_cell(folders):
    put(folders[0], 1.0)
    other = CellStore(folders[1], store_in(folders[1]).name, revision=2)
    other.save(Result(CELL, Total(2.0, 1), None, 0.5))
    choice = choose(folders)
    assert (len(choice.files), choice.conflicts) == (2, [])


def test_a_damaged_file_counts_as_none(folders):
    path = put(folders[0], 1.5)
    path.write_text(path.read_text().replace("1.5", "2.5"))
    good = put(folders[1], 1.5)
    choice = choose(folders)
    assert (list(choice.files.values()), choice.conflicts) == ([good], [])
