"""Positions count as samples: BSB1 over all of them is a fixed point of the conv map too."""

import math

import numpy as np
import torch
from torch import nn

from equipoise.theory import backward_spectrum


def growth_rates(padding_mode, channels=150, networks=16, depth=18):
    generator = torch.Generator().manual_seed(7)
    found = []
    for _ in range(networks):
        h = torch.randn(2, channels, 3, 3, generator=generator)
        layers = []
        for _ in range(depth):
            weight = torch.randn(channels, channels, 3, 3, generator=generator)
            weight *= (1 / (9 * channels)) ** 0.5
            if padding_mode == "circular":
                h = nn.functional.conv2d(nn.functional.pad(h, (1,) * 4, "circular"), weight)
            else:
                h = nn.functional.conv2d(h, weight, padding=1)
            h.requires_grad_()
            layers.append(h)
            centred = h - h.mean((0, 2, 3), keepdim=True)
            s = (centred.square().mean((0, 2, 3), keepdim=True) + 1e-12).sqrt()
            h = torch.relu(centred / s)
        top = (h * torch.randn(h.shape, generator=generator)).sum()
        gradients = torch.autograd.grad(top, layers)
        logs = np.array([float(g.double().square().sum().log()) for g in gradients])
        found.append(-np.diff(logs[6:]).mean())
    return np.array(found)


def test_circular_padding_grows_as_that_many_samples():
    rates = growth_rates("circular")
    error = rates.std(ddof=1) / len(rates) ** 0.5 + 2 / 150
    expected = math.log(backward_spectrum("relu", 2 * 3 * 3).G.value)
    assert abs(rates.mean() - expected) < 4 * error


def test_zero_padding_does_not():
    """Border positions see fewer inputs: on 3 × 3 maps growth is a tenth smaller."""
    expected = math.log(backward_spectrum("relu", 18).G.value)
    assert growth_rates("zeros").mean() < expected - 0.05
