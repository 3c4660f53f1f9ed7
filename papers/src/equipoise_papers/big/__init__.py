"""One training over several processes, with checkpoints from which it resumes exactly."""

from equipoise_papers.big.batches import Batches, ShuffledBatches, ShuffledOrder, step_generator
from equipoise_papers.big.checkpoint import CheckpointError, remove_checkpoint
from equipoise_papers.big.distributed import Ranks, process_group, ranks, under_torchrun
from equipoise_papers.big.layout import Layout
from equipoise_papers.big.train import BigRun, train_big

__all__ = [
    # training
    "train_big",
    "BigRun",
    "Layout",
    # which samples each step takes
    "Batches",
    "ShuffledBatches",
    "ShuffledOrder",
    "step_generator",
    # processes
    "Ranks",
    "ranks",
    "process_group",
    "under_torchrun",
    # checkpoints
    "CheckpointError",
    "remove_checkpoint",
]
