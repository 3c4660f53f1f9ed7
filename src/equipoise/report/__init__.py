"""Show records in the terminal, as HTML pages with figures, and as JSON."""

from equipoise.records import wording
from equipoise.report import views  # noqa: F401  # registers the views of records
from equipoise.report.checkup.store import load
from equipoise.report.pages import environment

__all__ = ["environment", "load", "wording"]
