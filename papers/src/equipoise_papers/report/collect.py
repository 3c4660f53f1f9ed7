"""Collect the verdict of every figure and table of the papers, and publish them as a report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from equipoise import __version__
from equipoise.instrument import Progress
from equipoise.records import from_plain
from equipoise_papers.experiments.experiment import Scale
from equipoise_papers.experiments.verdict import Check, Fidelity, answer_of, outcome_of
from equipoise_papers.report.claims import Claim
from equipoise_papers.report.markdown import save_markdown
from equipoise_papers.report.page import HTML_NAME, save_reproduction
from equipoise_papers.report.papers import PAPERS, Paper
from equipoise_papers.report.record import (
    JUDGED,
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
from equipoise_papers.reproduction.everything import redraw_all
from equipoise_papers.reproduction.folders import has_records, require_stores
from equipoise_papers.reproduction.outputs import VERDICT_NAME
from equipoise_papers.reproduction.record import VERDICT_SCHEMA, Reproduction

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

    Figures and verdicts are made again, so that no number on the page is older than its record.
    Nothing is computed.

    Args:
        out: Folder that :func:`equipoise_papers.reproduce` wrote to.
        scale: Which records.
        page: Folder for the report; made if it does not exist.
        progress: Called with ``drawing``, the number of finished and of all experiments.

    Raises:
        ValueError: If the folder holds no records.
    """
    require_stores(Path(out))
    problems = redraw_all(out, scale, progress)
    report = collect_report(out, scale, problems)
    written = (
        *save_reproduction(report, page),
        *save_markdown(report, page),
        *pack(out, Path(page) / RECORDS, scale),
    )
    files = tuple(sorted({*written}))
    return PublishedReport(
        report=report,
        page=str(Path(page) / HTML_NAME),
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
    report = ReproductionReport(
        schema=REPORT_SCHEMA,
        equipoise=__version__,
        scale=scale,
        folder=str(folder),
        created=None,
        seconds=_seconds(folder, scale),
        papers=papers,
    )
    created = [part.verdict.created for part in report.parts if part.verdict is not None]
    return replace(report, created=max(created, default=None))


def _paper(paper: Paper, root: Path, scale: Scale, problems: Mapping[str, str]) -> ReportPaper:
    parts = {
        row.label: tuple(_part(name, root, scale, problems.get(name)) for name in row.experiments)
        for row in paper.rows
    }
    rows = tuple(_row(row, paper.claims[row.label], parts) for row in paper.rows)
    return ReportPaper(paper.key, paper.title, paper.reference, paper.rules, paper.found, rows)


def _row(row: Row, claim: Claim, parts: Mapping[str, tuple[RowPart, ...]]) -> ReportRow:
    shown = [*parts[row.label], *(part for label in row.see for part in parts[label])]
    tested = tuple(statement.check() for statement in row.tested)
    found = ReportRow(
        label=row.label,
        shows=row.shows,
        claim=claim,
        answer=None,
        status=_outcome(row, shown),
        fidelity="same setting" if tested else farthest(shown),
        parts=parts[row.label],
        checks=tested,
        see=row.see,
        reason=row.reason,
    )
    if found.status not in JUDGED:  # part of a row's numbers answers nothing
        return found
    checks = tested or tuple(_checks(shown))
    return replace(found, answer=answer_of(claim.answering(checks)))


def _outcome(row: Row, shown: Sequence[RowPart]) -> RowStatus:
    """What became of a row's claim: of the sentences of all its parts together."""
    if row.unavailable:
        return "not testable here"
    if row.tested:
        return outcome_of(tuple(statement.check() for statement in row.tested))
    statuses = {_status(part) for part in shown}
    if not statuses:
        return "no experiment"
    if not statuses <= {*JUDGED}:
        return statuses.pop() if len(statuses) == 1 else "incomplete"
    return outcome_of(tuple(_checks(shown)))


def _checks(shown: Sequence[RowPart]) -> Iterator[Check]:
    return (check for part in shown if part.verdict is not None for check in part.verdict.checks)


def _part(name: str, root: Path, scale: Scale, problem: str | None) -> RowPart:
    experiment = EXPERIMENTS.get(name)
    # A verdict without records was left by an older version.
    known = experiment is not None and not problem and has_records(experiment, root, scale)
    verdict = _verdict(root / name / scale) if known else None
    figure = Path(name) / scale / _FIGURE
    command = f"equipoise reproduce {name} --scale {scale}"
    if verdict is not None:
        # A published report names no folder of the machine that made it.
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
        if data["schema"] != VERDICT_SCHEMA:
            raise ValueError(f"schema {data['schema']!r} is not {VERDICT_SCHEMA}")
        return from_plain(Reproduction, data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{str(path)!r} is no verdict of this version: {error}. Make it again from its "
            "records with `equipoise reproduce NAME --redraw`."
        ) from error


def _status(part: RowPart) -> RowStatus:
    if part.problem is not None:
        return "incomplete"
    return "not run" if part.verdict is None else part.verdict.outcome


def farthest(parts: Sequence[RowPart]) -> Fidelity | None:
    """The fidelity of the part that is farthest from the paper's setting."""
    order: tuple[Fidelity, ...] = get_args(Fidelity)
    judged = [part.verdict.fidelity for part in parts if part.verdict and part.verdict.checks]
    return max(judged, key=order.index) if judged else None


def _seconds(root: Path, scale: Scale) -> float:
    """Time that all cells took; cells that experiments share count once."""
    files = [path for paths in stored_cells(root, scale).values() for path in paths]
    return sum(float(json.loads(path.read_text(encoding="utf-8"))["seconds"]) for path in files)
