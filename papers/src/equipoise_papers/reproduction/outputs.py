"""Write an experiment's figure, verdict and summary, in one folder per scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from equipoise import __version__
from equipoise.files import write_text
from equipoise.records import write_json
from equipoise.report import wording
from equipoise_papers.experiments.experiment import Experiment, Scale
from equipoise_papers.experiments.style import empty_figure, house_style, save_figure
from equipoise_papers.experiments.verdict import Fidelity, Outcome, Verdict
from equipoise_papers.reproduction.record import VERDICT_SCHEMA, Reproduction
from equipoise_papers.reproduction.summary import summary
from equipoise_papers.sweeps.cell import Cell, Result

VERDICT_NAME, SUMMARY_NAME = "verdict.json", "summary.md"
# Panels side by side on one sheet.
_COLUMNS = 2

Panel = tuple[Experiment, Sequence[Result[Any]]]


def write_panel(
    experiment: Experiment,
    results: Sequence[Result[Any]],
    scale: Scale,
    folder: Path,
    command: str,
) -> Reproduction:
    """Draw, judge and describe one experiment.

    Args:
        experiment: The experiment of the results.
        results: Finished and failed cells.
        scale: Which scale they belong to.
        folder: Where figure, verdict and summary go.
        command: What to type for the same records.
    """
    reproduction = _conclude(experiment, results, scale, folder, command)
    write_sheet([(experiment, results)], folder)
    write_json(folder / VERDICT_NAME, reproduction)
    write_text(folder / SUMMARY_NAME, summary(reproduction))
    return reproduction


def write_sheet(panels: Sequence[Panel], folder: Path) -> Path | None:
    """Draw panels on one sheet; those without a finished cell are left out.

    Returns:
        The picture; ``None`` if there is nothing to draw.
    """
    drawable = [(experiment, finished(results)) for experiment, results in panels]
    drawable = [(experiment, records) for experiment, records in drawable if records]
    if not drawable:
        return None
    columns = min(_COLUMNS, len(drawable))
    rows = -(-len(drawable) // columns)
    with house_style():
        sheet = empty_figure(rows, columns)
        places = sheet.subfigures(rows, columns, squeeze=False).flat
        for place, (experiment, records) in zip(places, drawable, strict=False):
            experiment.draw(place, records)
        return save_figure(sheet, folder)


def finished(results: Sequence[Result[Any]]) -> dict[Cell[Any], Any]:
    """Records by cell, of the cells that have one."""
    return {result.cell: result.record for result in results if result.record is not None}


def _conclude(
    experiment: Experiment,
    results: Sequence[Result[Any]],
    scale: Scale,
    folder: Path,
    command: str,
) -> Reproduction:
    cells = experiment.cells_here(scale, {result.cell for result in results})
    records = finished(results)
    whole = len(records) == len(cells)
    # A claim is never judged by part of its numbers.
    verdict = experiment.judge(records) if whole else Verdict(())
    outcome: Outcome = verdict.outcome if whole else "incomplete"
    return Reproduction(
        schema=VERDICT_SCHEMA,
        equipoise=__version__,
        experiment=experiment.name,
        title=experiment.title,
        claim=experiment.claim,
        scale=scale,
        outcome=outcome,
        fidelity=_fidelity(experiment, verdict, scale),
        checks=verdict.checks,
        left_out=verdict.left_out,
        choices=experiment.choices,
        cells=len(cells),
        finished=len(records),
        failures=tuple(f"{r.cell}: {r.failure}" for r in results if r.failure is not None),
        seconds=sum(result.seconds for result in results),
        provenance=_provenance(results),
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        folder=str(folder),
    )


def _fidelity(experiment: Experiment, verdict: Verdict, scale: Scale) -> Fidelity:
    """That of the verdict; what smoke leaves out of a setting is no source's setting."""
    less = scale == "smoke" and experiment.cells("smoke") != experiment.cells("small")
    return "reduced" if less and verdict.fidelity == "same setting" else verdict.fidelity


def _provenance(results: Sequence[Result[Any]]) -> tuple[str, ...]:
    """Name what computed the cells, with the range of the machines' loads."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for result in results:
        made = result.provenance
        key = () if made is None else (made.commit, made.torch, made.device, str(made.threads))
        groups.setdefault(key, []).append(math.nan if made is None else made.load)
    return tuple(_origin(key, loads) for key, loads in groups.items())


def _origin(key: tuple[str, ...], loads: list[float]) -> str:
    cells = wording.count(len(loads), "cell")
    if not key:
        return f"{cells}: not kept, on CPUs, one thread, other work on the machine"
    commit, torch, device, threads = key
    return (
        f"{cells}: commit {commit}, torch {torch}, {device}, threads {threads}, load "
        f"{min(loads):.1f} to {max(loads):.1f}"
    )
