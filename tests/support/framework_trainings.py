"""Plain loops beside the trainings of frameworks, and a network that tells passes apart."""

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_

from equipoise import BNP
from support.bnp_problems import OPTIMIZERS, batches, mlp


def plainly(step, model=None, data=None):
    """A loop with BNP; ``step`` does what follows ``zero_grad()``."""
    model = mlp() if model is None else model
    optimizer = OPTIMIZERS["adam"](model.parameters())
    BNP(model).attach(optimizer)
    for x, y in batches() if data is None else data:
        optimizer.zero_grad()
        step(model, optimizer, x, y)
    return model


def clipped(model, optimizer, x, y):
    mse_loss(model(x), y).backward()
    clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


def careless_net(dtype=torch.float64):
    """A network that a pass too many changes: by its statistics and its random numbers."""
    torch.manual_seed(3)
    layers = [nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)]
    return nn.Sequential(*layers).to(dtype)
