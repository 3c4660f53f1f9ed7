"""Pool the samples of cells that differ in their seed alone, and compare them with theory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.records import Estimate
from equipoise.report import wording
from equipoise_papers.experiments.verdict import Check

Item = TypeVar("Item")
Value = TypeVar("Value")
Key = TypeVar("Key")

# Wide networks differ from the limit by a term of order 1/width. At width 1000 the growth rate of
# gradients was measured within 0.4 % of theory for B = 8 to 64: 4/width.
_WIDTH_EFFECT = 4.0
# Networks over which the source averages in Fig. 1a and b.
_SOURCE_NETWORKS = 200


class _OfNetworks(Protocol):
    """A cell that simulates networks at a batch size."""

    @property
    def batch_size(self) -> int: ...

    @property
    def networks(self) -> int: ...


def grouped(
    results: Mapping[Item, Value], key: Callable[[Item], Key]
) -> dict[Key, list[tuple[Item, Value]]]:
    """Group results by a property of their cells, in the order of first appearance."""
    groups: dict[Key, list[tuple[Item, Value]]] = {}
    for cell, record in results.items():
        groups.setdefault(key(cell), []).append((cell, record))
    return groups


def pooled(parts: Iterable[Sequence[Any]]) -> NDArray[np.float64]:
    """Join samples of several cells along their first axis."""
    return np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])


def deviation(samples: ArrayLike) -> float:
    """Standard deviation of samples; 0 of a single one."""
    values = np.asarray(samples, dtype=np.float64)
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def sample_mean(samples: ArrayLike) -> Estimate:
    """Mean and standard error over networks; the error of a single one is unknown."""
    values = np.asarray(samples, dtype=np.float64)
    method = f"mean of {len(values)} networks"
    if len(values) < 2:
        return Estimate(float(values[0]), math.nan, method)
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return Estimate(float(values.mean()), error, method)


def log_slopes(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least-squares slope per layer of each row, ``[networks, layers]``.

    Examples:
        >>> log_slopes(np.array([[0.0, 1.0, 2.0], [0.0, -2.0, -4.0]]))
        array([ 1., -2.])
    """
    layers = np.arange(logs.shape[1]) - (logs.shape[1] - 1) / 2
    return np.asarray(logs @ layers / (layers @ layers))


def width_effect(width: int) -> float:
    """Relative distance from infinite width that finite width alone may explain."""
    return _WIDTH_EFFECT / width


def agrees(claim: str, found: Estimate, expected: float, allowance: float) -> Check:
    """Check that a mean is as theory predicts, to three standard errors plus an allowance.

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


def fewer_networks(cells: Iterable[_OfNetworks]) -> tuple[str, ...]:
    """Say how many networks there are at each batch size, if fewer than the source's 200."""
    counts: dict[int, int] = {}
    for cell in cells:
        counts[cell.batch_size] = counts.get(cell.batch_size, 0) + cell.networks
    least = min(counts.values(), default=_SOURCE_NETWORKS)
    return (f"{_SOURCE_NETWORKS} networks: {least} here",) if least < _SOURCE_NETWORKS else ()
