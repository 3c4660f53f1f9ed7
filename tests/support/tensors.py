"""Seeded random tensors, and gradients of functions of tensors."""

from __future__ import annotations

import torch


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def gradient(function, x, G=None):
    x = x.detach().requires_grad_()
    value = function(x)
    return torch.autograd.grad(value, x, torch.ones_like(value) if G is None else G)[0]
