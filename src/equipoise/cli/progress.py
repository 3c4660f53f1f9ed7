"""Progress bars on standard error; silent where nobody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

# Seconds of the past that tell how long the rest takes: steps may take minutes each.
_MEMORY = 3600.0


@contextmanager
def bars() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that takes a stage, finished and total steps."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    watched = console.is_terminal
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=not watched,
        speed_estimate_period=_MEMORY,
    ) as progress:
        tasks: dict[str, TaskID] = {}

        def update(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                # What was done before does not count as quick work.
                tasks[stage] = progress.add_task(stage, total=total, completed=done)
            progress.update(tasks[stage], completed=done, total=total)

        try:
            yield update
        except Exception as error:
            if tasks:
                error.add_note(f"while {[*tasks][-1]}:")
            raise
