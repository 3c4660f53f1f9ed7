"""The training loop, losses, evaluation and the choice of a learning rate."""

from typing import TYPE_CHECKING

from equipoise._lazy import import_on_first_use

if TYPE_CHECKING:
    from equipoise.training.evaluation import evaluate
    from equipoise.training.loop import train
    from equipoise.training.losses import cross_entropy, mean_squared_error
    from equipoise.training.rates import tune_rate
    from equipoise.training.record import Curve, Evaluation, History

__all__ = [
    # training
    "train",
    "evaluate",
    "tune_rate",
    # losses
    "cross_entropy",
    "mean_squared_error",
    # records
    "Curve",
    "Evaluation",
    "History",
]

import_on_first_use(
    __name__,
    {
        "evaluation": "evaluate",
        "loop": "train",
        "losses": "cross_entropy mean_squared_error",
        "rates": "tune_rate",
        "record": "Curve Evaluation History",
    },
)
