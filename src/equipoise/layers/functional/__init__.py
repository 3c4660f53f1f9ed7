"""The formulas of the layers, without state."""

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
    "batch_group_norm",
    "batch_renorm",
    "example_weighted_norm",
    "standardise_weight",
    # shared by the layers
    "channel_statistics",
    "check_values",
    "cumulative",
    "like",
    "virtual_batches",
]
