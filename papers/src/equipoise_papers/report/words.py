"""The words of a report: what holds, and why the rest does not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from equipoise.report import wording
from equipoise_papers.report.record import (
    ReportPaper,
    ReportRow,
    ReproductionReport,
    RowPart,
    RowStatus,
)
from equipoise_papers.reproduction.summary import duration

# From best to least known; the tone is a class of the page's style sheet.
TONES: dict[RowStatus, str] = {
    "reproduced": "good",
    "partly": "warning",
    "not reproduced": "critical",
    "undecided": "note",
    "incomplete": "note",
    "not judged": "note",
    "not run": "none",
    "no experiment": "none",
}
MARKS: dict[RowStatus, str] = {
    "reproduced": "✔",
    "partly": "◐",
    "not reproduced": "✖",
    "undecided": "?",
    "incomplete": "…",
    "not judged": "·",
    "not run": "○",
    "no experiment": "–",
}
_JUDGED: tuple[RowStatus, ...] = ("reproduced", "partly", "not reproduced", "undecided")
CHECK_TONES = {"yes": "good", "no": "critical", "undecided": "note"}
CHECK_MARKS = {"yes": "✔", "no": "✖", "undecided": "?"}
# Further ones are folded, so that one row does not fill the page.
MOST_CHECKS, MOST_FAILURES = 8, 3


def sentence(report: ReproductionReport) -> str:
    """Say how many rows hold, and how many do not."""
    found = Counter(row.status for row in report.rows)
    if not any(found[status] for status in _JUDGED):
        return "Nothing is judged yet"
    whole, partly, failed, undecided = (found[status] for status in _JUDGED)
    parts = [f"{whole} reproduced"]
    parts += [f"{partly} partly"] if partly else []
    parts += [f"{failed} not"] if failed else []
    parts += [f"{undecided} undecided"] if undecided else []
    return ", ".join(parts)


def scope(report: ReproductionReport) -> str:
    """Say what the sentence counts."""
    rows = report.rows
    empty = sum(row.status == "no experiment" for row in rows)
    open_ = sum(row.status in ("incomplete", "not judged", "not run") for row in rows)
    text = f"of {len(rows) - empty} figures, tables and statements of {len(report.papers)} papers"
    if open_:
        text += f"; {open_} not finished or judged"
    return f"{text}. {empty} more have no experiment, and say why."


def shares(rows: Sequence[ReportRow]) -> list[tuple[RowStatus, int]]:
    """Count rows by status, the best first, without empty ones."""
    found = Counter(row.status for row in rows)
    return [(status, found[status]) for status in TONES if found[status]]


def facts(report: ReproductionReport) -> dict[str, str]:
    """Numbers about the whole report."""
    verdicts = [part.verdict for part in report.parts if part.verdict is not None]
    checks = [c for verdict in verdicts for c in verdict.checks if not c.ours]
    return {
        "Scale": report.scale,
        "Experiments run": f"{len(verdicts)} of {len(report.parts)}",
        "Sentences that hold": f"{sum(c.holds is True for c in checks)} of {len(checks)}",
        "Computing time, one core": duration(report.seconds),
    }


def why(part: RowPart, scale: str) -> str:
    """Explain an experiment's verdict in one sentence."""
    verdict = part.verdict
    if part.problem is not None:
        return f"Its records could not be drawn or judged: {part.problem}"
    if verdict is None:
        return f"Not run at scale {scale}."
    if verdict.outcome == "incomplete":
        done = f"{verdict.finished} of {verdict.cells} cells are finished"
        return f"{done}; a claim is never judged by part of its numbers."
    answers = [check.holds for check in verdict.checks if not check.ours]
    if not answers:
        alone = "The source claims nothing here that could be judged; we add a check of ours."
        return alone if verdict.checks else f"Nothing is judged at scale {scale}."
    held = _held(answers.count(True), len(answers))
    if None in answers:
        held += f", {answers.count(None)} undecided"
    # Parts that were left out make a verdict "partly" even where every sentence holds.
    return f"{held}; not everything was attempted." if verdict.left_out else f"{held}."


def _held(held: int, sentences: int) -> str:
    if sentences == 1:
        return "The claim holds" if held else "The claim does not hold"
    if not held:
        return f"None of the claim's {sentences} sentences holds"
    if held < sentences:
        verb = "holds" if held == 1 else "hold"
        return f"{held} of the claim's {sentences} sentences {verb}"
    every = "Both" if sentences == 2 else f"All {sentences}"
    return f"{every} sentences of the claim hold"


def reason(row: ReportRow, scale: str) -> str:
    """Explain a row's verdict in a few words."""
    if not row.parts:
        return row.reason
    return " ".join(dict.fromkeys(why(part, scale) for part in row.parts))


def claim(row: ReportRow) -> str:
    """The source's claims of all parts, each once."""
    return " ".join(dict.fromkeys(part.claim for part in row.parts))


def effort(part: RowPart) -> str:
    """Say how much was computed, and in what time."""
    verdict = part.verdict
    if verdict is None:
        return ""
    cells = wording.count(verdict.cells, "cell")
    if verdict.finished < verdict.cells:
        cells = f"{verdict.finished} of {cells}"
    return f"scale {verdict.scale}, {cells}, {duration(verdict.seconds)}"


def seconds(row: ReportRow) -> str:
    """Time that a row's cells took; empty if none was run."""
    spent = [part.verdict.seconds for part in row.parts if part.verdict is not None]
    return duration(sum(spent)) if spent else ""


def shared_choices(paper: ReportPaper) -> tuple[str, ...]:
    """Choices that several of a paper's experiments made, which are shown once."""
    choices = Counter(
        choice
        for row in paper.rows
        for part in row.parts
        if part.verdict is not None
        for choice in dict.fromkeys(part.verdict.choices)
    )
    return tuple(choice for choice, times in choices.items() if times > 1)


def who_made(paper: ReportPaper, choice: str) -> str:
    """Name the rows whose experiments share a choice, such as ``2a, 2b, 4a``."""
    made = [
        short(row.label)
        for row in paper.rows
        if any(part.verdict is not None and choice in part.verdict.choices for part in row.parts)
    ]
    return ", ".join(made)


def own_choices(part: RowPart, shared: Sequence[str]) -> tuple[str, ...]:
    """Choices of one experiment alone."""
    choices = () if part.verdict is None else part.verdict.choices
    return tuple(choice for choice in choices if choice not in shared)


def short(label: str) -> str:
    """Shorten a label to what fits a small field.

    Examples:
        >>> short("Fig. 2a"), short("Fig. 4, right, FC"), short("Table 1"), short("Theorems")
        ('2a', '4 right FC', 'Tab. 1', 'Theorems')
    """
    return label.removeprefix("Fig. ").replace("Table", "Tab.").replace(",", "")


def slug(label: str) -> str:
    """Turn a label into the name of an anchor, as Markdown does with headings.

    Examples:
        >>> slug("Fig. 4, right, FC")
        'fig-4-right-fc'
    """
    return re.sub(r"[^\w\- ]", "", label.lower()).replace(" ", "-")


def moment(created: str) -> str:
    """Write an ISO 8601 time for people.

    Examples:
        >>> moment("2026-11-21T10:39:12+00:00")
        '2026-11-21 10:39 UTC'
    """
    time = datetime.fromisoformat(created)
    return f"{time:%Y-%m-%d %H:%M} {time.tzname() or ''}".rstrip()
