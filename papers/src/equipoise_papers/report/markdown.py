"""A report as Markdown for the documentation: an overview, and a page per paper."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from equipoise.files import write_bytes, write_text
from equipoise.report import wording
from equipoise_papers.experiments.verdict import Check
from equipoise_papers.report import pictures, words
from equipoise_papers.report.record import (
    ReportPaper,
    ReportRow,
    ReproductionReport,
    RowPart,
)

FIGURES, THUMBNAILS = "figures", "figures/small"
_ACTIVE = re.compile(r"([\\`*_{}\[\]<>#|$~&^@])")
# Sphinx would turn two hyphens into a dash, except in code.
_OPTION = re.compile(r"(?<!\S)(--[a-z][a-z-]*)")


def save_markdown(report: ReproductionReport, directory: str | Path) -> tuple[Path, ...]:
    """Write ``index.md``, a page per paper, and the figures that they show.

    Figures that no longer belong to a row are removed.

    Args:
        report: What to write.
        directory: Where to; made if it does not exist.

    Returns:
        Every file, each written whole or not at all.
    """
    folder = Path(directory)
    shown = wording.printable(report)
    texts = {"index.md": overview(shown)}
    texts |= {f"{paper.key}.md": paper_page(paper, shown.scale) for paper in shown.papers}
    for name, text in texts.items():
        write_text(folder / name, text)
    return (*(folder / name for name in texts), *_save_figures(report, folder / FIGURES))


def overview(report: ReproductionReport) -> str:
    """Write a summary of each paper, and the answer to every question in a table with pictures."""
    lines = [
        "# Reproduction of the four papers",
        "",
        " ".join(
            filter(
                None, (f"**{words.sentence(report)}**", words.scope(report), words.answers(report))
            )
        ),
        "",
        *(f"- {name}: {value}" for name, value in words.facts(report).items()),
        "",
        "Two axes, never fused: the **outcome** of the paper's claim and the **fidelity** of our "
        "setting. A claim *holds* if all of its sentences do; it is *partly open* if some hold "
        "and the rest is undecided, *mixed* if some hold and others are refuted, *undecided* if "
        "none is decided; how many hold and are refuted stands below. *Same setting* is "
        "the paper's network, data and training, with fewer random networks at most; *reduced* is "
        "smaller, or on other machines; *stand-in data* is other data, and smaller where the page "
        "says so. The **answer** is to the question alone, which one or a few sentences of the "
        "claim answer; the outcome is that of all. What decides them stands beside, with effect "
        "and error, what answers the question first; the paper's words, the rules and every check "
        "are on its page. Wrong statements, corrections and new "
        "results: [errata](../errata.md). Times add up the cells' own, one "
        "core each, other work on that machine included.",
        "",
    ]
    for paper in report.papers:
        lines += [f"## {escaped(paper.title)}", "", escaped(paper.reference), ""]
        lines += _summary(paper)
        lines += _table(
            ("", "Question, and answer", "Outcome", "Fidelity", "What decides it"),
            (_overview_row(paper, row, report.scale) for row in paper.rows),
        )
    return "\n".join([*lines, *_how_it_is_made(report), *_contents(report)])


def _summary(paper: ReportPaper) -> list[str]:
    """What is so, what is not, what is open, and what we found, on a few lines."""
    lines = []
    for answer, heading in words.ANSWER.items():
        # A plain answer needs no table.
        asked = answer in ("yes", "no")
        rows = words.answered(paper, answer)
        lines += _linked(heading.rstrip("."), paper, rows, with_question=asked)
    failing = words.holding(paper, "fails")
    lines += _linked("The whole claim fails", paper, failing, with_question=False)
    untestable = words.holding(paper, "not testable here")
    lines += _linked("Not testable here", paper, untestable, with_question=False)
    found = ", ".join(f"[{escaped(one.says)}](../errata.md#{one.anchor})" for one in paper.found)
    return [*lines, *([f"- **We found:** {found}"] if found else []), ""]


def _linked(
    heading: str, paper: ReportPaper, rows: Sequence[ReportRow], *, with_question: bool
) -> list[str]:
    links = ", ".join(
        f"{_link(paper, row)} ({escaped(row.claim.question)})"
        if with_question
        else _link(paper, row)
        for row in rows
    )
    return [f"- **{heading}:** {links}"] if rows else []


def _link(paper: ReportPaper, row: ReportRow) -> str:
    return f"[{escaped(row.label)}]({paper.key}.md#{words.slug(row.label)})"


def paper_page(paper: ReportPaper, scale: str) -> str:
    """Write every row of a paper with figure, checks and origin."""
    shared = words.shared_choices(paper)
    lines = [f"# {escaped(paper.title)}", "", escaped(paper.reference), ""]
    lines += _listed("How claims are decided", paper.rules)
    for row in paper.rows:
        lines += [f"## {escaped(row.label)}", "", f"**{_question(row)}**", ""]
        lines += [f"{_verdict(row)}: {escaped(row.shows)}", ""]
        lines += [f"> {escaped(words.quoted(row))}", ""]
        for part in row.parts:
            lines += _part(part, scale, shared, with_outcome=len(row.parts) > 1)
        if row.reason:
            seen = ", ".join(f"[{escaped(label)}](#{words.slug(label)})" for label in row.see)
            lines += [escaped(row.reason) + (f" See {seen}." if seen else ""), ""]
        lines += _checks(row.checks)
    if shared:
        named = [f"{choice} ({words.who_made(paper, choice)})" for choice in shared]
        lines += ["---", "", *_listed("Choices that several of these experiments share", named)]
    return "\n".join(lines)


def escaped(text: str) -> str:
    r"""Escape a text so that Markdown shows it unchanged, on one line.

    Examples:
        >>> print(escaped("λ_G of <x> | $y$, from --data-dir"))
        λ\_G of \<x\> \| \$y\$, from `--data-dir`
    """
    return _OPTION.sub(r"`\1`", _ACTIVE.sub(r"\\\1", " ".join(text.split())))


def _overview_row(paper: ReportPaper, row: ReportRow, scale: str) -> tuple[str, ...]:
    picture = next((part for part in row.parts if part.figure is not None), None)
    address = f"{paper.key}.md#{words.slug(row.label)}"
    tally = words.tally(row)
    # No text beside the picture: the next cell says what it shows.
    shown = (
        "" if picture is None else f"<br>[![]({THUMBNAILS}/{picture.experiment}.png)]({address})"
    )
    return (
        f"{_link(paper, row)}{shown}",
        _question(row, "**"),
        f"{words.MARKS[row.status]} **{row.status}**{tally and f'<br>{tally}'}",
        row.fidelity or "",
        escaped(words.reason(row, scale)),
    )


def _question(row: ReportRow, bold: str = "") -> str:
    """The question, and what it is answered."""
    answer = "" if row.answer is None else f" {bold}{words.ANSWER[row.answer]}{bold}"
    return f"{escaped(row.claim.question)}{answer}"


def _part(part: RowPart, scale: str, shared: Sequence[str], *, with_outcome: bool) -> list[str]:
    lines = []
    if part.figure is not None:
        lines += [f"![{escaped(part.title)}]({FIGURES}/{part.experiment}.png)", ""]
    verdict = part.verdict
    outcome = (
        f"{words.MARKS[verdict.outcome]} **{verdict.outcome}**. "
        if with_outcome and verdict is not None
        else ""
    )
    lines += [f"{outcome}{escaped(words.why(part, scale))}", ""]
    if verdict is not None:
        lines += _checks(verdict.checks)
        lines += _listed("Unlike the paper", verdict.left_out)
        lines += _listed("Cells that failed", verdict.failures[: words.MOST_FAILURES])
        lines += _listed("Our choices", words.own_choices(part, shared))
        lines += _listed("Computed by", verdict.provenance)
        effort = words.effort(part)
        lines += [f"{effort[0].upper()}{effort[1:]}:", ""]
    return [*lines, "```console", f"$ {part.command}", "```", ""]


def _checks(checks: Sequence[Check]) -> list[str]:
    return _table(
        ("Check", "Found", "Holds"),
        ((escaped(check.sentence), escaped(check.found), _answer(check)) for check in checks),
    )


def _answer(check: Check) -> str:
    return "**no**" if check.holds is False else check.answer


def _verdict(row: ReportRow) -> str:
    said = filter(None, (words.tally(row), row.fidelity))
    return ", ".join((f"{words.MARKS[row.status]} **{row.status}**", *said))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    body = [f"| {' | '.join(row)} |" for row in rows]
    if not body:
        return []
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *body, ""]


def _listed(heading: str, lines: Sequence[str]) -> list[str]:
    return [f"{heading}:", "", *(f"- {escaped(line)}" for line in lines), ""] if lines else []


def _how_it_is_made(report: ReproductionReport) -> list[str]:
    return [
        "## How this is made",
        "",
        "```console",
        f"$ equipoise reproduce all --scale {report.scale}       # computes what is missing",
        f"$ equipoise reproduce report --scale {report.scale}    # draws, judges and writes this",
        "```",
        "",
        "The records that figures and verdicts are made from lie beside these pages, packed. "
        "`unpack` brings them into a folder, where any of them is drawn and judged anew:",
        "",
        "```console",
        "$ equipoise reproduce unpack --page papers/docs/reproduction --out reproduction",
        f"$ equipoise reproduce yang2019.fig1a --scale {report.scale} --redraw",
        "```",
        "",
    ]


def _contents(report: ReproductionReport) -> list[str]:
    return ["```{toctree}", ":hidden:", "", *(paper.key for paper in report.papers), "```", ""]


def _save_figures(report: ReproductionReport, folder: Path) -> list[Path]:
    small = folder / Path(THUMBNAILS).name
    small.mkdir(parents=True, exist_ok=True)
    written = []
    for part in report.parts:
        if part.figure is None:
            continue
        source = Path(report.folder) / part.figure
        for path, picture in (
            (folder / f"{part.experiment}.png", pictures.reduced(source)),
            (small / f"{part.experiment}.png", pictures.thumbnail(source)),
        ):
            written.append(path)
            write_bytes(path, picture)
    for path in {*folder.glob("*.png"), *small.glob("*.png")} - {*written}:
        path.unlink()
    return written
