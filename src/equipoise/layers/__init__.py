"""Normalisation layers that batch norm and its preconditioner are compared with."""

from equipoise.layers.batch_renorm import (
    BatchRenorm1d,
    BatchRenorm2d,
    BatchRenorm3d,
    RenormSchedule,
)
from equipoise.layers.convert import convert
from equipoise.layers.four_things import (
    FourThingsBatchNorm1d,
    FourThingsBatchNorm2d,
    FourThingsBatchNorm3d,
    gamma_beta_penalty,
)
from equipoise.layers.ghost_batch_norm import GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d
from equipoise.layers.lp_norm import LpNorm
from equipoise.layers.noisy_batch_norm import (
    NoisyBatchNorm1d,
    NoisyBatchNorm2d,
    NoisyBatchNorm3d,
)
from equipoise.layers.synchronised_batch_norm import (
    SynchronisedBatchNorm1d,
    SynchronisedBatchNorm2d,
    SynchronisedBatchNorm3d,
)
from equipoise.layers.weight_standardisation import weight_standardise

__all__ = [
    # layers
    "BatchRenorm1d",
    "BatchRenorm2d",
    "BatchRenorm3d",
    "RenormSchedule",
    "GhostBatchNorm1d",
    "GhostBatchNorm2d",
    "GhostBatchNorm3d",
    "FourThingsBatchNorm1d",
    "FourThingsBatchNorm2d",
    "FourThingsBatchNorm3d",
    "gamma_beta_penalty",
    "NoisyBatchNorm1d",
    "NoisyBatchNorm2d",
    "NoisyBatchNorm3d",
    "SynchronisedBatchNorm1d",
    "SynchronisedBatchNorm2d",
    "SynchronisedBatchNorm3d",
    "LpNorm",
    # changes of a model
    "convert",
    "weight_standardise",
]
