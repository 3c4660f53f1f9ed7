"""What every section of a terminal report is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

_MOST_NAMES = 6


def heading(title: str, console: Console) -> None:
    """Open a section."""
    console.print()
    console.print(Rule(Text(title, "bold"), align="left", style="dim"))


def remark(words: str, console: Console) -> None:
    """Print a line below a table."""
    console.print(Padding(text(words, "dim"), (0, 1)))


def new_table() -> Table:
    """Make a table without rows."""
    return Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False, header_style="bold")


def text(words: str, style: str = "") -> Text:
    """Make text that is never parsed as markup and never cut off."""
    return Text(words, style, overflow="fold")


def enumerated(names: Sequence[str]) -> str:
    """List names, but never more than a reader takes in."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
