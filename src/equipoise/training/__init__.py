"""The one training loop, what it minimises, and how its learning rate is chosen."""

from equipoise.training.evaluation import evaluate
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

__all__ = [
    # training
    "train",
    "evaluate",
    "tune_rate",
    "check_rates",
    "TunedRate",
    # losses
    "LOSSES",
    "LossFunction",
    "cross_entropy",
    "mean_squared_error",
    "summed_squared_error",
    "default_loss",
    "UnsuitableBatchError",
]
