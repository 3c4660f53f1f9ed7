"""The words of a report: what holds, and why the rest does not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import get_args

from equipoise.report import wording
from equipoise_papers.experiments.verdict import Answer, Check, Fidelity, deciding
from equipoise_papers.report.record import (
    JUDGED,
    ReportPaper,
    ReportRow,
    ReproductionReport,
    RowPart,
    RowStatus,
)
from equipoise_papers.reproduction.summary import duration

# From best to least known; the tone is a class of the page's style sheet.
TONES: dict[RowStatus, str] = {
    "holds": "good",
    "partly open": "note",
    "mixed": "warning",
    "fails": "critical",
    "undecided": "note",
    "not testable here": "none",
    "incomplete": "note",
    "not judged": "note",
    "not run": "none",
    "no experiment": "none",
}
MARKS: dict[RowStatus, str] = {
    "holds": "✔",
    "partly open": "◔",
    "mixed": "◐",
    "fails": "✖",
    "undecided": "?",
    "not testable here": "∅",
    "incomplete": "…",
    "not judged": "·",
    "not run": "○",
    "no experiment": "–",
}
CHECK_TONES = {"yes": "good", "no": "critical", "undecided": "note"}
CHECK_MARKS = {"yes": "✔", "no": "✖", "undecided": "?"}
ANSWER: dict[Answer, str] = {
    "yes": "Yes.",
    "partly": "Partly.",
    "no": "No.",
    "undecided": "Undecided.",
}
# Further ones are folded, so that one row does not fill the page.
MOST_CHECKS, MOST_FAILURES, MOST_OTHERS = 8, 3, 12
# Brackets with words or tolerances, no parts of formulas.
_BRACKETS = re.compile(r" \([^()]*([A-Za-z]{3}|%)[^()]*\)")


def sentence(report: ReproductionReport) -> str:
    """Say how many claims hold, and how many do not."""
    found = Counter(row.status for row in report.rows)
    if not any(found[status] for status in JUDGED):
        return "Nothing is judged yet"
    whole, part, mixed, failed, undecided = (found[status] for status in JUDGED)
    parts = [f"{whole} claims hold" if whole != 1 else "1 claim holds"]
    parts += [f"{part} {'is' if part == 1 else 'are'} partly open"] if part else []
    parts += [f"{mixed} {'is' if mixed == 1 else 'are'} mixed"] if mixed else []
    parts += [f"{failed} {'fails' if failed == 1 else 'fail'}"] if failed else []
    parts += [f"{undecided} {'is' if undecided == 1 else 'are'} undecided"] if undecided else []
    return ", ".join(parts)


def answers(report: ReproductionReport) -> str:
    """Say how the questions are answered; empty if none is."""
    found = Counter(row.answer for row in report.rows if row.answer is not None)
    said = [f"{name} to {found[name]}" for name in ANSWER if found[name]]
    return f"The questions asked of them: {', '.join(said)}." if said else ""


def scope(report: ReproductionReport) -> str:
    """Say what the sentence counts."""
    rows = report.rows
    empty = sum(row.status in ("no experiment", "not testable here") for row in rows)
    open_ = sum(row.status in ("incomplete", "not judged", "not run") for row in rows)
    text = f"of {len(rows) - empty} figures, tables and statements of {len(report.papers)} papers"
    if open_:
        text += f"; {open_} not finished or judged"
    return f"{text}. {empty} more measure nothing or were not available, and say so."


def shares(rows: Sequence[ReportRow]) -> list[tuple[RowStatus, int]]:
    """Count rows by status, the best first, without empty ones."""
    found = Counter(row.status for row in rows)
    return [(status, found[status]) for status in TONES if found[status]]


def facts(report: ReproductionReport) -> dict[str, str]:
    """Numbers about the whole report."""
    verdicts = [part.verdict for part in report.parts if part.verdict is not None]
    settings = Counter(row.fidelity for row in report.rows if row.fidelity is not None)
    return {
        "Scale": report.scale,
        "Experiments run": f"{len(verdicts)} of {len(report.parts)}",
        "Settings": ", ".join(f"{settings[name]} {name}" for name in get_args(Fidelity)),
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
    decisive = deciding(verdict.checks)
    if decisive is None:
        alone = "The source claims nothing here that could be judged; we add checks of ours."
        return alone if verdict.checks else f"Nothing is judged at scale {scale}."
    return _decided(decisive)


def _decided(check: Check) -> str:
    answer = {True: "Holds", False: "Refuted", None: "Undecided"}[check.holds]
    return f"{answer}: {check.claim}: {check.found}."


def reason(row: ReportRow, scale: str) -> str:
    """Say what answers a row's question and what decides its claim, with their numbers.

    Its other sentences follow by name.
    """
    checks = row.judged
    first, last = deciding(row.claim.answering(checks)), deciding(checks)
    numbered = list(dict.fromkeys(check for check in (first, last) if check is not None))
    if not numbered:
        texts = [why(part, scale) for part in row.parts] or [row.reason]
    else:
        texts = [*map(_decided, numbered), *_others(checks, numbered)]
        texts += [
            why(part, scale)
            for part in row.parts
            if part.verdict is None or deciding(part.verdict.checks) is None
        ]
    return " ".join(dict.fromkeys(texts))


def _others(checks: tuple[Check, ...], numbered: Sequence[Check]) -> list[str]:
    """Name the source's other sentences, the refuted ones first.

    Of those of one answer as many are named as a row has room for; the page has the rest.
    """
    theirs = [check for check in checks if not check.ours and check not in numbered]
    texts = []
    for answer, word in ((False, "Refuted"), (None, "Undecided"), (True, "Holds")):
        heading = f"{word} too" if any(one.holds is answer for one in numbered) else word
        named = [_brief(check.claim) for check in theirs if check.holds is answer]
        named = list(dict.fromkeys(named))
        more = len(named) - MOST_OTHERS
        named = [*named[:MOST_OTHERS], *([f"{more} more"] if more > 0 else [])]
        texts += [f"{heading}: {'; '.join(named)}."] if named else []
    return texts


def _brief(claim: str) -> str:
    """Leave out what stands in brackets, such as a tolerance."""
    return _BRACKETS.sub("", claim)


def tally(row: ReportRow) -> str:
    """Count the paper's sentences of a row by what became of them; empty if there are none.

    Examples are ``11 of 12 hold`` and ``1 of 5 holds, 3 refuted``.
    """
    answers = Counter(check.holds for check in row.judged if not check.ours)
    if not answers:
        return ""
    held = f"{answers[True]} of {answers.total()} {'holds' if answers[True] == 1 else 'hold'}"
    return f"{held}, {answers[False]} refuted" if answers[False] else held


def quoted(row: ReportRow) -> str:
    """The paper's words, with their place."""
    claim = row.claim
    return f"“{claim.quote}” ({claim.place})" if claim.quote else claim.place


def answered(paper: ReportPaper, answer: Answer) -> tuple[ReportRow, ...]:
    """A paper's rows whose question has an answer."""
    return tuple(row for row in paper.rows if row.answer == answer)


def holding(paper: ReportPaper, status: RowStatus) -> tuple[ReportRow, ...]:
    """A paper's rows with a status."""
    return tuple(row for row in paper.rows if row.status == status)


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
