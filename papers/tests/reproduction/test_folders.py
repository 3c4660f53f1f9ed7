"""Where records are, which stays: a new version goes on with what older ones have computed."""

import pytest

from equipoise_papers.reproduction.catalogue import find
from equipoise_papers.reproduction.folders import (
    cell_store,
    cells_folder,
    require_stores,
    stored_names,
)
from equipoise_papers.sweeps.cell import Result
from papers_support.toy_experiments import Calculator, Number, squares


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("yang2019.fig1d", ["a842ec20540ef87e.json", "eacb9c78bd30c7f8.json"]),
        ("yang2019.fig2a", ["e217664d017adf05.json"]),
    ],
)
def test_published_cells_keep_their_files(name, files, tmp_path):
    (experiment,) = find(name)
    store = cell_store(experiment, tmp_path)
    paths = [store.path(cell) for cell in experiment.cells("smoke")[: len(files)]]
    folder = tmp_path / experiment.filed_under / "cells"
    assert paths == [folder / file for file in files]


def test_another_revision_has_other_files(tmp_path):
    first, second = (
        cell_store(squares(Calculator(), revision=revision), tmp_path) for revision in (1, 2)
    )
    assert first.path(Number(1.0)) != second.path(Number(1.0))


def test_stores_are_found_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"holds no records\. Name a folder that"):
        require_stores(tmp_path)
    store = cell_store(squares(Calculator()), tmp_path)
    store.prepare()
    store.save(Result(Number(1.0), None, "no", 0.0))
    assert stored_names(tmp_path) == require_stores(tmp_path) == ("toy.squares",)
    assert store.path(Number(1.0)).parent == cells_folder(tmp_path, "toy.squares")
