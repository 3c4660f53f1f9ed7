"""A probe on a terminal, on a page and on disk."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import subprocess
import sys

import pytest
from rich.cells import cell_len
from rich.console import Console

from equipoise.diagnosis.probe import Probe
from equipoise.records import from_plain
from equipoise.report.probe import words as digest
from equipoise.report.probe.page import render_probe, save_probe
from equipoise.report.probe.terminal import print_probe
from support.pages import Outline
from support.probe_reports import (
    PROBES,
    hostile,
    interrupted,
    landscape,
    whole,
)


@pytest.fixture(params=PROBES.values(), ids=PROBES)
def probe(request):
    return request.param()


def printed(probe, width=80):
    console = Console(file=io.StringIO(), width=width)
    print_probe(probe, console)
    return console.file.getvalue()


class TestTheTerminal:
    def test_no_line_is_wider_than_the_terminal(self, probe):
        assert max(map(cell_len, printed(probe).splitlines())) <= 80

    def test_the_facts_are_there(self):
        text = " ".join(printed(whole()).split())  # lines may break anywhere
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

    def test_an_interrupted_one_says_so(self):
        text = printed(interrupted())
        assert "Interrupted" in text
        assert "The loss was not measured" in text

    def test_names_cannot_steer_the_terminal(self):
        assert "\x1b" not in printed(hostile(), width=300)


class TestThePage:
    def test_it_is_whole_and_valid(self, probe):
        page = render_probe(probe)
        outline = Outline(page)
        ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        labels = {a["aria-labelledby"] for _, a in outline.tags if "aria-labelledby" in a}
        assert labels <= set(ids)
        assert not outline.all("script")
        assert not outline.all("img")
        assert page.encode("utf-8")

    def test_the_facts_are_there(self):
        page = render_probe(whole())
        assert page.count("<svg") == 4
        for fact in ("reliable for 1.7 steps", "18.5 ± 0.2", "(not converged)", "It is 2 long."):
            assert fact in page

    def test_two_renderings_are_equal(self, probe):
        assert render_probe(probe) == render_probe(probe)


class TestTheSentence:
    @pytest.mark.parametrize(
        ("curvature", "words"),
        [
            (100.0, "At initialisation the gradient is reliable for less than 0.5 steps"),
            (0.1, "At initialisation the gradient is reliable for more than 4 steps"),
        ],
    )
    def test_outside_of_the_points_it_is_a_bound(self, curvature, words):
        assert (
            digest.sentence(dataclasses.replace(whole(), landscape=landscape(curvature))) == words
        )

    @pytest.mark.parametrize(
        ("norm", "words"),
        [(0.0, "The gradient is zero"), (math.inf, "The gradient is not finite")],
    )
    def test_without_a_gradient_it_says_so(self, norm, words):
        found = dataclasses.replace(whole(), landscape=landscape(norm=norm))
        assert digest.sentence(found) == words
        assert words in printed(found)
        assert words in render_probe(found)


def test_it_is_stored_whole(tmp_path):
    page = save_probe(whole(), tmp_path / "new")
    data = page.with_suffix(".json")
    assert from_plain(Probe, json.loads(data.read_text("utf-8"))) == whole()
    assert page.read_text("utf-8") == render_probe(whole())
    assert sorted(path.name for path in data.parent.iterdir()) == ["probe.html", "probe.json"]


def test_importing_its_modules_waits_for_no_renderer():
    code = (
        "import sys, equipoise.report.probe.page, equipoise.report.probe.terminal; "
        "print({'matplotlib', 'jinja2', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
