"""Where predictions meet measurements."""

from equipoise.diagnosis.checkup import checkup
from equipoise.diagnosis.probe import probe
from equipoise.diagnosis.smoothness.measure import smoothness
from equipoise.diagnosis.trial.measure import try_bnp

__all__ = [
    # verbs
    "checkup",
    "probe",
    "try_bnp",
    "smoothness",
]
