"""A probe on disk: ``probe.json`` for machines, ``probe.html`` for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.files import write_text
from equipoise.records.codec import write_json
from equipoise.report import wording
from equipoise.report.checkup.page import LONG_TABLE, environment
from equipoise.report.checkup.words import smoothness as digest_smoothness
from equipoise.report.probe import words as digest_probe

if TYPE_CHECKING:
    from equipoise.diagnosis.probe import Probe

JSON_NAME = "probe.json"
HTML_NAME = "probe.html"


def save_probe(probe: Probe, directory: str | Path) -> tuple[Path, Path]:
    """Write a probe as JSON and as HTML, each file whole or not at all.

    Args:
        probe: What to write.
        directory: Where to; made if it does not exist.

    Returns:
        The paths of ``probe.json`` and ``probe.html``.
    """
    data, page = Path(directory) / JSON_NAME, Path(directory) / HTML_NAME
    write_json(data, probe)
    write_text(page, render_probe(probe))
    return data, page


def render_probe(probe: Probe) -> str:
    """Render a probe as a self-contained HTML page; every text in it is escaped."""
    probe = wording.printable(probe)
    return (
        environment()
        .get_template("probe.html")
        .render(
            probe=probe,
            smoothness=probe.training,
            words=digest_probe,
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
    if probe.training is not None and digest_smoothness.tried(probe.training):
        drawn["smoothness"] = smoothness_figure(probe.training)
    if probe.growth is not None:
        drawn["gradients"] = figures.gradient_figure(probe.growth)
        drawn["forward"] = figures.forward_figure(probe.growth)
    # Safe to leave unescaped: the figures hold numbers and our own words only.
    return {name: Markup(svg) for name, svg in drawn.items()}
