"""What became of every figure and table of the papers, read from a folder of records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from equipoise import __version__
from equipoise.records.codec import from_plain
from equipoise_papers.report import markdown as reproduction_markdown
from equipoise_papers.report import page as reproduction_page
from equipoise_papers.report.papers import PAPERS, Paper
from equipoise_papers.report.record import (
    REPORT_SCHEMA,
    PublishedReport,
    ReportPaper,
    ReportRow,
    ReproductionReport,
    RowPart,
    RowStatus,
)
from equipoise_papers.report.rows import Row
from equipoise_papers.reproduction.archive import pack, stored_cells
from equipoise_papers.reproduction.catalogue import EXPERIMENTS
from equipoise_papers.reproduction.compute import Progress
from equipoise_papers.reproduction.everything import redraw_all
from equipoise_papers.reproduction.outputs import VERDICT_NAME
from equipoise_papers.reproduction.record import REPRODUCTION_SCHEMA, Reproduction, Scale
from equipoise_papers.reproduction.store import has_records, require_stores

_FIGURE = "figure.png"
RECORDS = "records"


def publish(
    out: str | Path,
    *,
    scale: Scale = "small",
    page: str | Path,
    progress: Progress = lambda stage, done, total: None,
) -> PublishedReport:
    """Write the report of a folder of records: a page, Markdown, figures and the records.

    Figures and verdicts are made anew, so that no number on the page can be older than its
    record; nothing is computed.

    Args:
        out: Folder that :func:`equipoise_papers.reproduction.reproduce` wrote to.
        scale: Which records.
        page: Folder for the report; made if it does not exist.
        progress: Told ``drawing``, the number of finished and of all experiments.

    Raises:
        ValueError: If the folder holds no records.
    """
    require_stores(Path(out))
    problems = redraw_all(out, scale, progress)
    report = collect_report(out, scale, problems)
    written = (
        *reproduction_page.save_reproduction(report, page),
        *reproduction_markdown.save_markdown(report, page),
        *pack(out, Path(page) / RECORDS, scale),
    )
    files = tuple(sorted({*written}))
    return PublishedReport(
        report=report,
        page=str(Path(page) / reproduction_page.HTML_NAME),
        files=tuple(map(str, files)),
        bytes=sum(path.stat().st_size for path in files),
    )


def collect_report(
    root: str | Path, scale: Scale, problems: Mapping[str, str] | None = None
) -> ReproductionReport:
    """Read every verdict of a scale into one record, row by row; nothing is written.

    Args:
        root: Folder of records, verdicts and figures.
        scale: Which of them.
        problems: Why an experiment's records could not be drawn or judged, by its name.

    Raises:
        ValueError: If a verdict cannot be read.
    """
    folder = Path(root)
    papers = tuple(_paper(paper, folder, scale, problems or {}) for paper in PAPERS)
    parts = [part for paper in papers for row in paper.rows for part in row.parts]
    created = [part.verdict.created for part in parts if part.verdict is not None]
    return ReproductionReport(
        schema=REPORT_SCHEMA,
        equipoise=__version__,
        scale=scale,
        folder=str(folder),
        created=max(created, default=None),
        seconds=_seconds(folder, scale),
        papers=papers,
    )


def _paper(paper: Paper, root: Path, scale: Scale, problems: Mapping[str, str]) -> ReportPaper:
    parts = {
        row.label: tuple(_part(name, root, scale, problems.get(name)) for name in row.experiments)
        for row in paper.rows
    }
    rows = tuple(_row(row, parts) for row in paper.rows)
    return ReportPaper(paper.key, paper.title, paper.reference, rows)


def _row(row: Row, parts: Mapping[str, tuple[RowPart, ...]]) -> ReportRow:
    shown = [*parts[row.label], *(part for label in row.see for part in parts[label])]
    return ReportRow(
        label=row.label,
        shows=row.shows,
        status=combined([_status(part) for part in shown]),
        parts=parts[row.label],
        see=row.see,
        reason=row.reason,
    )


def _part(name: str, root: Path, scale: Scale, problem: str | None) -> RowPart:
    experiment = EXPERIMENTS.get(name)
    # Without records a verdict is an older version's.
    known = experiment is not None and not problem and has_records(experiment, root, scale)
    verdict = _verdict(root / name / scale) if known else None
    figure = Path(name) / scale / _FIGURE
    command = f"equipoise reproduce {name} --scale {scale}"
    if verdict is not None:
        # Where the records happened to lie is nobody else's business.
        verdict = replace(verdict, command=command, folder=str(Path(name) / scale))
        title, claim = verdict.title, verdict.claim
    else:
        title, claim = (experiment.title, experiment.claim) if experiment else (name, "")
    return RowPart(
        experiment=name,
        title=title,
        claim=claim,
        command=command,
        verdict=verdict,
        figure=str(figure) if verdict is not None and (root / figure).is_file() else None,
        problem=problem,
    )


def _verdict(folder: Path) -> Reproduction | None:
    path = folder / VERDICT_NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != REPRODUCTION_SCHEMA:
            raise ValueError(f"schema {data['schema']!r} is not {REPRODUCTION_SCHEMA}")
        return from_plain(Reproduction, data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{str(path)!r} is no verdict of this version: {error}. Make it anew from its records "
            "with `equipoise reproduce NAME --redraw`."
        ) from error


def _status(part: RowPart) -> RowStatus:
    if part.problem is not None:
        return "incomplete"
    return "not run" if part.verdict is None else part.verdict.outcome


def combined(statuses: list[RowStatus]) -> RowStatus:
    """One word for several parts.

    Examples:
        >>> combined(["reproduced", "reproduced"]), combined(["reproduced", "not reproduced"])
        ('reproduced', 'partly')
        >>> combined(["reproduced", "not run"]), combined([])
        ('incomplete', 'no experiment')
    """
    kinds = {*statuses}
    if len(kinds) <= 1:
        return statuses[0] if statuses else "no experiment"
    unfinished = kinds & {"incomplete", "not run", "not judged"}
    return "incomplete" if unfinished else "partly"


def _seconds(root: Path, scale: Scale) -> float:
    """Time that all cells took; one that experiments share counts once."""
    files = [path for paths in stored_cells(root, scale).values() for path in paths]
    return sum(float(json.loads(path.read_text(encoding="utf-8"))["seconds"]) for path in files)
