"""Models small enough for an explicit Hessian, and comparisons with it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from reference.hessian import explicit
from support import probe_models

# Of the probes' table, two take too long. The one with spectral normalisation has a test of its
# own: its gradient leaves out how singular vectors depend on weights, so its derivative is skew.
SMALL = [
    name
    for name in probe_models.MODELS
    if name not in {"parametrizations", "convolutional residual", "transformer"}
]


def double(name):
    """Model and batch of the probes' table, in float64."""
    x, y = probe_models.batch()
    return probe_models.build(name).double(), (x.double(), y.double())


def smooth(norm=None, *, inputs=3, width=4, depth=2):
    """A tanh network, normalised or not, in float64."""
    layers: list[nn.Module] = []
    for number in range(depth):
        layers.append(nn.Linear(width if number else inputs, width))
        layers += [nn.Tanh()] if norm is None else [norm(width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, 2)).double()


def labelled(rows=10, inputs=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=generator, dtype=torch.float64)
    return x, torch.randint(2, (rows,), generator=generator)


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def eigenvalues(model, loss_fn, batch, names=None):
    """Of the explicit Hessian, ascending, on a copy of the model."""
    matrix = explicit(model, loss_fn, batch, names)
    return torch.linalg.eigvalsh((matrix + matrix.T) / 2)


def assert_extremes(spectrum, values, relative=1e-8):
    """Check both ends against their stated errors and a relative tolerance."""
    radius = float(values.abs().max())
    for found, true in ((spectrum.smallest, values[0]), (spectrum.largest, values[-1])):
        assert abs(found.value - float(true)) <= found.error + 1e-14 * radius
        assert abs(found.value - float(true)) <= relative * radius
