"""Small networks, batches and loops that the tests of BNP share."""

from __future__ import annotations

import copy
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import mse_loss

from equipoise import BNP

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd decay": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.005),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def mlp(widths=(5, 7, 6, 3), dtype=torch.float64, seed=0, activation=nn.Tanh):
    """Linear layers with an activation between them and seeded weights."""
    parts = []
    for m, n in pairwise(widths):
        parts += [nn.Linear(m, n, dtype=dtype), activation()]
    model = nn.Sequential(*parts[:-1])
    g = generator(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=dtype) / p.shape[-1] ** 0.5)
    return model


def batches(steps=30, rows=32, n=5, outputs=3, dtype=torch.float64, seed=1):
    g = generator(seed)
    x = torch.randn(steps, rows, n, generator=g, dtype=dtype)
    return list(
        zip(x + 0.5, torch.randn(steps, rows, outputs, generator=g, dtype=dtype), strict=True)
    )


def train(model, optimizer, data, pre=None):
    """Plain loop; ``pre.step()`` if given. Returns the losses before each step."""
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        if pre is not None:
            pre.step()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def attached(model, optimizer="adam", data=None, **options):
    """Train a copy under an attached BNP; returns (copy, losses, preconditioner)."""
    model = copy.deepcopy(model)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    pre = BNP(model, **options).attach(optimizer)
    losses = train(model, optimizer, batches() if data is None else data)
    return model, losses, pre


def stepped(model, data=None, lr=0.05, **options):
    """The same with the explicit form and SGD."""
    model = copy.deepcopy(model)
    pre = BNP(model, **options)
    losses = train(model, torch.optim.SGD(model.parameters(), lr=lr), data or batches(), pre)
    return model, losses, pre


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def distance(a, b):
    return float((flat(a) - flat(b)).abs().max())
