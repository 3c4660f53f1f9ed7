"""Tell a progress callback how far a stage is."""

from __future__ import annotations

from equipoise.instrument.types import Progress


class StageCounter:
    """Counts the runs of one stage.

    The total is a forecast: runs beyond it, such as those of an extended grid of rates, are not
    reported.

    Args:
        progress: Called with the stage, finished and total runs; ``None`` for silence.
        stage: What the runs do.
        total: How many runs are expected.
    """

    def __init__(self, progress: Progress | None, stage: str, total: int) -> None:
        self._progress, self._stage, self._total = progress, stage, total
        self._begun = 0

    def begin(self) -> None:
        """Report the runs that finished before the one that begins now."""
        self._report(min(self._begun, self._total))
        self._begun += 1

    def finish(self) -> None:
        """Report that all runs finished."""
        self._report(self._total)

    def _report(self, done: int) -> None:
        if self._progress is not None:
            self._progress(self._stage, done, self._total)


class Stages:
    """Remembers which stage was reported last.

    Examples:
        >>> stages = Stages()
        >>> stages.told_to(None)("measuring", 0, 1)
        >>> stages.present
        'measuring'
    """

    def __init__(self) -> None:
        self.present = "preparing"

    def told_to(self, progress: Progress | None) -> Progress:
        """Report to a callback, too."""

        def report(stage: str, done: int, total: int) -> None:
            self.present = stage
            (progress or silent)(stage, done, total)

        return report


def staged(progress: Progress, stage: str) -> Progress:
    """Report another measurement's steps under a stage's own name."""
    return lambda _, done, total: progress(stage, done, total)


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""
