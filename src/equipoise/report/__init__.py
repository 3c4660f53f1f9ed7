"""Records to terminal, JSON, HTML and figures."""

from equipoise.records import wording
from equipoise.report import views  # noqa: F401  # registers how records show themselves
from equipoise.report.checkup.store import load
from equipoise.report.pages import environment

__all__ = ["environment", "load", "wording"]
