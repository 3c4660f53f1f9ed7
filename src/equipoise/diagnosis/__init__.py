"""Where predictions meet measurements."""

from equipoise.diagnosis.blocks import FoundBlock, find_blocks
from equipoise.diagnosis.checkup import BATCH_SIZE, BATCHES, SEEDS, checkup
from equipoise.diagnosis.preconditioning import preconditioning
from equipoise.diagnosis.trials import OPTIMIZERS, STEPS, check_trial, try_bnp

__all__ = [
    "BATCHES",
    "BATCH_SIZE",
    "OPTIMIZERS",
    "SEEDS",
    "STEPS",
    "FoundBlock",
    "check_trial",
    "checkup",
    "find_blocks",
    "preconditioning",
    "try_bnp",
]
