"""The jinja2 environment of every HTML page."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from equipoise.records import wording
from equipoise.records.finding import Severity

if TYPE_CHECKING:
    from jinja2 import Environment

# Longer tables are folded, so that the page of a deep network stays readable.
LONG_TABLE = 12

# Each severity has a mark, so that colour is never the only signal.
MARKS: dict[Severity, str] = {"critical": "✖", "warning": "▲", "note": "●", "good": "✔"}


@cache
def environment(*packages: str) -> Environment:
    """Make a jinja2 environment that escapes all text, with this library's templates.

    Templates may use ``wording``, the mark of each severity in ``marks``, ``base.html``,
    ``page.css`` and ``macros.html``.

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
