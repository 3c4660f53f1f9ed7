"""The ``equipoise`` command."""

from equipoise.cli.progress import bars

__all__ = ["bars"]
