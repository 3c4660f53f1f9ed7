"""A probe on disk: ``probe.json`` for machines, ``probe.html`` for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.files import write_text
from equipoise.records import wording
from equipoise.records.codec import write_json
from equipoise.report.checkup.page import WORDS
from equipoise.report.checkup.words import smoothness
from equipoise.report.pages import LONG_TABLE, environment
from equipoise.report.probe import words

if TYPE_CHECKING:
    from equipoise.diagnosis.record import Probe

JSON_NAME = "probe.json"
HTML_NAME = "probe.html"


def save_probe(probe: Probe, directory: Path) -> Path:
    """Write a probe as JSON and as HTML, each file whole or not at all; return the page."""
    write_json(directory / JSON_NAME, probe)
    page = directory / HTML_NAME
    write_text(page, render_probe(probe))
    return page


def render_probe(probe: Probe) -> str:
    """Render a probe as a self-contained HTML page; every text in it is escaped."""
    probe = wording.printable(probe)
    return (
        environment()
        .get_template("probe.html")
        .render(
            WORDS,
            probe=probe,
            smoothness=probe.training,
            words=words,
            figures=_figures(probe),
            long=LONG_TABLE,
        )
    )


def _figures(probe: Probe) -> dict[str, str]:
    from markupsafe import Markup

    from equipoise.report.checkup.figures import layers as figures
    from equipoise.report.checkup.figures.smoothness import along_figure, smoothness_figure

    drawn: dict[str, str] = {}
    if probe.landscape is not None:
        drawn["landscape"] = along_figure({"along the gradient": probe.landscape}, "along")
    if probe.training is not None and smoothness.tried(probe.training):
        drawn["smoothness"] = smoothness_figure(probe.training)
    if probe.growth is not None:
        drawn["gradients"] = figures.gradient_figure(probe.growth)
        drawn["forward"] = figures.forward_figure(probe.growth)
    # Safe to leave unescaped: the figures hold numbers and our own words only.
    return {name: Markup(svg) for name, svg in drawn.items()}
