"""Small models, what is found in them, and remedies for them."""

import torch
from torch import nn

from equipoise import data, models
from equipoise.diagnosis.prediction.blocks import find_blocks
from equipoise.diagnosis.prediction.predict import predict
from equipoise.diagnosis.record import Remedy
from equipoise.instrument.recording.operations import record_operations
from equipoise.records import Estimate

DIGITS = data.load("digits")


def fixed_batches(size=64, count=1):
    """All the data there are: a check-up then draws no larger sample to precondition on."""
    return list(DIGITS.batches(size, count, torch.Generator().manual_seed(0)))


def run(model, x):
    return model(x)


def found_in(model, x):
    return find_blocks(record_operations(model, x, run))


def only(model, x):
    found, *_ = found_in(model, x)
    return found


def block_of(model, x):
    return predict(only(model, x))[0]


def vectors(rows=16, features=6):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, features, generator=generator)


def images(rows=4, channels=2, size=6):
    return torch.randn(rows, channels, size, size, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """linear → batch norm → any function → linear."""

    def __init__(self, function):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)
        self.function = function

    def forward(self, x):
        return self.second(self.function(self.norm(self.first(x))))


def layers(*between):
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), *between, nn.Linear(6, 2))


def normalised():
    return models.mlp(64, 10, depth=3, width=16)


def noisy():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 10)
    )


def shift_remedy(value, *, verified=True):
    rate = Estimate(1.1, 0.0, "theory")
    return Remedy(
        normaliser="batch norm",
        parameter="bias",
        value=value,
        predicted_rate=rate,
        predicted_depth=9.0,
        measured_rate=rate,
        verified=verified,
        change=f"start batch norm's shift β at {value:g}",
        code="not read by anyone",
    )
