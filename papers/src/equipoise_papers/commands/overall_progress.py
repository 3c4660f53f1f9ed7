"""One bar for the experiment at work among many, and a line for each that came to an end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from equipoise_papers.report.words import duration

if TYPE_CHECKING:
    from equipoise_papers.report.record import ExperimentRun

Update = Callable[[str, int, int], None]
Concluded = Callable[[int, int, "ExperimentRun"], None]


@contextmanager
def overall() -> Iterator[tuple[Update, Concluded]]:
    """Yield a function to tell of cells, and one to tell of experiments.

    The bar is for people who watch. The lines are also for a log: reproducing everything takes
    hours.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    watched = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not watched) as progress:
        task = progress.add_task("", total=None)
        shown = ""

        def update(stage: str, done: int, total: int) -> None:
            nonlocal shown
            if stage != shown:
                shown = stage
                progress.reset(task, description=stage, total=total)
            progress.update(task, completed=done, total=total)

        def concluded(number: int, total: int, run: ExperimentRun) -> None:
            end = run.failure or f"{run.outcome}, {duration(run.seconds)}"
            console.print(f"{number} of {total}: {run.experiment}: {end}", markup=False)

        yield update, concluded
