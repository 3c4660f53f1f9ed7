"""The command line's fixtures."""

from support.command_line import equipoise, folder, one_thread

__all__ = ["equipoise", "folder", "one_thread"]
