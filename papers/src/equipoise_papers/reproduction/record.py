"""What reproducing a published figure concluded, and from how much work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from equipoise.records.estimate import Estimate

# Raise by one whenever a stored verdict or cell of the old form can no longer be read.
REPRODUCTION_SCHEMA = 1

Scale = Literal["smoke", "small", "paper"]
Outcome = Literal[
    "reproduced", "partly", "not reproduced", "undecided", "incomplete", "not judged"
]


@dataclass(frozen=True, slots=True)
class Check:
    """One sentence, held against our numbers.

    Args:
        claim: What should hold.
        found: What was found.
        holds: Whether it does; ``None`` if the numbers do not decide it.
        ours: Whether the sentence is ours and not the source's, so that no verdict depends on it.

    Examples:
        >>> ours(Check("2 + 2 = 4", "4", True)).sentence
        'not in the paper: 2 + 2 = 4'
    """

    claim: str
    found: str
    holds: bool | None
    ours: bool = False

    @property
    def sentence(self) -> str:
        """The claim, and whose it is."""
        return f"not in the paper: {self.claim}" if self.ours else self.claim

    @property
    def answer(self) -> str:
        """``yes``, ``no`` or ``undecided``."""
        return "undecided" if self.holds is None else "yes" if self.holds else "no"


def ours(check: Check) -> Check:
    """Mark a check as one of a sentence that the source does not have."""
    return replace(check, ours=True)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the numbers say about a claim.

    Args:
        checks: The claim, sentence by sentence.
        left_out: Parts of the published figure that were not attempted.

    Examples:
        >>> Verdict((Check("2 + 2 = 4", "4", True), Check("2 + 2 = 5", "4", False))).outcome
        'partly'
    """

    checks: tuple[Check, ...]
    left_out: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """``reproduced`` only if the source's whole claim holds and nothing was left out."""
        answers = [check.holds for check in self.checks if not check.ours]
        if not answers:
            return "not judged"
        if any(answers):
            return "reproduced" if all(answers) and not self.left_out else "partly"
        return "undecided" if None in answers else "not reproduced"


@dataclass(frozen=True, slots=True)
class Reproduction:
    """One experiment's verdict and origin; ``verdict.json`` is this record.

    Args:
        schema: :data:`REPRODUCTION_SCHEMA` of the writer.
        equipoise: Version of the library that judged.
        experiment: Name, such as ``yang2019.fig1a``.
        title: What the figure shows.
        claim: What the source says that it shows.
        scale: How much of the source's effort was spent.
        outcome: The verdict in a word; ``incomplete`` if cells are missing or failed.
        checks: The claim, sentence by sentence; empty if incomplete.
        left_out: Parts of the published figure that were not attempted.
        choices: What the source does not state, and what was chosen.
        cells: Cells that the experiment has at this scale.
        finished: Cells with a record.
        failures: Why the others have none.
        seconds: Time that all finished cells took when they were computed.
        command: What to type for the same records.
        created: Time of the verdict, ISO 8601, UTC.
        folder: Where the figure, this record and the summary lie.
    """

    schema: int
    equipoise: str
    experiment: str
    title: str
    claim: str
    scale: Scale
    outcome: Outcome
    checks: tuple[Check, ...]
    left_out: tuple[str, ...]
    choices: tuple[str, ...]
    cells: int
    finished: int
    failures: tuple[str, ...]
    seconds: float
    command: str
    created: str
    folder: str


@dataclass(frozen=True, slots=True)
class Reproductions:
    """What one run of ``equipoise reproduce`` did.

    Args:
        name: What was asked for: an experiment or a whole figure.
        panels: One verdict per experiment.
        figure: Picture of all panels; ``None`` if there is nothing to draw.
    """

    name: str
    panels: tuple[Reproduction, ...]
    figure: str | None


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A name that ``equipoise reproduce`` knows.

    Args:
        name: An experiment or a whole figure.
        title: What it shows.
        panels: Names of the experiments that it consists of.
    """

    name: str
    title: str
    panels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Every name that ``equipoise reproduce`` knows."""

    entries: tuple[CatalogueEntry, ...]


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """How far one experiment has come at one scale.

    Args:
        experiment: Its name.
        scale: Which grid of cells.
        cells: Cells of the grid.
        finished: Those with a record.
        failed: Those whose latest attempt failed.
        missing: Those that nobody has computed to the end.
        seconds: Time that finished and failed cells took, added up over workers.
        left: Time that failed and missing cells will take one after the other, if they take as
            long as finished ones on average; ``None`` if none is finished.
    """

    experiment: str
    scale: Scale
    cells: int
    finished: int
    failed: int
    missing: int
    seconds: float
    left: Estimate | None


@dataclass(frozen=True, slots=True)
class SweepStatus:
    """How far the experiments in a folder have come.

    Args:
        folder: Where their records lie.
        rows: Each experiment at each scale that was begun.
        unknown: Names of stores that belong to no experiment of this version.
    """

    folder: str
    rows: tuple[SweepProgress, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gathered:
    """What merging the records of several machines brought together.

    Args:
        folder: Where the records lie now.
        experiments: Experiments that they belong to.
        cells: Cells that the folder holds now, failed ones included.
        added: How many of them it lacked before, or had as failures.
        damaged: Files that hold no record and were left where they are.
    """

    folder: str
    experiments: tuple[str, ...]
    cells: int
    added: int
    damaged: tuple[str, ...]
