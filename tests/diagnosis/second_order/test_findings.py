"""Findings about second-order pooling follow from records written by hand."""

import dataclasses

from equipoise.diagnosis.second_order.findings import conclude_second_order
from equipoise.diagnosis.second_order.record import MatrixSpectrum, SecondOrderPooling
from equipoise.records import Estimate

SPECTRUM = MatrixSpectrum((0.3, 0.2), 10.0, 8.0)
LAYER = SecondOrderPooling("head", "RUNPool", 6, 16, 8, SPECTRUM, SPECTRUM, 0.3, 0.01, True, None)


def severity(**changes):
    return conclude_second_order([dataclasses.replace(LAYER, **changes)])[0].severity


def test_a_flat_spectrum_is_good():
    assert severity() == "good"


def test_a_dominant_direction_is_a_warning():
    assert severity(after=MatrixSpectrum((0.9, 0.1), 10.0, 8.0)) == "warning"


def test_a_direction_that_is_no_eigenvector_is_a_warning_where_it_is_shrunk():
    assert severity(eigen_residual=0.9) == "warning"
    assert severity(eigen_residual=0.9, shrinks=False) == "good"


def test_a_costly_root_is_a_note():
    costly = Estimate(0.6, 0.01, "")
    assert severity(cost=costly, shrinks=False) == "note"
    assert severity(cost=costly) == "good"


def test_a_layer_that_was_not_measured_has_a_reason():
    lost = dataclasses.replace(LAYER, before=None, after=None, reason="it ran 2 times")
    (finding,) = conclude_second_order([lost])
    assert (finding.severity, finding.detail) == ("note", "it ran 2 times")
    assert finding.title == "Pooling layer head was not measured"
