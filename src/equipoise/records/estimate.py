"""A number with its error and its origin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value, its error, and how it was obtained.

    Predictions and measurements are both estimates, so that a check-up can compare them in units
    of error.

    Args:
        value: The number.
        error: For a computation, a bound on the distance to the true value; for a
            simulation or a measurement, one standard error. ``nan`` where it is unknown.
        method: How the number was obtained, in a few words.
        stable: For quantities of the BSB1 fixed point: whether that point is linearly stable,
            so that deep networks reach it. ``None`` for other quantities.

    Examples:
        >>> print(Estimate(1.46695, 0.0021, "simulation"))
        1.467 ± 0.002
        >>> Estimate(3.0, 0.0, "closed form").relative_error
        0.0
    """

    value: float
    error: float
    method: str
    stable: bool | None = None

    @classmethod
    def of_mean(cls, samples: Sequence[float] | NDArray[np.float64], method: str) -> Estimate:
        """Mean of independent samples with its standard error, which is unknown for one sample.

        Examples:
            >>> print(Estimate.of_mean([1.0, 3.0], "two runs"))
            2.0 ± 1.0
        """
        values = np.asarray(samples, dtype=np.float64)
        if len(values) < 2:
            return cls(float(values[0]), math.nan, method)
        error = float(values.std(ddof=1)) / math.sqrt(len(values))
        return cls(float(values.mean()), error, method)

    @property
    def relative_error(self) -> float:
        """Error divided by the magnitude of the value."""
        return self.error / abs(self.value) if self.value else math.inf

    def __str__(self) -> str:
        # Words about numbers are built on this record.
        from equipoise.records.wording import spread

        return spread(self)
