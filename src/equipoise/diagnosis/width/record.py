"""Records of a coordinate check: sizes over widths, slopes, and verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from equipoise.records.estimate import Estimate
from equipoise.records.finding import Finding

Trend = Literal["stable", "grows", "vanishes", "undecided", "zero", "not finite"]
"""What happens with width; ``"zero"`` and ``"not finite"`` have no slope."""


@dataclass(frozen=True, slots=True)
class WidthTrend:
    r"""One size of a layer over widths.

    Args:
        sizes: Root mean square at every width, the median over seeds.
        slope: Exponent a of :math:`\text{width}^a`, fitted to the logarithms, with its standard
            error; NaN if a size is zero or not finite.
        predicted_sizes: The same from theory, for one initialisation; NaN where there is none.
        predicted_slope: Their exponent; NaN if one is missing.
        trend: The verdict.
    """

    sizes: tuple[float, ...]
    slope: Estimate
    predicted_sizes: tuple[float, ...]
    predicted_slope: float
    trend: Trend


@dataclass(frozen=True, slots=True)
class LayerOverWidth:
    """What width does to one layer.

    Args:
        layer: Its name in the model.
        kind: Its class.
        is_last: Whether it is the last to run.
        output: Its output at initialisation.
        own_change: By how much its own parameters, after all steps, change what it makes of its
            first inputs.
        change: How its output has changed after all steps.
        first_step: Like ``own_change``, after one step, where theory predicts it.
        rate_exponent: The power of the width by which its learning rate should be multiplied, so
            that its own change no longer depends on width; 0 for none.
    """

    layer: str
    kind: str
    is_last: bool
    output: WidthTrend
    own_change: WidthTrend
    change: WidthTrend
    first_step: WidthTrend
    rate_exponent: float = 0.0


@dataclass(frozen=True, slots=True)
class CoordinateCheck:
    """Whether what one width has learned about learning rates holds at another.

    Args:
        optimizer: Class of the optimiser.
        widths: The widths, rising.
        steps: Steps of training at each.
        seeds: Initialisations of each.
        layers: One for every layer with parameters that all widths have, in order.
        transfers: Whether learning rates transfer; None if that is undecided.
        unpredicted: Why steps of this optimiser are not predicted; empty if they are.
        findings: What to conclude from it.
    """

    optimizer: str
    widths: tuple[int, ...]
    steps: int
    seeds: int
    layers: tuple[LayerOverWidth, ...]
    transfers: bool | None
    unpredicted: str = ""
    findings: tuple[Finding, ...] = ()
