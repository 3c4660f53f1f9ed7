"""Convolutions of every geometry with seeded weights, and seeded random numbers."""

from __future__ import annotations

import torch
from torch import nn

from support.tensors import random

# dims, options, input shape
GEOMETRIES = {
    "plain": (2, {"kernel_size": 3}, (2, 4, 7, 6)),
    "padded": (2, {"kernel_size": 3, "padding": 1}, (2, 4, 5, 4)),
    "same": (2, {"kernel_size": (1, 3), "padding": "same"}, (2, 4, 5, 4)),
    "strided": (2, {"kernel_size": 3, "stride": (2, 1), "padding": (0, 2)}, (2, 4, 7, 6)),
    "dilated": (2, {"kernel_size": 2, "dilation": 2, "padding": 1}, (2, 4, 5, 6)),
    "grouped": (2, {"kernel_size": 3, "groups": 2, "padding": 1}, (2, 4, 4, 5)),
    "depthwise": (2, {"kernel_size": 2, "groups": 4}, (3, 4, 4, 5)),
    "reflected": (2, {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"}, (2, 4, 4, 5)),
    "circular": (2, {"kernel_size": 3, "padding": 1, "padding_mode": "circular"}, (2, 4, 4, 5)),
    "pointwise": (2, {"kernel_size": 1}, (3, 4, 2, 3)),
    "one axis": (1, {"kernel_size": 3, "padding": 1}, (3, 4, 8)),
    "three axes": (3, {"kernel_size": 2, "stride": 2}, (2, 4, 4, 4, 4)),
}


def seeded(module, seed=1):
    generator = torch.Generator().manual_seed(seed)
    module.double()
    with torch.no_grad():
        for p in module.parameters():
            p.normal_(generator=generator).mul_(0.5)
    return module


def convolution(name, bias=True):
    dims, options, shape = GEOMETRIES[name]
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    return seeded(kind(4, 8, bias=bias, **options)), random(*shape, seed=2)
