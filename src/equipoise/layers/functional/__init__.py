"""The formulas of the layers, without state."""

from equipoise.layers.functional.lp import check_order, lp_norm, lp_statistics
from equipoise.layers.functional.noise import activation_noise, check_noise
from equipoise.layers.functional.normalisation import (
    batch_group_norm,
    batch_renorm,
    channel_statistics,
    check_values,
    cumulative,
    example_weighted_norm,
    like,
    standardise_weight,
    virtual_batches,
)

__all__ = [
    "activation_noise",
    "batch_group_norm",
    "batch_renorm",
    "channel_statistics",
    "check_noise",
    "check_order",
    "check_values",
    "cumulative",
    "example_weighted_norm",
    "like",
    "lp_norm",
    "lp_statistics",
    "standardise_weight",
    "virtual_batches",
]
