"""Records of a tracked training: numbers step by step, and what measuring cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrackedStep:
    """Numbers measured at one step of a training.

    Args:
        step: Optimiser steps taken so far.
        values: Numbers by name. Names of two parts, such as ``landscape/beta``, describe the
            model; names of three, such as ``ics/conv2/cosine``, the layer in the middle.
    """

    step: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Series:
    """One number against steps.

    Args:
        steps: Steps at which it was measured.
        values: Its value at each of them.
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Band:
    """The range of a number against steps.

    Args:
        steps: Steps at which it was measured.
        lowest: Lowest value at each of them.
        highest: Highest value at each of them.
    """

    steps: tuple[int, ...]
    lowest: tuple[float, ...]
    highest: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TrackingCost:
    """Seconds spent on measuring and on the training itself.

    Args:
        steps: Steps taken while the tracker was attached.
        samples: Steps at which something was measured.
        training_seconds: Time from the first step to the last, without measuring.
        probing_seconds: Time spent on measuring.
        parts: The same by measurement.
    """

    steps: int
    samples: int
    training_seconds: float
    probing_seconds: float
    parts: Mapping[str, float]

    @property
    def seconds_per_step(self) -> float:
        """Training seconds per step; ``nan`` before the first step."""
        return self.training_seconds / self.steps if self.steps else math.nan

    @property
    def seconds_per_sample(self) -> float:
        """Probing seconds per sample; ``nan`` before the first sample."""
        return self.probing_seconds / self.samples if self.samples else math.nan

    @property
    def steps_per_sample(self) -> float:
        """Number of training steps that take as long as one sample."""
        if not self.training_seconds > 0:
            return math.nan
        return self.seconds_per_sample / self.seconds_per_step

    @property
    def percent(self) -> float:
        """Time that measuring added to the training, in per cent."""
        if not self.training_seconds > 0:
            return math.nan
        return 100 * self.probing_seconds / self.training_seconds


@dataclass(frozen=True, slots=True)
class Tracking:
    """Everything that was measured during a training.

    Args:
        samples: In the order of the steps.
        cost: Time spent up to the latest step.

    Examples:
        >>> values = ({"loss_min": 1.0, "loss_max": 3.0}, {"loss_min": 0.5, "loss_max": 0.75})
        >>> samples = tuple(TrackedStep(50 * i, v) for i, v in enumerate(values))
        >>> tracking = Tracking(samples, TrackingCost(100, 2, 10.0, 0.25, {"landscape": 0.25}))
        >>> tracking.band("loss")
        Band(steps=(0, 50), lowest=(1.0, 0.5), highest=(3.0, 0.75))
        >>> tracking.cost.percent
        2.5
    """

    samples: tuple[TrackedStep, ...]
    cost: TrackingCost

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all numbers, in the order of first appearance."""
        return tuple(dict.fromkeys(name for sample in self.samples for name in sample.values))

    def series(self, name: str) -> Series:
        """One number at every step that has it.

        Raises:
            KeyError: If no step has it.
        """
        found = [(s.step, s.values[name]) for s in self.samples if name in s.values]
        if not found:
            raise KeyError(f"nothing is named {name!r}; there are {', '.join(self.names)}")
        steps, values = zip(*found, strict=True)
        return Series(steps, values)

    def band(self, name: str) -> Band:
        """Lowest and highest value, from the series ``{name}_min`` and ``{name}_max``.

        Raises:
            KeyError: If no step has them.
        """
        lowest, highest = self.series(f"{name}_min"), self.series(f"{name}_max")
        return Band(lowest.steps, lowest.values, highest.values)
