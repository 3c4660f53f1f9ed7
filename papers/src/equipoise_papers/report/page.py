"""A report on disk: ``reproduction.json`` for programs, ``reproduction.html`` for people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from equipoise.files import write_text
from equipoise.records import write_json
from equipoise.report import environment, wording
from equipoise_papers.report import pictures, words
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
    template = environment("equipoise_papers.report").get_template("papers.html")
    shown = {part.experiment: part for part in report.parts if part.figure is not None}
    return template.render(
        report=wording.printable(report),
        words=words,
        figures={name: _picture(report, part) for name, part in shown.items()},
    )


def _picture(report: ReproductionReport, part: RowPart) -> Picture:
    assert part.figure is not None
    png = pictures.reduced(Path(report.folder) / part.figure)
    return Picture(pictures.inline(png), *pictures.size(png))
