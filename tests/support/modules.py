"""Modules that tests put their models together of."""

from __future__ import annotations

from torch import nn


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)
