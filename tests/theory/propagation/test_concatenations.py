"""What later layers have in common of a concatenation is computed once."""

import pytest
import torch
from torch import nn

from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation.propagate import propagate

WIDTH, GROWTH = 32, 16


class Dense(nn.Module):
    """Append channels that a norm, a ReLU and a convolution make of all before."""

    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.layer = nn.Conv2d(channels, GROWTH, 3, padding=1, bias=False)

    def forward(self, x):
        return torch.cat([x, self.layer(torch.relu(self.norm(x)))], 1)


def gradients(side, scales):
    """Predicted at every operation, for norms of that scale."""
    torch.manual_seed(0)
    layers = [Dense(WIDTH + i * GROWTH) for i in range(len(scales))]
    for layer, scale in zip(layers, scales, strict=True):
        nn.init.constant_(layer.norm.weight, scale)
    model = nn.Sequential(nn.Conv2d(3, WIDTH, 3, padding=1), *layers)
    loss = lambda model, x: model(x).square().mean()  # noqa: E731
    graph = trace(model, torch.randn(4, 3, side, side), loss)
    return [s.gradient for s in propagate(graph).sites if s.gradient is not None]


@pytest.mark.parametrize("side", [4, 18])  # batch norm of few rows, and of many
class TestSharedParts:
    def test_equal_norms_are_as_norms_that_nearly_are(self, side):
        """Those of other scales share nothing."""
        shared, alone = (gradients(side, scales) for scales in ([1] * 3, [1, 1 + 1e-6, 1 - 1e-6]))
        assert shared == pytest.approx(alone, rel=2e-5)

    def test_norms_of_other_scales_are_not(self, side):
        shared, alone = gradients(side, [1, 1, 1]), gradients(side, [1, 2, 1])
        assert shared != pytest.approx(alone, rel=0.1)


def test_empty_slices_are_left_out():
    """As where some heads of attention look at neighbours alone, and here none do."""

    class Split(nn.Module):
        def __init__(self, heads):
            super().__init__()
            self.first, self.last, self.heads = nn.Linear(64, 64), nn.Linear(64, 64), heads

        def forward(self, x):
            y = self.first(x)
            left, right = y[:, : self.heads], y[:, self.heads :]
            return self.last(torch.cat([left, right.tanh()], 1))

    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    for heads in (0, 64):
        found = propagate(trace(Split(heads), x, lambda model, x: model(x).square().mean()))
        assert all(site.is_predicted for site in found.sites if site.operation == "addmm")
