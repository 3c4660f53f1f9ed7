"""What a report says about preconditioning."""

from __future__ import annotations

import math
from collections.abc import Sequence

from equipoise.diagnosis.preconditioning.record import LayerPreconditioning
from equipoise.report.checkup.words.overview import by_reason

LEGEND = (
    "Condition numbers before and after batch normalisation preconditioning (BNP): of each "
    "layer's inputs and, unless samples share batch statistics, of the loss's Hessian for one "
    "output unit, ĤᵀSĤ. Gain: the Hessian's, or else that of the inputs, squared. κ(D)²: the gain "
    "that the literature gives; a low rank and the loss's own curvature κ(S) can make the real "
    "gain smaller."
)


def largest_gain_first(layers: Sequence[LayerPreconditioning]) -> list[LayerPreconditioning]:
    """Sort layers by gain; those whose Hessian was not measured come last."""
    measured = [layer for layer in layers if not math.isnan(layer.inputs)]
    return sorted(measured, key=lambda layer: (math.isnan(layer.hessian), -layer.gain))


def hessian_not_measured(layers: Sequence[LayerPreconditioning]) -> dict[str, list[str]]:
    """Collect the names of layers under the reason why their Hessian is unknown."""
    return by_reason((layer.reason, layer.layer) for layer in layers)
