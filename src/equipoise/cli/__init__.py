"""The ``equipoise`` command."""

from equipoise.cli.main import main
from equipoise.cli.progress import bars

__all__ = ["bars", "main"]
