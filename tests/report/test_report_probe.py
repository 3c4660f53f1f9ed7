"""A probe on a terminal, on a page and on disk."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import subprocess
import sys

import pytest
from report_examples import HOSTILE_NAMES, deep_growth, smoothness
from rich.cells import cell_len
from rich.console import Console
from test_report_html import Outline

from equipoise.records import Estimate, Finding, from_plain
from equipoise.records.hessian import Hessian, HessianSpectrum
from equipoise.records.landscape import CovariateShift, Landscape, LayerShift
from equipoise.records.probe import PROBE_SCHEMA, Probe
from equipoise.report import digest_probe as digest
from equipoise.report.probe_page import render_probe, save_probe
from equipoise.report.terminal_probe import print_probe

STEPS = tuple(0.05 * 8 ** (k / 7) for k in range(8))


def landscape(curvature=6.0, norm=2.0):
    """Along the gradient of a parabola; 1/6 is between the third and the fourth point."""
    return Landscape(
        direction="gradient",
        steps=STEPS,
        losses=tuple(2.3 - eta + 3 * eta**2 for eta in STEPS),
        gradient_changes=tuple(curvature * eta * norm for eta in STEPS),
        cosines=(1.0,) * 7 + (-1.0,),
        initial_loss=2.3,
        gradient_norm=norm,
        direction_norm=norm,
        parameter_norm=10.0,
        relative_floor=1e-7,
        zero_gradient=norm == 0,
    )


def shifted(names):
    layers = [
        LayerShift(name, "Linear", 1200, 0.4 * i, 1 - 0.05 * i, 2.0, 2.0, False)
        for i, name in enumerate(names)
    ]
    return CovariateShift(tuple(layers), 2.3, 1e-7, True)


def spectrum(block):
    largest, smallest = Estimate(18.5, 0.2, "Lanczos"), Estimate(-0.3, 0.1, "Lanczos")
    return HessianSpectrum(block, 1200, largest, smallest, block != "fc2", 27)


def whole():
    names = [f"fc{i}" for i in range(1, 21)]
    return Probe(
        schema=PROBE_SCHEMA,
        equipoise="0.1.0",
        torch="2.13.0",
        created="2026-11-21T10:39:12+00:00",
        target="nets.py:build",
        data="digits",
        device="cpu",
        batch_size=64,
        parameters=2_149_898,
        rate=0.1,
        rate_origin="tuned",
        seconds=2.5,
        interrupted=False,
        growth=deep_growth(),
        landscape=landscape(),
        shift=shifted(names),
        hessian=Hessian(spectrum("whole"), tuple(map(spectrum, names)), 1),
        training=smoothness(),
        findings=(Finding("note", "The gradient is short", "It is 2 long.", "Wait."),),
    )


def interrupted():
    nothing = dict.fromkeys(("growth", "landscape", "shift", "hessian", "training"))
    return dataclasses.replace(whole(), interrupted=True, findings=(), **nothing)


def hostile():
    wild = dataclasses.replace(
        landscape(),
        losses=(math.inf, math.nan, *(1e300,) * 6),
        gradient_changes=(math.inf,) * 8,
        cosines=(math.nan,) * 8,
    )
    return dataclasses.replace(
        whole(),
        target=HOSTILE_NAMES[0],
        data=HOSTILE_NAMES[3],
        created=HOSTILE_NAMES[0],
        landscape=wild,
        shift=shifted(HOSTILE_NAMES),
        hessian=Hessian(None, tuple(map(spectrum, HOSTILE_NAMES)), 1),
        findings=tuple(Finding("warning", name, name, name) for name in HOSTILE_NAMES),
    )


PROBES = {"whole": whole, "interrupted": interrupted, "hostile": hostile}


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
        text = printed(whole())
        for fact in (
            "The first gradient holds for 1.7 steps",
            "plain SGD at rate 0.1, the best of the short training",
            "2,149,898",
            "largest curvature",
            "18.5 ± 0.2",
            "⋮ 8 more",
            "not all converged",
            "over its length",
            "How far the gradient can be trusted",
            "Gradients per layer",
        ):
            assert fact in text

    def test_an_interrupted_one_says_so(self):
        text = printed(interrupted())
        assert "Interrupted" in text
        assert "The loss was not probed" in text

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
        for fact in ("holds for 1.7 steps", "18.5 ± 0.2", "(not converged)", "It is 2 long."):
            assert fact in page

    def test_two_renderings_are_equal(self, probe):
        assert render_probe(probe) == render_probe(probe)


class TestTheSentence:
    @pytest.mark.parametrize(
        ("curvature", "words"),
        [
            (100.0, "The first gradient holds for less than 0.5 steps"),
            (0.1, "The first gradient holds for more than 4 steps"),
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
    data, page = save_probe(whole(), tmp_path / "new")
    assert from_plain(Probe, json.loads(data.read_text("utf-8"))) == whole()
    assert page.read_text("utf-8") == render_probe(whole())
    assert sorted(path.name for path in data.parent.iterdir()) == ["probe.html", "probe.json"]


def test_importing_its_modules_does_not_wait_for_torch():
    code = (
        "import sys, equipoise.report.probe_page, equipoise.report.terminal_probe; "
        "print({'matplotlib', 'jinja2', 'torch', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
