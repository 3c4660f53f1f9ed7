"""The command line's fixtures."""

from support.command_line import equipoise, folder
from support.settings import one_thread

__all__ = ["equipoise", "folder", "one_thread"]
