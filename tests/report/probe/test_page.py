"""A probe on a page and on disk."""

import json

import pytest

from equipoise.diagnosis.record import Probe
from equipoise.records import from_plain, to_plain
from equipoise.report.probe.page import save_probe
from support.pages import Outline
from support.probe_reports import PROBES, page_of, whole


@pytest.mark.parametrize("name", PROBES)
def test_it_is_whole_and_valid(name):
    page = page_of(name)
    outline = Outline(page)
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    labels = {a["aria-labelledby"] for _, a in outline.tags if "aria-labelledby" in a}
    assert labels <= set(ids)
    assert not outline.all("script")
    assert not outline.all("img")
    assert page.encode("utf-8")


def test_the_facts_are_there():
    page = page_of("whole")
    assert page.count("<svg") == 4
    for fact in ("reliable for 1.7 steps", "18.5 ± 0.2", "(not converged)", "It is 2 long."):
        assert fact in page


def test_it_is_stored_whole(tmp_path):
    """And two renderings are equal."""
    page = save_probe(whole(), tmp_path / "new")
    data = page.with_suffix(".json")
    assert to_plain(from_plain(Probe, json.loads(data.read_text("utf-8")))) == to_plain(whole())
    assert page.read_text("utf-8") == page_of("whole")
    assert sorted(path.name for path in data.parent.iterdir()) == ["probe.html", "probe.json"]
