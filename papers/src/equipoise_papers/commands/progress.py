"""A progress bar for the running one of many experiments, and a line for each that has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from equipoise_papers.reproduction.summary import duration

if TYPE_CHECKING:
    from equipoise.instrument import Progress as Update
    from equipoise_papers.reproduction.everything import Concluded
    from equipoise_papers.reproduction.record import ExperimentRun


@contextmanager
def overall() -> Iterator[tuple[Update, Concluded]]:
    """Yield the callbacks ``progress`` and ``concluded`` of ``reproduce_all``.

    The bar is shown on a terminal only. The lines also go to a log file, because reproducing
    everything takes hours.
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
