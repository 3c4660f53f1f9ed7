"""Shards on several machines, gathered, are the whole experiment."""

import pytest

from equipoise_papers.reproduction.folders import cell_store
from equipoise_papers.reproduction.gather import gather
from equipoise_papers.reproduction.reproduce import reproduce
from equipoise_papers.sweeps.cell import Result
from papers_support.toy_experiments import Number, Square


def run(folder, **options):
    (panel,) = reproduce("toy.squares", scale="smoke", out=folder, **options).panels
    return panel


@pytest.fixture
def machines(toy, tmp_path):
    """One folder for each of two shards."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for index, folder in enumerate(folders, start=1):
        run(folder, shard=(index, 2))
    return folders


def test_shards_gathered_are_the_whole(machines, calculator, tmp_path):
    assert sorted(calculator.calls) == [1.0, 2.0, 3.0]
    gathered = gather(machines, out=tmp_path / "all")
    assert (gathered.cells, gathered.added, gathered.experiments) == (3, 3, ("toy.squares",))
    assert run(tmp_path / "all", redraw=True).outcome == "holds"
    assert len(calculator.calls) == 3


def test_a_single_shard_is_incomplete(machines):
    """The twin."""
    assert run(machines[0], redraw=True).outcome == "incomplete"


def test_gathering_again_adds_nothing(machines, tmp_path):
    gather(machines, out=tmp_path / "all")
    assert gather([*machines, tmp_path / "all"], out=tmp_path / "all").added == 0


def test_gathering_into_one_of_them(machines):
    gathered = gather(machines[1:], out=machines[0])
    assert gathered.cells == 3
    assert 0 < gathered.added < 3


def test_different_records_of_a_cell_are_refused_and_nothing_is_written(toy, machines, tmp_path):
    for folder, value in zip(machines, (4.0, 5.0), strict=True):
        cell_store(toy, folder).save(Result(Number(2.0), Square(value), None, 0.0))
    with pytest.raises(ValueError, match=r"1 cells have .* toy.squares \{'value': 2.0\} in '.*'"):
        gather(machines, out=tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_a_damaged_file_is_named(toy, machines, tmp_path):
    path = machines[0] / "toy.squares" / "cells" / "0123456789abcdef.json"
    path.write_text("{")
    assert gather(machines, out=tmp_path / "all").damaged == (str(path),)


def test_a_folder_without_records_is_refused(machines, tmp_path):
    with pytest.raises(ValueError, match=r"'.*nowhere' holds no records"):
        gather([*machines, tmp_path / "nowhere"], out=tmp_path / "all")


def test_a_folder_that_cannot_be_written_to(machines, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write records"):
        gather(machines, out=tmp_path / "file")
