"""Each record says by what it was computed."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch

from equipoise_papers.sweeps import provenance as module
from equipoise_papers.sweeps.cell import Cell, compute
from equipoise_papers.sweeps.provenance import COMMIT_VARIABLE, provenance
from equipoise_papers.sweeps.store import CellStore


@dataclass(frozen=True, slots=True)
class Root(Cell[float]):
    square: float

    def run(self):
        return self.square**0.5


def test_it_is_stored_with_the_record_and_read_back(tmp_path, monkeypatch):
    monkeypatch.setenv(COMMIT_VARIABLE, "1a2b3c4")
    module._commit.cache_clear()
    store = CellStore(tmp_path, "roots")
    store.save(compute(Root(4.0)))
    module._commit.cache_clear()
    kept = json.loads(store.path(Root(4.0)).read_text())["provenance"]
    assert kept["commit"] == "1a2b3c4"
    assert kept["torch"] == torch.__version__
    assert (kept["device"], kept["threads"]) == ("cpu", torch.get_num_threads())
    found = store.load(Root(4.0))
    assert found.provenance.words().startswith("commit 1a2b3c4, torch ")


def test_records_without_it_can_be_read(tmp_path):
    store = CellStore(tmp_path, "roots")
    store.save(compute(Root(4.0)))
    path = store.path(Root(4.0))
    older = json.loads(path.read_text())
    del older["provenance"], older["checksum"]  # it came later
    path.write_text(json.dumps(older))
    assert store.load(Root(4.0)).record == 2.0
    assert store.load(Root(4.0)).provenance is None


def test_it_is_no_part_of_what_names_the_file(tmp_path, monkeypatch):
    store = CellStore(tmp_path, "roots")
    before = store.path(Root(4.0))
    monkeypatch.setenv(COMMIT_VARIABLE, "another")
    assert store.path(Root(4.0)) == before


def test_the_commit_is_that_of_the_checkout():
    module._commit.cache_clear()
    found = provenance(torch.device("cpu")).commit
    assert found == "unknown" or len(found.rstrip("+")) >= 7
