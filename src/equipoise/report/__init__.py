"""Records to terminal, JSON, HTML and figures."""

from equipoise.report.checkup.page import render_checkup
from equipoise.report.checkup.store import load, save
from equipoise.report.checkup.terminal.checkup import print_checkup

__all__ = [
    # a check-up
    "load",
    "save",
    "print_checkup",
    "render_checkup",
]
