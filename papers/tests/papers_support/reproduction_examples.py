"""Reports of reproductions: one with every status, an empty one, and one of hostile texts."""

from __future__ import annotations

import dataclasses
import io
from functools import cache
from pathlib import Path

from matplotlib.figure import Figure

from equipoise_papers.experiments.verdict import Check, Verdict, answer_of
from equipoise_papers.report.claims import Claim
from equipoise_papers.report.record import (
    REPORT_SCHEMA,
    Finding,
    ReportPaper,
    ReportRow,
    ReproductionReport,
    RowPart,
)
from equipoise_papers.reproduction.record import VERDICT_SCHEMA, Reproduction
from support.report_examples import HOSTILE_NAMES

OPEN = Check("BN generalises better", "83.1 ± 0.9 % against 82.7 ± 0.8 %", None)
HOLDS = Check("BN trains faster", "0.43 ± 0.01 against 1.01 ± 0.2", True)
FAILS = Check("by two orders of magnitude", "a factor 3.2", False)
RULES = ("seed by seed, by Student's t",)
FOUND = (Finding("it is wrong", "one"),)
SHARED = "Fashion-MNIST in place of CIFAR-10"


@cache
def picture() -> bytes:
    """A figure with a line, as a PNG."""
    figure = Figure(figsize=(5.6, 4.2), layout="constrained")
    figure.subplots().plot([0, 1, 4, 9])
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=160)
    return buffer.getvalue()


def verdict(name, checks=(HOLDS,), **changes):
    """A verdict on so many checks."""
    found = Verdict(tuple(checks), changes.pop("left_out", ()))
    parts = {
        "schema": VERDICT_SCHEMA,
        "equipoise": "0.1.0",
        "experiment": name,
        "title": f"What {name} shows",
        "claim": f"The claim of {name}",
        "scale": "small",
        "outcome": found.outcome,
        "fidelity": "reduced" if found.left_out else "same setting",
        "checks": found.checks,
        "left_out": found.left_out,
        "choices": (SHARED, f"a choice of {name}"),
        "cells": 12,
        "finished": 12,
        "failures": (),
        "seconds": 480.0,
        "provenance": ("12 cells: commit 1a2b3c4, torch 2.12.0, cpu, threads 1, load 0.5 to 2.0",),
        "command": f"equipoise reproduce {name} --scale small --out /home/me",
        "created": "2026-11-21T10:39:12+00:00",
        "folder": f"/home/me/{name}/small",
    }
    return Reproduction(**(parts | changes))


def part(name, found=None, **changes):
    """One experiment, run if there is a verdict."""
    parts = {
        "experiment": name,
        "title": f"What {name} shows",
        "claim": f"The claim of {name}",
        "command": f"equipoise reproduce {name} --scale small",
        "verdict": found,
        "figure": None if found is None else f"{name}/small/figure.png",
    }
    return RowPart(**(parts | changes))


def row(label, status, *parts, see=(), reason="", checks=()):
    """A row of a paper."""
    claim = Claim(f"Does {label} hold?", f"words of {label}", "Section 2")
    found = [part.verdict.fidelity for part in parts if part.verdict and part.verdict.checks]
    judged = checks or tuple(c for part in parts if part.verdict for c in part.verdict.checks)
    return ReportRow(
        label=label,
        shows=f"What {label} shows.",
        claim=claim,
        answer=answer_of(judged),
        status=status,
        fidelity=max(found, default=None),
        parts=parts,
        checks=checks,
        see=see,
        reason=reason,
    )


def whole(folder: Path) -> ReproductionReport:
    """Two papers with rows of every status; the figures are in the folder."""
    names = ("one.fig1", "one.fig2", "one.fig3", "one.fig4", "two.table1", "two.fig2")
    for name in names:
        figure = folder / name / "small" / "figure.png"
        figure.parent.mkdir(parents=True, exist_ok=True)
        figure.write_bytes(picture())
    unfinished = {"outcome": "incomplete", "checks": (), "finished": 7}
    first = (
        row("Fig. 1", "holds", part("one.fig1", verdict("one.fig1"))),
        row(
            "Fig. 2, left",
            "mixed",
            part("one.fig2", verdict("one.fig2", (HOLDS, FAILS), left_out=("CIFAR-10",))),
            part("one.fig3", verdict("one.fig3", (FAILS,))),
        ),
        row("Fig. 3", "no experiment", reason="It measures nothing."),
        row(
            "Fig. 4",
            "incomplete",
            part("one.fig4", verdict("one.fig4", failures=("x: OSError: no",), **unfinished)),
        ),
        row("Fig. 5", "holds", see=("Fig. 1",), reason="As in Fig. 1."),
    )
    second = (
        row("Table 1", "fails", part("two.table1", verdict("two.table1", (FAILS, FAILS)))),
        row("Fig. 1", "not run", part("two.fig1")),
        row("Fig. 2", "not judged", part("two.fig2", verdict("two.fig2", ()))),
        row("Fig. 3", "incomplete", part("two.fig3", problem="ValueError: no seeds")),
        row(
            "Fig. 4",
            "partly open",
            part("two.fig4", verdict("two.fig4", (HOLDS, HOLDS, OPEN)), figure=None),
        ),
    )
    return ReproductionReport(
        schema=REPORT_SCHEMA,
        equipoise="0.1.0",
        scale="small",
        folder=str(folder),
        created="2026-11-21T10:39:12+00:00",
        seconds=5400.0,
        papers=(
            ReportPaper("one", "A First Paper", "A. Author. 2018.", RULES, FOUND, first),
            ReportPaper("two", "A Second Paper", "B. Author. 2019.", (), (), second),
        ),
    )


def empty(folder: Path) -> ReproductionReport:
    """Nothing was run."""
    rows = (row("Fig. 1", "not run", part("one.fig1")),)
    papers = (ReportPaper("one", "A First Paper", "A. Author. 2018.", (), (), rows),)
    return dataclasses.replace(whole(folder), papers=papers, created=None, seconds=0.0)


def hostile(folder: Path) -> ReproductionReport:
    """Every text is one that breaks pages."""
    names = HOSTILE_NAMES
    rows = tuple(
        ReportRow(
            f"Fig. {i}",
            name,
            Claim(name, name, name),
            "partly",
            "mixed",
            "reduced",
            (
                part(
                    f"one.fig{i}",
                    verdict(
                        f"one.fig{i}",
                        (Check(name, name, True), Check(name, name, False)),
                        left_out=(name,),
                        choices=(name, "|", "# no heading"),
                        failures=(name,),
                    ),
                    title=name,
                    claim=name,
                    command=f"equipoise reproduce '{name}'".replace("\n", " "),
                    figure=None,
                ),
            ),
            (),
            (),
            "",
        )
        for i, name in enumerate(names, start=1)
    )
    papers = (
        ReportPaper("one", names[0], names[1], (names[0],), (Finding(names[1], "one"),), rows),
    )
    return dataclasses.replace(whole(folder), papers=papers)


REPORTS = {"whole": whole, "empty": empty, "hostile": hostile}
