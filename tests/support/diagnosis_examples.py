"""Small models, and remedies for them."""

import torch
from torch import nn

from equipoise import data, models
from equipoise.diagnosis.record import Recommendation
from equipoise.records import Estimate

DIGITS = data.load("digits")


def fixed_batches(size=64, count=1):
    """All the data there are: a check-up then draws no larger sample to precondition on."""
    return list(DIGITS.batches(size, count, torch.Generator().manual_seed(0)))


def normalised():
    return models.mlp(64, 10, depth=3, width=16)


def noisy():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 10)
    )


def shift_remedy(value, *, verified=True):
    rate = Estimate(1.1, 0.0, "theory")
    return Recommendation(
        normaliser="batch norm",
        parameter="bias",
        value=value,
        predicted_rate=rate,
        predicted_probability=0.9,
        measured_rate=rate,
        verified=verified,
        change=f"start batch norm's shift β at {value:g}",
        code="not read by anyone",
    )
