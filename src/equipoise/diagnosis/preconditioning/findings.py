"""Findings about preconditioning: what it would do to condition numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from equipoise.diagnosis.preconditioning.record import LayerPreconditioning
from equipoise.records import wording
from equipoise.records.finding import Finding

# A change of the condition number by less than this is not worth a finding.
WORTHWHILE = 10.0
# κ(D)² is worth a comment where it promises more than this times the measured gain.
_OVERSTATED = 10.0


def conclude_preconditioning(layers: Sequence[LayerPreconditioning]) -> list[Finding]:
    """Turn the records into findings."""
    measured = [layer for layer in layers if math.isfinite(layer.hessian)]
    better = [layer for layer in measured if layer.gain > WORTHWHILE]
    if not better:
        return []
    best = max(better, key=lambda layer: layer.gain)
    median = statistics.median(layer.gain for layer in measured)
    detail = (
        f"At {best.layer} it would lower the condition number of one unit's Hessian from "
        f"{wording.number(best.hessian, 2)} to {wording.number(best.hessian_after, 2)} (rank "
        f"{best.hessian_rank} of {best.columns}). The median gain over "
        f"{wording.count(len(measured), 'layer')} is {wording.number(median, 2)}-fold."
    )
    over = [layer for layer in measured if layer.promised > _OVERSTATED * layer.gain]
    if over:
        worst = max(over, key=lambda layer: layer.promised / layer.gain)
        detail += (
            " κ(D)², the gain that the literature gives, is too high: "
            f"{wording.number(worst.promised, 2)} at {worst.layer}, where the gain is "
            f"{wording.number(worst.gain, 2)}."
        )
    return [
        Finding(
            "note",
            f"Preconditioning would improve the conditioning of {len(better)} of "
            f"{len(measured)} layers more than {WORTHWHILE:.0f}-fold",
            detail,
            'See in a short training whether it pays: a check-up with fix="bnp".',
        )
    ]
