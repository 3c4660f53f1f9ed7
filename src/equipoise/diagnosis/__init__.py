"""Compare predictions with measurements, conclude, and try remedies."""

from equipoise.diagnosis.checkup import checkup
from equipoise.diagnosis.predict import predict
from equipoise.diagnosis.probe import Probe, probe
from equipoise.diagnosis.record import Checkup
from equipoise.diagnosis.smoothness.measure import SmoothnessOptions, smoothness
from equipoise.diagnosis.trial.measure import TrialOptions, try_bnp

__all__ = [
    # a whole model
    "checkup",
    "Checkup",
    "predict",
    "probe",
    "Probe",
    # short trainings
    "smoothness",
    "SmoothnessOptions",
    "try_bnp",
    "TrialOptions",
]
