"""Findings about preconditioning follow from records written by hand."""

import dataclasses
import math

import pytest

from equipoise.diagnosis.preconditioning.findings import conclude_preconditioning
from support.report_examples import coupled, preconditioned


def test_a_large_gain_is_a_note_that_proposes_a_trial():
    """κ falls from 8.2·10⁴ to 3607.8; κ(D)² would promise 7.1·10⁷."""
    small = dataclasses.replace(preconditioned("small"), hessian_after=8.2e4)
    (finding,) = conclude_preconditioning([small, preconditioned("head"), coupled("fc1")])
    assert finding.severity == "note"
    assert "of 1 of 2 layers more than 10-fold" in finding.title
    assert "At head it would lower" in finding.detail
    assert "from 8.2×10⁴ to 3608 (rank 57 of 257)" in finding.detail
    assert "is too high: " in finding.detail
    assert 'fix="bnp"' in finding.remedy


def test_a_promise_that_is_kept_is_not_mentioned():
    kept = dataclasses.replace(preconditioned("head"), promised=30.0)
    (finding,) = conclude_preconditioning([kept])
    assert "too high" not in finding.detail


@pytest.mark.parametrize("after", [8.2e4, 1e4, math.inf])
def test_a_small_gain_is_no_finding(after):
    layer = dataclasses.replace(preconditioned("head"), hessian_after=after)
    assert conclude_preconditioning([layer]) == []


def test_without_a_hessian_nothing_is_concluded():
    assert conclude_preconditioning([coupled("fc1")]) == []
    assert conclude_preconditioning([]) == []
