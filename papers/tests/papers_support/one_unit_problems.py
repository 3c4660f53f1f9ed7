"""One unit below batch norm, under a loss whose derivatives autograd computes."""

from __future__ import annotations

import torch
from torch.autograd.functional import hessian, jacobian

from papers_reference.one_unit import bn

EXACT = {"rtol": 1e-11, "atol": 1e-12}
# γ and ε.
SETTINGS = [(1.0, 0.0), (0.3, 0.0), (-2.0, 0.0), (1.0, 1e-5), (0.7, 0.5), (-2.0, 30.0)]


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def form(matrix, v):
    return v @ matrix @ v


class Unit:
    """One unit below a loss that is neither convex nor separable, with all its derivatives."""

    def __init__(self, m=12, gamma=1.0, eps=0.0, seed=0):
        self.options = {"gamma": gamma, "eps": eps}
        self.y = random(m, seed=seed) * 2 + 1
        self.mixing, self.slope = random(m, m, seed=seed + 1), random(m, seed=seed + 2)
        self.z = bn(self.y, gamma, 0.3, eps)
        self.g, self.H = jacobian(self.loss, self.z), hessian(self.loss, self.z)
        self.g_y, self.H_y = (
            derivative(lambda y: self.loss(bn(y, gamma, 0.3, eps)), self.y)
            for derivative in (jacobian, hessian)
        )

    def loss(self, z):
        return torch.tanh(self.mixing @ z) @ self.slope + (self.slope * z).square().sum() / 2
