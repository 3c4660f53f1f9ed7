"""Compare predictions with measurements, conclude, and try remedies."""

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
