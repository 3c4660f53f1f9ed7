"""Small models with one block, and what is found in them."""

import torch
from torch import nn

from equipoise.diagnosis.prediction.blocks import find_blocks
from equipoise.diagnosis.prediction.predict import predict
from equipoise.instrument.recording.operations import record_operations


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
