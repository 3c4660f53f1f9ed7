"""The depth up to which a panel's networks should train, by the library's calibrated verdict."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from equipoise import diagnosis
from equipoise_papers.sweeps.cell import Cell
from equipoise_papers.yang2019.trainability.stack import Stack, a_batch, network

# Theory starts at this depth, and halves or doubles it.
_DEPTH = 24


@dataclass(frozen=True, slots=True)
class Forecast:
    """Depth at which a network trains as probably as not.

    Args:
        depth: Hidden layers; infinite beyond those that were predicted.
        low: Lower end of the interval that holds it in 9 of 10 cases.
        high: Upper end.
    """

    depth: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ForecastPoint(Cell[Forecast]):
    """One column of a panel.

    Args:
        stack: One of its networks; its depth, rates, seeds and length do not count.
        calibration: Digest of the trainings that the verdict has been fitted to.
    """

    stack: Stack
    calibration: str

    @staticmethod
    def of(stack: Stack) -> ForecastPoint:
        """The point of a column, the same for all networks of the column."""
        column = replace(stack, depth=_DEPTH, rates=(), seeds=(), samples=0, test_samples=0)
        return ForecastPoint(column, _calibration())

    def run(self) -> Forecast:
        """Predict, without training anything."""
        x, y = a_batch(self.stack)
        classes = int(y.max()) + 1
        net = network(self.stack, x[0].numel(), classes, seed=0)
        found = diagnosis.trainability(net, (x, y), batch_size=len(x)).depth
        if found is None:
            return Forecast(math.nan, math.nan, math.nan)
        # The first and the last block are not alike, and are not counted among the equal ones.
        more = self.stack.depth - found.blocks
        return Forecast(*(value + more for value in (found.value, found.low, found.high)))


@cache
def _calibration() -> str:
    fitted = files("equipoise.diagnosis.trainability").joinpath("calibration.json").read_bytes()
    return hashlib.sha256(fitted).hexdigest()[:16]


def forecasts(stacks: Sequence[Stack]) -> tuple[ForecastPoint, ...]:
    """The points of all columns of a panel."""
    return tuple(dict.fromkeys(map(ForecastPoint.of, stacks)))


def along(results: Mapping[Any, Any], parameter: str) -> list[tuple[float, Forecast]]:
    """Positions and forecasts among the results, rising."""
    found = [
        (float(getattr(cell.stack, parameter)), record)
        for cell, record in results.items()
        if isinstance(cell, ForecastPoint)
    ]
    return sorted(found, key=lambda pair: pair[0])
