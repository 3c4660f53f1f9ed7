"""A probe on a terminal."""

import pytest
from rich.cells import cell_len

from equipoise.report.probe.terminal import print_probe
from support.console import printed
from support.probe_reports import PROBES, hostile, interrupted, whole


@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)
def test_no_line_is_wider_than_the_terminal(probe):
    assert max(map(cell_len, printed(print_probe, probe()).splitlines())) <= 80


def test_the_facts_are_there():
    text = " ".join(printed(print_probe, whole()).split())  # lines may break anywhere
    for fact in (
        "At initialisation the gradient is reliable for 1.7 steps",
        "plain SGD at learning rate 0.1, the best of the short training",
        "2,149,898",
        "largest curvature",
        "18.5 ± 0.2",
        "⋮ 10 more",
        "Not all eigenvalues converged",
        "relative",
        "How far the gradient is reliable",
        "Gradients per layer",
    ):
        assert fact in text


def test_an_interrupted_one_says_so():
    text = printed(print_probe, interrupted())
    assert "Interrupted" in text
    assert "The loss was not measured" in text


def test_names_cannot_steer_the_terminal():
    assert "\x1b" not in printed(print_probe, hostile(), width=300)
