"""Findings about initial weights follow from records written by hand."""

import dataclasses
from typing import get_args

import pytest

from equipoise.diagnosis.initialisation.findings import conclude_initialisation
from equipoise.diagnosis.initialisation.record import (
    FaultKind,
    Initialisation,
    InitialisationFault,
    ParameterInitialisation,
)
from equipoise.records.codec import from_plain, to_plain

WEIGHT = ParameterInitialisation(
    "0.weight", "Linear", (4, 4), "float32", 0.0, 0.02, 3.0, "normal", False, 0.0, 0.02,
    "normal_(std=0.02)", 0.3, "as intended",
)  # fmt: skip
FAULT = InitialisationFault("missed", ("3.weight",), 12, "3.weight has std 0.05 instead of 0.02.")
RECORD = Initialisation((WEIGHT,), (), 4.5)


def test_no_record_has_no_findings():
    assert conclude_initialisation(None) == []


def test_a_healthy_model_is_good():
    (finding,) = conclude_initialisation(RECORD)
    assert finding.severity == "good"
    assert "1 of 1 parameter follow" in finding.detail


@pytest.mark.parametrize("kind", get_args(FaultKind))
def test_every_fault_is_told_with_its_remedy(kind):
    fault = dataclasses.replace(FAULT, kind=kind)
    (finding,) = conclude_initialisation(dataclasses.replace(RECORD, faults=(fault,)))
    assert finding.severity in ("critical", "warning", "note")
    assert "3.weight" in finding.title
    assert finding.detail == "3.weight (of 12 compared). 3.weight has std 0.05 instead of 0.02."
    assert finding.remedy


@pytest.mark.parametrize(
    ("names", "title"), [(("a", "b"), "missed a and b"), (("a", "b", "c"), "missed 3 parameters")]
)
def test_one_or_two_parameters_are_named(names, title):
    fault = dataclasses.replace(FAULT, parameters=names)
    (finding,) = conclude_initialisation(dataclasses.replace(RECORD, faults=(fault,)))
    assert finding.title.endswith(title)


def test_what_cannot_be_judged_asks_for_the_init_function():
    unknown = dataclasses.replace(WEIGHT, verdict="not judged", rule="")
    (finding,) = conclude_initialisation(dataclasses.replace(RECORD, parameters=(unknown,)))
    assert (finding.severity, "Name your init" in finding.remedy) == ("note", True)


def test_trained_weights_are_a_note():
    trained = dataclasses.replace(WEIGHT, looks_trained=True)
    (finding,) = conclude_initialisation(dataclasses.replace(RECORD, parameters=(trained,)))
    assert finding.severity == "note"
    assert "look trained" in finding.title


def test_the_record_is_stored_and_read():
    record = dataclasses.replace(RECORD, faults=(FAULT,))
    assert from_plain(Initialisation, to_plain(record)) == record
