"""The environment in which every HTML page is rendered."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from equipoise.records import wording
from equipoise.records.finding import Severity

if TYPE_CHECKING:
    from jinja2 import Environment

# Longer tables are folded, so that a page about a deep network remains a page.
LONG_TABLE = 12

# A colour is never the only signal: each severity has a mark and a word.
MARKS: dict[Severity, str] = {"critical": "✖", "warning": "▲", "note": "●", "good": "✔"}


@cache
def environment(*packages: str) -> Environment:
    """Make a jinja2 environment that escapes every text, with this library's templates.

    Templates may use ``wording``, the mark of each severity in ``marks``, ``page.css`` and
    ``macros.html``.

    Args:
        packages: Further packages that have a folder ``templates``.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in ("equipoise.report", *packages)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"wording": wording, "marks": MARKS}
    return environment
