"""The ``equipoise`` command."""

from equipoise.cli.main import main

__all__ = ["main"]
