"""Helpers for tests of covariate shift."""

import numpy as np
from torch import nn

from support.probe_models import batch, build


def double(name):
    return build(name).double(), tuple(part.double() for part in batch())


def numbers(shift):
    return [(layer.l2, layer.cosine) for layer in shift.layers]


def assert_agree(shift, literal, tolerance=1e-10):
    found = np.array(numbers(shift))
    np.testing.assert_allclose(found, np.array(literal), rtol=tolerance, atol=tolerance)


def chain(layers=5, width=6):
    blocks = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)]
    return nn.Sequential(*blocks).double()


def names_by_layer(model, shift):
    """Parameters that a layer's module holds and no earlier layer's does."""
    taken, found = set(), []
    modules = dict(model.named_modules())
    for layer in shift.layers:
        held = {id(p) for p in modules.get(layer.layer, model).parameters() if p.requires_grad}
        found.append([n for n, p in model.named_parameters() if id(p) in held - taken])
        taken |= held
    return found
