"""Small trainings with checkpoints, and objects whose states cannot be saved or restored."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from equipoise.training import cross_entropy
from equipoise_papers.big.train import train_big
from papers_support.big_problems import EVERY, OPTIMIZERS, data, network


def run(
    path,
    *,
    model=None,
    optimizer=OPTIMIZERS["momentum"],
    batches=None,
    scheduler=None,
    loss_fn=cross_entropy,
    **options,
):
    model = network() if model is None else model
    stepper = optimizer(model.parameters())
    return train_big(
        model,
        batches or data(),
        loss_fn,
        stepper,
        scheduler=None if scheduler is None else scheduler(stepper),
        checkpoint=path,
        checkpoint_every=EVERY,
        **options,
    )


class Stubborn:
    """An object whose state is not plain."""

    def state_dict(self):
        return {"function": network}

    def load_state_dict(self, state):
        raise AssertionError


def shifted(inputs=0, targets=0):
    """Other samples of the same number."""
    batches = data()
    return replace(batches, inputs=batches.inputs + inputs, targets=batches.targets * 0 + targets)


class Versioned(nn.Linear):
    """A layer that doubles the weights of states that were written before its version 2."""

    _version = 2

    def _load_from_state_dict(self, state, prefix, metadata, *rest):
        if metadata.get("version", 1) < 2:
            state[f"{prefix}weight"] = 2 * state[f"{prefix}weight"]
        super()._load_from_state_dict(state, prefix, metadata, *rest)


class Noise(nn.Module):
    """Draws from a generator of its own."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x):
        return x + torch.randn(x.shape, generator=self.generator, dtype=x.dtype)


class Refusing(Stubborn):
    def state_dict(self):
        return {}


def wider():
    return nn.Sequential(nn.Linear(4, 3, dtype=torch.float64), nn.Tanh())
