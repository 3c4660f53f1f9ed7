"""A reproduction on disk: ``reproduction.json`` for machines, ``reproduction.html`` for people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from equipoise.files import write_text
from equipoise.records.codec import write_json
from equipoise.report import wording
from equipoise.report.checkup.page import environment
from equipoise_papers.report import pictures
from equipoise_papers.report import words as digest_reproduction
from equipoise_papers.report.record import ReproductionReport, RowPart

JSON_NAME = "reproduction.json"
HTML_NAME = "reproduction.html"


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure as part of a page.

    Args:
        address: The picture itself, as a ``data:`` address.
        width: In pixels.
        height: In pixels.
    """

    address: str
    width: int
    height: int


def save_reproduction(report: ReproductionReport, directory: str | Path) -> tuple[Path, Path]:
    """Write a report as JSON and as HTML, each file whole or not at all.

    Args:
        report: What to write.
        directory: Where to; made if it does not exist.

    Returns:
        The paths of ``reproduction.json`` and ``reproduction.html``.
    """
    data, page = Path(directory) / JSON_NAME, Path(directory) / HTML_NAME
    write_json(data, report)
    write_text(page, render_reproduction(report))
    return data, page


def render_reproduction(report: ReproductionReport) -> str:
    """Render a report as a self-contained HTML page; every text in it is escaped.

    Figures are read from the report's folder and become part of the page.
    """
    shown = wording.printable(report)
    return (
        environment()
        .get_template("reproduction.html")
        .render(
            report=shown,
            words=digest_reproduction,
            figures=_figures(report),
        )
    )


def _figures(report: ReproductionReport) -> dict[str, Picture]:
    parts = [part for row in report.rows for part in row.parts]
    return {part.experiment: _picture(report, part) for part in parts if part.figure is not None}


def _picture(report: ReproductionReport, part: RowPart) -> Picture:
    assert part.figure is not None
    png = pictures.reduced(Path(report.folder) / part.figure)
    return Picture(pictures.inline(png), *pictures.size(png))
