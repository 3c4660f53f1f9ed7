"""Records that can show themselves, once :mod:`equipoise.report` has registered their views."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from equipoise.files import refuse_file_name

# When it is first imported, rich draws from Python's generator, whose state is the user's.
_before = random.getstate()
import rich.style  # noqa: E402, F401

random.setstate(_before)

# Height of a page inside a notebook's cell, in pixels.
_HEIGHT = 640


@dataclass(frozen=True, slots=True)
class View:
    """How a class of records is shown.

    Args:
        print: Print a record to a console.
        save: Write a record into a folder, and return the page to open.
        page: Render a record as a self-contained HTML page.
        cell: Render what a notebook shows of it; by default the page in a frame.
        figure: Draw its one picture with matplotlib.
    """

    print: Callable[..., None]
    save: Callable[[Any, Path], Path]
    page: Callable[[Any], str]
    cell: Callable[[Any], str] | None = None
    figure: Callable[[Any], Any] | None = None


class Shown:
    """Base of records that can be printed, saved, and displayed by a notebook."""

    __slots__ = ()

    def show(self, *, full: bool = False) -> None:
        """Print the report to the terminal or below a notebook's cell.

        Args:
            full: Whether to print all of it, where it has a first screen.
        """
        from rich.console import Console

        self._view().print(self, Console(highlight=False), full=full)

    def figure(self) -> Any:
        """Draw the one picture of the report.

        Returns:
            A ``matplotlib.figure.Figure``.

        Raises:
            ValueError: If there is nothing to draw.
        """
        draw = self._view().figure
        if draw is None:
            raise ValueError(f"a {type(self).__name__} has no picture; save() writes its page.")
        return draw(self)

    def save(self, directory: str | Path) -> Path:
        """Write the report as JSON and as an HTML page.

        Args:
            directory: Where to write; made if it does not exist.

        Returns:
            The path of the page.

        Raises:
            ValueError: If that is the name of a file.
        """
        refuse_file_name(Path(directory))
        return self._view().save(self, Path(directory))

    def _repr_html_(self) -> str:
        cell = self._view().cell
        if cell is not None:
            return cell(self)
        page = escape(self._view().page(self), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="{_HEIGHT}" frameborder="0"></iframe>'

    def _view(self) -> View:
        view = _VIEWS.get(type(self))
        if view is None:
            raise RuntimeError(
                f"a {type(self).__name__} cannot show itself yet: import equipoise.report first."
            )
        return view


_VIEWS: dict[type[Shown], View] = {}


def register_view(kind: type[Shown], view: View) -> None:
    """Register how the records of a class are shown."""
    _VIEWS[kind] = view
