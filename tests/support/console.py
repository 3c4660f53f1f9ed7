"""What a record looks like in a terminal."""

import io

from rich.console import Console


def printed(write, record, width=80, **options):
    """The text that ``write(record, console)`` prints."""
    console = Console(file=io.StringIO(), width=width, **options)
    write(record, console)
    return console.file.getvalue()
