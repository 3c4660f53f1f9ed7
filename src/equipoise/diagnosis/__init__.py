"""Where predictions meet measurements."""

from equipoise.diagnosis.blocks import FoundBlock, find_blocks
from equipoise.diagnosis.checkup import BATCH_SIZE, BATCHES, SEEDS, checkup
from equipoise.diagnosis.preconditioning import preconditioning
from equipoise.diagnosis.probing import probe
from equipoise.diagnosis.second_order import second_order
from equipoise.diagnosis.smoothness import SEEDS as SMOOTHNESS_SEEDS
from equipoise.diagnosis.smoothness import check_smoothness, smoothness, smoothness_at_start
from equipoise.diagnosis.trials import OPTIMIZERS, STEPS, check_trial, try_bnp

__all__ = [
    "BATCHES",
    "BATCH_SIZE",
    "OPTIMIZERS",
    "SEEDS",
    "SMOOTHNESS_SEEDS",
    "STEPS",
    "FoundBlock",
    "check_smoothness",
    "check_trial",
    "checkup",
    "find_blocks",
    "preconditioning",
    "probe",
    "second_order",
    "smoothness",
    "smoothness_at_start",
    "try_bnp",
]
