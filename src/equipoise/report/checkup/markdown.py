"""The first screen of a check-up in Markdown, such as for a pull request or a job's summary."""

from __future__ import annotations

from equipoise.diagnosis.record import Checkup
from equipoise.records import wording
from equipoise.report.checkup.words import first_screen
from equipoise.report.pages import MARKS


def markdown(checkup: Checkup) -> str:
    """Render verdict, findings and remedy as Markdown.

    Names are escaped: a model's file cannot add headings, links or HTML.
    """
    checkup = wording.printable(checkup)
    verdict = checkup.verdict
    mark = MARKS[verdict.severity] if verdict.severity else "●"
    lines = [
        f"### {mark} {_escaped(verdict.sentence)}",
        "",
        _escaped(verdict.details),
        "",
        f"`{_code(checkup.target)}` on {_escaped(checkup.data)}, batches of "
        f"{checkup.batch_size:,}; {_escaped(first_screen.assumed(checkup))}",
    ]
    if checkup.headlines:
        lines.append("")
    lines += [
        f"- {MARKS[finding.severity]} **{_escaped(finding.title)}.** "
        f"{_escaped(finding.remedy or finding.detail)}"
        for finding in checkup.headlines
    ]
    code = first_screen.change_as_code(checkup)
    if code:
        lines += ["", "```python", code, "```"]
    lines += ["", f"_Equipoise {checkup.equipoise}, {wording.number(checkup.seconds)} s_"]
    return "\n".join(lines)


def _escaped(words: str) -> str:
    for sign in "\\`*_[]#|":
        words = words.replace(sign, f"\\{sign}")
    return " ".join(words.replace("<", "&lt;").replace(">", "&gt;").split())


def _code(words: str) -> str:
    return " ".join(words.replace("`", "'").split())
