"""Records that can show themselves, once :mod:`equipoise.report` has registered their views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# Height of a page inside a notebook's cell, in pixels.
_HEIGHT = 640


@dataclass(frozen=True, slots=True)
class View:
    """How a class of records is shown.

    Args:
        print: Print a record to a console.
        save: Write a record into a folder, and return the page to open.
        page: Render a record as a self-contained HTML page.
    """

    print: Callable[[Any, Console], None]
    save: Callable[[Any, Path], Path]
    page: Callable[[Any], str]


class Shown:
    """Base of records that can be printed, saved, and displayed by a notebook."""

    __slots__ = ()

    def show(self) -> None:
        """Print the report to the terminal or below a notebook's cell."""
        from rich.console import Console

        self._view().print(self, Console(highlight=False))

    def save(self, directory: str | Path) -> Path:
        """Write the report as JSON and as an HTML page.

        Args:
            directory: Where to write; made if it does not exist.

        Returns:
            The path of the page.
        """
        return self._view().save(self, Path(directory))

    def _repr_html_(self) -> str:
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
