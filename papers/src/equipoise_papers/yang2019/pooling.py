"""Cells that differ in their seed alone are one series: pool their samples and compare them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from equipoise.numerics.growth import mean_with_error
from equipoise.records.estimate import Estimate
from equipoise.report import wording
from equipoise_papers.reproduction.record import Check

Cell = TypeVar("Cell")
Record = TypeVar("Record")
Key = TypeVar("Key")

# Wide networks differ from the limit by a term of order 1/width. At width 1000 the growth rate of
# gradients was measured within 0.4 % of theory for B = 8 to 64: 4/width.
_WIDTH_EFFECT = 4.0


def grouped(
    results: Mapping[Cell, Record], key: Callable[[Cell], Key]
) -> dict[Key, list[tuple[Cell, Record]]]:
    """Group results by a property of their cells, in the order of first appearance."""
    groups: dict[Key, list[tuple[Cell, Record]]] = {}
    for cell, record in results.items():
        groups.setdefault(key(cell), []).append((cell, record))
    return groups


def pooled(parts: Iterable[Sequence[Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Join samples of several cells along their first axis."""
    return np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])


def deviation(samples: ArrayLike) -> float:
    """Standard deviation of samples; 0 of a single one."""
    values = np.asarray(samples, dtype=np.float64)
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def sample_mean(samples: ArrayLike) -> Estimate:
    """Mean and standard error over networks."""
    values = np.asarray(samples, dtype=np.float64)
    return mean_with_error(values, f"mean of {len(values)} networks")


def width_effect(width: int) -> float:
    """Relative distance to the infinite width that finite width alone may explain."""
    return _WIDTH_EFFECT / width


def agrees(claim: str, found: Estimate, expected: float, allowance: float) -> Check:
    """Whether a mean is where theory says, to three standard errors plus an allowance.

    Args:
        claim: What should hold; the expected value is added.
        found: Measured, with its standard error.
        expected: From theory.
        allowance: Absolute distance that finite width alone may explain.
    """
    distance = abs(found.value - expected)
    holds = math.isfinite(found.error) and distance <= 3 * found.error + allowance
    text = f"{wording.spread(found)}, off by {wording.number(distance, 2)}"
    limit = f"(within 3 standard errors + {wording.number(allowance, 2)})"
    return Check(f"{claim} {wording.number(expected, 4)} {limit}", text, holds)
