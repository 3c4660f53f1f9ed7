"""Compare predictions with measurements, conclude, and try remedies."""

from typing import TYPE_CHECKING

from equipoise._lazy import import_on_first_use

if TYPE_CHECKING:
    from equipoise.diagnosis.fix.applied import fixed
    from equipoise.diagnosis.fix.options import FixOptions
    from equipoise.diagnosis.initialisation.measure import initialisation
    from equipoise.diagnosis.record import Checkup, Probe
    from equipoise.diagnosis.smoothness.measure import SmoothnessOptions, smoothness
    from equipoise.diagnosis.trainability.measure import trainability
    from equipoise.diagnosis.width.measure import coordinate_check

__all__ = [
    # what the verbs return
    "Checkup",
    "Probe",
    # before training
    "initialisation",
    "trainability",
    # remedies
    "FixOptions",
    "fixed",
    # over widths
    "coordinate_check",
    # short trainings
    "smoothness",
    "SmoothnessOptions",
]

import_on_first_use(
    __name__,
    {
        "fix.applied": "fixed",
        "fix.options": "FixOptions",
        "initialisation.measure": "initialisation",
        "record": "Checkup Probe",
        "smoothness.measure": "SmoothnessOptions smoothness",
        "trainability.measure": "trainability",
        "width.measure": "coordinate_check",
    },
)
