"""What a sample of cells, computed anew, says about the published records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from equipoise_papers.experiments.experiment import Scale

# How the cells of one kind agree with their published records, from best to worst.
Agreement = Literal["equal", "rounding", "noise", "undecided", "changed", "failed"]
Question = Literal["bias", "range"]
Yardstick = Literal["spread", "size"]


_PUBLISH = (
    "Has the code changed what these cells compute? Then raise the experiment's revision and "
    "publish anew. --json lists every cell and test."
)
_AGAIN = "Repeat the command to try them again; --json lists all. Finished cells are stored."


class CheckFailedError(ChildProcessError):
    """Cells failed, or differ from their published records by more than noise."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A cell whose new record differs from the published one by more than rounding.

    Args:
        cell: The cell, as text.
        fields: What differs.
        flips: Those of them where a number is finite in one record and missing or not finite in
            the other, as when a training diverges only once.
        largest: Largest difference of a field's mean in yardsticks: the spread between seeds, or
            the number's size; 0 if no pair of finite numbers differs.
        commit: Of the code that computed the published record; ``unknown`` of records that do not
            say.
        created: When the published record was written, ISO 8601, UTC.
    """

    cell: str
    fields: tuple[str, ...]
    flips: tuple[str, ...]
    largest: float
    commit: str
    created: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """One test of whether a field's differences are noise.

    Args:
        field: Field of the record; numbers of a list are averaged.
        question: ``bias``: is the mean difference, new minus published, away from zero?
            ``range``: are more new values outside the range of the published seeds than chance
            allows?
        yardstick: What differences are divided by: the ``spread`` between seeds, or the ``size``
            of the numbers where a cell has no other seeds.
        cells: Cells that entered.
        value: The mean difference in yardsticks; of ``range``, the share outside.
        margin: How far chance moves it at the check's level; of ``range``, the share that chance
            gives on average.
        p: Probability that chance alone gives this or more.
        smallest_p: The smallest that so many cells can give.
        changed: Whether ``p`` is below the level of the check.
    """

    field: str
    question: Question
    yardstick: Yardstick
    cells: int
    value: float
    margin: float
    p: float
    smallest_p: float
    changed: bool


@dataclass(frozen=True, slots=True)
class CheckedCells:
    """The sample of one kind of cells of one experiment.

    Args:
        experiment: Name that their records are filed under.
        kind: Class of the cells.
        published: How many are published.
        cells: How many were drawn.
        equal: Equal to the last bit, fields that are left out aside.
        rounding: Within rounding.
        differing: Differing by more.
        flipped: Those of them in which a number is finite in one record only.
        failed: Cells that could not be computed.
        agreement: All this in a word.
        published_seconds: Time that the sample took when it was published.
        seconds: Time that it took now.
        left_out: Fields that are not compared.
        evidence: Tests of whether differences are noise.
        deviations: Cells that differ by more than rounding, the largest difference first.
        failures: Cells that failed, and why.
    """

    experiment: str
    kind: str
    published: int
    cells: int
    equal: int
    rounding: int
    differing: int
    flipped: int
    failed: int
    agreement: Agreement
    published_seconds: float
    seconds: float
    left_out: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    deviations: tuple[Deviation, ...]
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PublishedCheck:
    """What one run of ``equipoise reproduce check`` found.

    Args:
        published: Folder of the packed records.
        folder: Where the records lie that were computed anew.
        commit: Of the code that computed them.
        scale: Of the cells.
        seed: Of the sample.
        tolerance: Relative difference that counts as rounding.
        family_level: Probability that unchanged code is said to have changed.
        level: Of each test, so that all together keep the family's.
        rows: Each kind of cells.
    """

    published: str
    folder: str
    commit: str
    scale: Scale
    seed: int
    tolerance: float
    family_level: float
    level: float
    rows: tuple[CheckedCells, ...]

    def raise_if_failed(self) -> None:
        """Raise if cells failed or differ by more than noise.

        Raises:
            CheckFailedError: With the names of the first cells.
        """
        lines = [_trouble(row) for row in self.rows if row.agreement in ("changed", "failed")]
        if not lines:
            return
        changed = any(row.agreement == "changed" for row in self.rows)
        raise CheckFailedError(f"{'; '.join(lines)}. {_PUBLISH if changed else _AGAIN}")


# Cells that a message names.
_NAMED = 3


def _trouble(row: CheckedCells) -> str:
    parts = []
    if row.failed:
        parts.append(f"{row.failed} of {row.cells} cells failed: {_first(row.failures)}")
    if row.agreement == "changed" or any(test.changed for test in row.evidence):
        cells = _first([deviation.cell for deviation in row.deviations])
        parts.append(
            f"{row.differing} of {row.cells} cells differ by more than noise or rounding: {cells}"
        )
    return f"{row.experiment}: {', and '.join(parts)}"


def _first(names: list[str] | tuple[str, ...]) -> str:
    """Name a few.

    Examples:
        >>> _first(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
