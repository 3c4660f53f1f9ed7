"""Records of a training: losses, curves and evaluations."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Curve:
    """Losses against steps, averaged over intervals of equal length.

    Args:
        steps: Last step of each interval, counted from 1.
        losses: Mean training loss over each interval.
    """

    steps: tuple[int, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Loss and accuracy of a model in evaluation mode on held-out data.

    Args:
        step: Steps of training taken so far.
        loss: Mean loss per sample.
        accuracy: Share of targets that are the largest output; ``None`` if the targets
            are no classes.
    """

    step: int
    loss: float
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class History:
    """A training run, step by step.

    Args:
        losses: Loss of each step's batch, before the step.
        seconds: Time of all steps, without evaluations and listeners.
        evaluations: In chronological order.
        diverged_at: Step (from 0) whose loss was not finite, which ended the training; ``None``
            if there was none.
    """

    losses: tuple[float, ...]
    seconds: float
    evaluations: tuple[Evaluation, ...] = ()
    diverged_at: int | None = None

    def mean_loss(self, last: float = 0.5) -> float:
        """Mean loss over the last part of the steps; infinite if training diverged.

        Examples:
            >>> History((4.0, 3.0, 2.0, 1.0), 0.1).mean_loss()
            1.5
        """
        if self.diverged_at is not None or not self.losses:
            return math.inf
        tail = self.losses[-max(1, round(last * len(self.losses))) :]
        return math.fsum(tail) / len(tail)

    def curve(self, points: int = 50) -> Curve:
        """Average the losses over at most ``points`` intervals.

        Examples:
            >>> History((4.0, 2.0, 2.0, 0.0), 0.1).curve(points=2)
            Curve(steps=(2, 4), losses=(3.0, 1.0))
        """
        size = max(1, -(-len(self.losses) // points))
        starts = range(0, len(self.losses), size)
        parts = [self.losses[start : start + size] for start in starts]
        ends = tuple(min(start + size, len(self.losses)) for start in starts)
        return Curve(ends, tuple(math.fsum(part) / len(part) for part in parts))
