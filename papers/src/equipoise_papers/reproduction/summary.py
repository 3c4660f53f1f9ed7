"""A verdict as short Markdown."""

from __future__ import annotations

from equipoise_papers.reproduction.record import Reproduction, Reproductions

MOST_FAILURES = 5


def summary(reproduction: Reproduction) -> str:
    """Write one experiment's verdict as Markdown."""
    lines = [
        f"# {reproduction.experiment}: {reproduction.title}",
        "",
        f"**The claim: {reproduction.outcome}** ({reproduction.fidelity}) at scale "
        f"*{reproduction.scale}*.",
        "",
        f"The source's claim: {reproduction.claim}",
        "",
        "![figure](figure.png)",
        "",
    ]
    if reproduction.checks:
        lines += ["| Claim | Found | Holds |", "|---|---|---|"]
        lines += [
            f"| {_on_one_line(check.sentence)} | {_on_one_line(check.found)} | {check.answer} |"
            for check in reproduction.checks
        ]
        lines.append("")
    lines += _listed("Unlike the source", reproduction.left_out)
    lines += _listed("Our choices, where the source states none", reproduction.choices)
    lines += _listed("Cells that failed", reproduction.failures[:MOST_FAILURES])
    lines += [
        f"{reproduction.finished} of {reproduction.cells} cells, computed in "
        f"{duration(reproduction.seconds)} by equipoise {reproduction.equipoise}; judged "
        f"{reproduction.created}:",
        "",
        f"    {reproduction.command}",
        "",
    ]
    return "\n".join(lines)


def overview(run: Reproductions) -> str:
    """Write the verdicts of a whole figure as Markdown that links to its panels."""
    scale = run.panels[0].scale
    lines = [f"# {run.name} at scale {scale}", "", "![figure](figure.png)", ""]
    lines += ["| Panel | Outcome | Fidelity | Shows |", "|---|---|---|---|"]
    lines += [
        f"| [{panel.experiment}](../../{panel.experiment}/{scale}/summary.md) | {panel.outcome} "
        f"| {panel.fidelity} | {_on_one_line(panel.title)} |"
        for panel in run.panels
    ]
    return "\n".join([*lines, ""])


def duration(seconds: float) -> str:
    """Write a time.

    Examples:
        >>> duration(0.03), duration(7.08), duration(480.0), duration(9000.0)
        ('less than 0.1 s', '7.1 s', '8 min', '2.5 h')
    """
    if seconds < 0.1:
        return "less than 0.1 s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{seconds / 3600:.1f} h"


def _listed(heading: str, lines: tuple[str, ...]) -> list[str]:
    return [f"{heading}:", "", *(f"- {line}" for line in lines), ""] if lines else []


def _on_one_line(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
