"""Records are compared number by number, whatever their class."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise_papers.reproduction.archive import read_packed
from equipoise_papers.reproduction.check.compare import _RATIOS, compare, left_out

RECORDS = Path(__file__).parents[3] / "docs" / "reproduction" / "records"
LOSS = {"loss": 0.5, "curve": [1.0, 0.7, 0.5], "diverged_at": None, "name": "a"}


def test_the_same_record_is_equal():
    assert compare(LOSS, dict(LOSS)).closeness == "equal"


@pytest.mark.parametrize(
    ("change", "closeness"),
    [
        ({"loss": 0.5 * (1 + 5e-7)}, "rounding"),
        ({"loss": 0.5 * (1 + 5e-6)}, "differs"),
        ({"curve": [1.0, 0.7, 0.5 + 5e-7]}, "rounding"),  # of 1, the largest
        ({"curve": [1.0, 0.7, 0.5 + 5e-6]}, "differs"),
        ({"name": "b"}, "differs"),
    ],
)
def test_rounding_is_relative_to_the_largest_number_of_a_field(change, closeness):
    found = compare(LOSS, LOSS | change)
    assert found.closeness == closeness
    assert [d.field for d in found.differences] == (list(change) if closeness == "differs" else [])


def test_error_bounds_of_rounding_are_not_compared_with_each_other():
    assert compare({"error": 3e-14}, {"error": 5e-14}).closeness == "rounding"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"diverged_at": 3}, "diverged_at"),
        ({"loss": "NaN"}, "loss"),
        ({"curve": [1.0, "Infinity", 0.5]}, "curve"),
        ({"curve": [1.0, 0.7]}, "curve"),
    ],
)
def test_a_number_in_one_record_alone_is_a_flip(change, field):
    (difference,) = compare(LOSS, LOSS | change).differences
    assert (difference.field, difference.flipped, difference.new) == (field, True, None)


def test_what_is_not_finite_in_both_is_no_flip():
    (difference,) = compare({"loss": "NaN"}, {"loss": "Infinity"}).differences
    assert not difference.flipped


def test_a_field_is_averaged_and_huge_numbers_do_not_overflow():
    (difference,) = compare({"losses": [1.0, 3.0]}, {"losses": [2.0, 4.0]}).differences
    assert (difference.published, difference.new) == (2.0, 3.0)
    (difference,) = compare({"losses": [1e308, 1e308]}, {"losses": [1e300, 3.0]}).differences
    assert difference.published == difference.published < float("inf")


def test_a_huge_number_does_not_outweigh_the_others():
    (difference,) = compare({"l": [1.0, 1e30]}, {"l": [1.1, 1.1e30]}).differences
    assert difference.relative == pytest.approx(0.1 / 1.05)


def test_times_are_left_out_with_a_reason():
    record = {"step_seconds": 0.1, "rows": [{"ratio": 2.0, "cpu_milliseconds": 3.0}]}
    assert left_out("lange2022.table1", record) == {
        "step_seconds": "a time",
        "rows.ratio": "a ratio of times",
        "rows.cpu_milliseconds": "a time",
    }
    assert "rows.ratio" not in left_out("yang2019.trainability", record)
    other = {"step_seconds": 0.2, "rows": [{"ratio": 2.5, "cpu_milliseconds": 4.0}]}
    assert compare(record, other, left_out("lange2022.table1", record)).closeness == "equal"


def test_an_estimate_may_be_computed_in_another_way():
    """The published predictions of Fig. 4 name a quadrature that has become another one."""
    old = {"rate": {"value": 1.2, "error": 1e-14, "method": "quadrature, 32 nodes"}}
    new = {"rate": {"value": 1.2, "error": 1e-9, "method": "closed form"}}
    assert compare(old, new, left_out("", old)).closeness == "equal"
    new["rate"]["value"] = 1.3
    assert compare(old, new, left_out("", old)).closeness == "differs"


@pytest.mark.parametrize("experiment", sorted(_RATIOS))
def test_the_published_records_have_the_ratios_that_are_left_out(experiment):
    documents = read_packed(RECORDS, only=[experiment])[experiment]
    for document in documents.values():
        assert {*_RATIOS[experiment]} <= left_out(experiment, document["record"]).keys()
