"""Every figure and table of the papers with its verdict, ready to be shown on one page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from equipoise_papers.experiments.experiment import Scale
from equipoise_papers.experiments.verdict import Answer, Check, Fidelity, Outcome
from equipoise_papers.report.claims import Claim
from equipoise_papers.reproduction.record import Reproduction

# Raise by one whenever a stored report of the old form can no longer be read.
REPORT_SCHEMA = 3

RowStatus = Literal[Outcome, "not run", "no experiment"]
JUDGED: tuple[RowStatus, ...] = ("holds", "partly open", "mixed", "fails", "undecided")


@dataclass(frozen=True, slots=True)
class RowPart:
    """One experiment of a row.

    Args:
        experiment: Its name, such as ``yang2019.fig1a``.
        title: What its figure shows.
        claim: What the source says that it shows.
        command: What to type for the same records.
        verdict: What was concluded; ``None`` if it was not run at the scale.
        figure: Path of the picture, relative to the report's folder of records; ``None`` if
            there is none.
        problem: Why records could not be drawn or judged; ``None`` if they could.
    """

    experiment: str
    title: str
    claim: str
    command: str
    verdict: Reproduction | None = None
    figure: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A published figure, table or statement, and its verdict.

    Args:
        label: The paper's own, such as ``Fig. 2a``.
        shows: What the paper has there, in our words.
        claim: The question, and the paper's words.
        answer: The answer to the question, of the checks that the claim names; ``None`` if they
            were not judged.
        status: What became of the claim, of all parts together.
        fidelity: How near the setting is to the paper's; ``None`` if nothing was judged.
        parts: Experiments that reproduce it.
        checks: Statements that tests decide, where there is no experiment.
        see: Labels of the rows whose experiments show this one too.
        reason: Why there is no experiment of its own; empty if there is one.
    """

    label: str
    shows: str
    claim: Claim
    answer: Answer | None
    status: RowStatus
    fidelity: Fidelity | None
    parts: tuple[RowPart, ...]
    checks: tuple[Check, ...]
    see: tuple[str, ...]
    reason: str

    @property
    def judged(self) -> tuple[Check, ...]:
        """Checks of all its own parts, or those that tests decide."""
        verdicts = [part.verdict for part in self.parts if part.verdict is not None]
        return self.checks or tuple(check for found in verdicts for check in found.checks)


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of ours about a paper.

    Args:
        says: What it says, on one line.
        anchor: Where on the page of errata it is shown.
    """

    says: str
    anchor: str


@dataclass(frozen=True, slots=True)
class ReportPaper:
    """One paper's rows, in the paper's order.

    Args:
        key: Key of the bibliography, such as ``yang2019``.
        title: Its title.
        reference: Authors, place and year.
        rules: How its claims are decided.
        found: What we found beyond the paper, as names and anchors of the page of errata.
        rows: Every figure and table, and the statements.
    """

    key: str
    title: str
    reference: str
    rules: tuple[str, ...]
    found: tuple[Finding, ...]
    rows: tuple[ReportRow, ...]


@dataclass(frozen=True, slots=True)
class ReproductionReport:
    """Every figure and table of the papers at one scale; ``reproduction.json`` is this record.

    Args:
        schema: :data:`REPORT_SCHEMA` of the writer.
        equipoise: Version of the library that reported.
        scale: How much of the sources' effort was spent.
        folder: Where records, verdicts and figures lie.
        created: Time of the latest verdict, ISO 8601, UTC; ``None`` if there is none.
        seconds: Time that all cells took when they were computed, each counted once.
        papers: The papers.
    """

    schema: int
    equipoise: str
    scale: Scale
    folder: str
    created: str | None
    seconds: float
    papers: tuple[ReportPaper, ...]

    @property
    def rows(self) -> tuple[ReportRow, ...]:
        """All papers' rows."""
        return tuple(row for paper in self.papers for row in paper.rows)

    @property
    def parts(self) -> tuple[RowPart, ...]:
        """All rows' experiments."""
        return tuple(part for row in self.rows for part in row.parts)


@dataclass(frozen=True, slots=True)
class PublishedReport:
    """Where a report was written to.

    Args:
        report: What it says.
        page: The HTML page.
        files: Every file of the report, the page included.
        bytes: Their size together.
    """

    report: ReproductionReport
    page: str
    files: tuple[str, ...]
    bytes: int
