"""The records in this repository are those of the cells that experiments have now."""

from __future__ import annotations

from pathlib import Path

from equipoise.records import from_plain
from equipoise_papers.reproduction.archive import read_packed
from equipoise_papers.reproduction.catalogue import EXPERIMENTS
from equipoise_papers.reproduction.folders import cell_store

RECORDS = Path(__file__).parents[2] / "docs" / "reproduction" / "records"


def test_every_cell_at_scale_small_has_a_record_that_can_be_read():
    packed = read_packed(RECORDS)
    known = set()
    for experiment in EXPERIMENTS.values():
        store = cell_store(experiment, Path())
        documents = packed.get(store.name, {})
        for cell in experiment.cells("small"):
            key = store.name, store.digest(cell)
            if key not in known:
                assert key[1] in documents, (experiment.name, cell)
                record = documents[key[1]]["record"]
                assert from_plain(cell.record_type, record) is not None, (experiment.name, cell)
                known.add(key)
    # None is left over from older experiments.
    assert known == {(name, digest) for name, found in packed.items() for digest in found}
