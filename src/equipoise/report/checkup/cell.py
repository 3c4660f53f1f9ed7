"""What a notebook shows of a check-up: its first screen, with the whole page folded below."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from equipoise.diagnosis.record import Checkup
from equipoise.records import wording
from equipoise.report.checkup.figures.layers import paint_gradients
from equipoise.report.checkup.page import render_checkup
from equipoise.report.checkup.words import first_screen, overview
from equipoise.report.pages import MARKS
from equipoise.report.svg import picture_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Height of the whole page inside a cell, in pixels.
_HEIGHT = 640


def cell(checkup: Checkup) -> str:
    """Render the first screen as a fragment of HTML; every text of the record is escaped."""
    shown = wording.printable(checkup)
    verdict = shown.verdict
    mark = MARKS[verdict.severity] if verdict.severity else "●"
    findings = "".join(
        f"<li>{MARKS[one.severity]} <b>{escape(one.title)}.</b> "
        f"{escape(one.remedy or one.detail)}</li>"
        for one in shown.headlines
    )
    code = first_screen.change_as_code(shown)
    remedy = f"<pre><code>{escape(code)}</code></pre>" if code else ""
    page = escape(render_checkup(checkup), quote=True)
    return (
        f'<div style="max-width: 46em"><p><b>{mark} {escape(verdict.sentence)}</b><br>'
        f"{escape(verdict.details)}</p>"
        f"<p><small>{escape(shown.target)} on {escape(shown.data)}, batches of "
        f"{shown.batch_size:,}; {escape(first_screen.assumed(shown))}</small></p>"
        f'<ul style="list-style: none; padding: 0">{findings}</ul>{remedy}'
        f"<details><summary>The whole report</summary>"
        f'<iframe srcdoc="{page}" width="100%" height="{_HEIGHT}" frameborder="0"></iframe>'
        "</details></div>"
    )


def picture(checkup: Checkup) -> Figure:
    """Draw gradients per layer, measured and predicted.

    Raises:
        ValueError: If they were not measured.
    """
    growth = checkup.growth
    if growth is None or not growth.layers:
        raise ValueError("gradients were not measured, so there is nothing to draw.")
    predictions = overview.predictions(checkup)
    return picture_of(290, lambda figure: paint_gradients(figure, growth, predictions))
