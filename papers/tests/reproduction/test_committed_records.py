"""The records in this repository are those of the cells that experiments have now."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise_papers.reproduction.archive import unpack
from equipoise_papers.reproduction.catalogue import EXPERIMENTS
from equipoise_papers.reproduction.folders import cell_store

RECORDS = Path(__file__).parents[2] / "docs" / "reproduction" / "records"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    unpack(RECORDS, out=folder)
    return folder


def test_every_cell_at_scale_small_has_a_record_that_can_be_read(unpacked):
    known = set()
    for experiment in EXPERIMENTS.values():
        store = cell_store(experiment, unpacked)
        paths = {store.path(cell): cell for cell in experiment.cells("small")}
        missing = [
            cell
            for path, cell in paths.items()
            if path not in known and store.finished(cell) is None
        ]
        assert missing == [], experiment.name
        known |= paths.keys()
    # None is left over from older experiments.
    assert known == {*unpacked.glob("*/cells/*.json")}
