"""Where predictions meet measurements."""

from equipoise.diagnosis.blocks import FoundBlock, find_blocks
from equipoise.diagnosis.checkup import BATCH_SIZE, BATCHES, SEEDS, checkup
from equipoise.training.losses import LOSSES

__all__ = ["BATCHES", "BATCH_SIZE", "LOSSES", "SEEDS", "FoundBlock", "checkup", "find_blocks"]
