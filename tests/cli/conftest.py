"""The command line's fixtures."""

import pytest

from support.command_line import equipoise, folder
from support.settings import no_depth, one_thread

__all__ = ["equipoise", "folder", "no_depth", "no_page", "one_thread"]


@pytest.fixture
def no_page(monkeypatch):
    """Write empty pages: drawing the figures takes most of the time of a small check-up."""
    monkeypatch.setattr("equipoise.report.checkup.store.render_checkup", lambda checkup: "")
    monkeypatch.setattr("equipoise.report.probe.page.render_probe", lambda probe: "")
