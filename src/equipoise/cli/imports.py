"""Import what a command needs, without searching for garbage in it.

Python's collector looks through all objects each time that a quarter more of them have come to
be. Of modules none is garbage: the search takes a fifth of the time of a short command.
"""

from __future__ import annotations

import gc
import importlib.metadata
import sys
from importlib import import_module


def import_at_once(*modules: str) -> None:
    """Import modules, and take all that they made out of later collections.

    Where they are there already nothing is done: a program that runs several commands keeps
    collecting what it made meanwhile.

    Examples:
        >>> import_at_once("json", "gc")
        >>> gc.isenabled()
        True
    """
    if all(module in sys.modules for module in modules):
        return
    enabled = gc.isenabled()
    gc.disable()
    try:
        for module in modules:
            import_module(module)
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def added_commands() -> importlib.metadata.EntryPoints:
    """Where other packages say which subcommands they add."""
    return importlib.metadata.entry_points(group="equipoise.commands")
