"""The one training loop, what it minimises, and how its learning rate is chosen."""

from equipoise.training.batches import (
    Batches,
    ShuffledBatches,
    ShuffledOrder,
    Transform,
    step_generator,
)
from equipoise.training.big import BigRun, train_big
from equipoise.training.checkpoint import CheckpointError, remove_checkpoint
from equipoise.training.distributed import Ranks, process_group, ranks
from equipoise.training.evaluation import evaluate
from equipoise.training.layout import Layout
from equipoise.training.loop import train
from equipoise.training.losses import (
    LOSSES,
    LossFunction,
    UnsuitableBatchError,
    cross_entropy,
    default_loss,
    mean_squared_error,
    summed_squared_error,
)
from equipoise.training.rates import TunedRate, check_rates, tune_rate
from equipoise.training.stacked import train_many
from equipoise.training.stacked_batches import stacked_batches

__all__ = [
    # training
    "train",
    "train_many",
    "stacked_batches",
    "evaluate",
    "tune_rate",
    "check_rates",
    "TunedRate",
    # over several processes, with checkpoints
    "train_big",
    "BigRun",
    "Layout",
    "Batches",
    "ShuffledBatches",
    "ShuffledOrder",
    "Transform",
    "step_generator",
    "Ranks",
    "ranks",
    "process_group",
    "CheckpointError",
    "remove_checkpoint",
    # losses
    "LOSSES",
    "LossFunction",
    "cross_entropy",
    "mean_squared_error",
    "summed_squared_error",
    "default_loss",
    "UnsuitableBatchError",
]
