"""Short trainings side by side: the same data order, each at its own best learning rate."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.records.estimate import Estimate
from equipoise.training.record import Curve

_OPTIMIZER_NAMES = {"sgd": "SGD with momentum", "adam": "Adam", "adamw": "AdamW"}


@dataclass(frozen=True, slots=True)
class Arm:
    """One variant of the training.

    Args:
        name: What is changed.
        rate: Learning rate with the lowest loss on the first seed; nan if every rate diverged.
        rates: Every rate that was tried, with its loss; infinite where training diverged.
        at_edge: Whether a rate beyond those tried might be better.
        loss: Mean training loss of the last quarter of the steps, over seeds, with its standard
            error; infinite if a seed diverged.
        curve: Loss against steps, the mean over seeds; ``None`` if a seed diverged.
        spread: Standard deviation over seeds at each point of the curve.
        step_seconds: Time of a step in the quickest run.
        diverged: Seeds that diverged at this rate.
        reason: Why the variant was not tried; ``None`` if it was.
    """

    name: str
    rate: float
    rates: tuple[tuple[float, ...], ...]
    at_edge: bool
    loss: Estimate
    curve: Curve | None
    spread: tuple[float, ...]
    step_seconds: float
    diverged: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Gain:
    """The final loss of one variant compared with the unchanged model's, seed by seed.

    Args:
        name: Name of the variant.
        difference: Mean over seeds of the variant's loss minus the unchanged model's.
        steps: Steps after which the variant first reaches the unchanged model's final loss;
            ``None`` if never.
        seconds: The same in seconds.
        helps: Whether the difference is below zero by more than Student's t at 95 %; ``None`` if
            fewer than two seeds finished.
    """

    name: str
    difference: Estimate
    steps: int | None
    seconds: float | None
    helps: bool | None


@dataclass(frozen=True, slots=True)
class Trial:
    """A short side-by-side training.

    Args:
        optimizer: The optimiser of every variant.
        steps: Steps of every run.
        seeds: Initialisations and data orders, the same for every variant.
        arms: One per variant, the unchanged model first.
        gains: One per other variant that was tried.
    """

    optimizer: str
    steps: int
    seeds: int
    arms: tuple[Arm, ...]
    gains: tuple[Gain, ...]

    @property
    def optimizer_name(self) -> str:
        """The optimiser as a reader knows it."""
        return _OPTIMIZER_NAMES.get(self.optimizer, self.optimizer)
