"""A remedy tried by training: the same data order, each way with its own best learning rate."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.records.estimate import Estimate
from equipoise.training.record import Curve


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train the model.

    Args:
        name: What is done.
        rate: Learning rate with the lowest loss on the first seed; nan if none trained.
        rates: Every rate that was tried with its loss; infinite where training diverged.
        at_edge: Whether a rate beyond those tried might be better still.
        loss: Mean training loss of the last quarter of the steps, over seeds, with its standard
            error; infinite if a seed diverged.
        curve: Loss against steps, the mean over seeds; ``None`` if a seed diverged.
        spread: Standard deviation over seeds at each point of the curve.
        step_seconds: Time of a step in the quickest run.
        diverged: Seeds that diverged at this rate.
        reason: Why it was not tried, if it was not.
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
    """How one arm ends compared with the model as it is, seed by seed.

    Args:
        name: Of the arm.
        difference: Mean over seeds of the arm's loss minus that of the model as it is.
        steps: Steps after which the arm is first below the final loss of the model as it is;
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
        optimizer: The optimiser of every arm.
        steps: Steps of every run.
        seeds: Initialisations and data orders, the same for every arm.
        arms: The model as it is first.
        gains: Of the other arms that were tried.
    """

    optimizer: str
    steps: int
    seeds: int
    arms: tuple[Arm, ...]
    gains: tuple[Gain, ...]
