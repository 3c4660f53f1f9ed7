"""What reproducing published figures concluded, and from how much work."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise_papers.experiments.experiment import Scale
from equipoise_papers.experiments.verdict import Check, Fidelity, Outcome

# Raise by one whenever a stored verdict of the old form can no longer be read.
VERDICT_SCHEMA = 2
_AGAIN = "Repeat the command to try them again; finished cells are stored."


@dataclass(frozen=True, slots=True)
class Reproduction:
    """One experiment's verdict and origin; ``verdict.json`` is this record.

    Args:
        schema: :data:`VERDICT_SCHEMA` of the writer.
        equipoise: Version of the library that judged.
        experiment: Name, such as ``yang2019.fig1a``.
        title: What the figure shows.
        claim: What the source says that it shows.
        scale: How much of the source's effort was spent.
        outcome: The verdict in a word; ``incomplete`` if cells are missing or failed.
        fidelity: Whether the setting is the source's, a smaller one, or one with other data.
        checks: The claim, sentence by sentence; empty if incomplete.
        left_out: What the source's setting has and ours has not.
        choices: What the source does not state, and what was chosen.
        cells: Cells that the experiment has at this scale.
        finished: Cells with a record.
        failures: Failed cells and why they failed.
        seconds: Time that all cells took when they were computed.
        provenance: By what cells were computed, with how many of them by each.
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
    fidelity: Fidelity
    checks: tuple[Check, ...]
    left_out: tuple[str, ...]
    choices: tuple[str, ...]
    cells: int
    finished: int
    failures: tuple[str, ...]
    seconds: float
    provenance: tuple[str, ...]
    command: str
    created: str
    folder: str


class ExperimentsFailedError(ChildProcessError):
    """Some experiments broke off or have failed cells; what the others computed is stored."""


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

    def raise_if_failed(self) -> None:
        """Raise if cells failed.

        Raises:
            ExperimentsFailedError: With their number and the first reason.
        """
        failures = [reason for panel in self.panels for reason in panel.failures]
        if failures:
            cells = sum(panel.cells for panel in self.panels)
            raise ExperimentsFailedError(
                f"{len(failures)} of {cells} cells of {self.name} failed. The first: "
                f"{failures[0]}. {_AGAIN}"
            )


@dataclass(frozen=True, slots=True)
class ExperimentRun:
    """One experiment of ``equipoise reproduce all``.

    Args:
        experiment: The experiment's name.
        outcome: The verdict in a word; ``None`` if the experiment broke off.
        seconds: Time that its cells took when they were computed.
        failure: Why it broke off, or how many of its cells failed; ``None`` if neither.
    """

    experiment: str
    outcome: str | None
    seconds: float
    failure: str | None


@dataclass(frozen=True, slots=True)
class AllReproductions:
    """What one run of ``equipoise reproduce all`` did.

    Args:
        scale: How much of the sources' effort was spent.
        folder: Where records and figures lie.
        runs: Each experiment, in the order of computation.
    """

    scale: Scale
    folder: str
    runs: tuple[ExperimentRun, ...]

    @property
    def failed(self) -> tuple[ExperimentRun, ...]:
        """Experiments that broke off or have failed cells."""
        return tuple(run for run in self.runs if run.failure is not None)

    def raise_if_failed(self) -> None:
        """Raise if some experiments failed.

        Raises:
            ExperimentsFailedError: With their names and the first reason.
        """
        if self.failed:
            names = ", ".join(run.experiment for run in self.failed)
            raise ExperimentsFailedError(
                f"{len(self.failed)} of {len(self.runs)} experiments failed: {names}. The first: "
                f"{self.failed[0].failure}. {_AGAIN}"
            )
