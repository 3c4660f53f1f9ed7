"""Conclusions in plain language."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["critical", "warning", "note", "good"]

# The most severe first.
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "note", "good")


@dataclass(frozen=True, slots=True)
class Finding:
    """One conclusion in plain language.

    Args:
        severity: How much it matters.
        title: One line.
        detail: The numbers behind it.
        remedy: What to do about it, if anything.
    """

    severity: Severity
    title: str
    detail: str
    remedy: str | None = None
