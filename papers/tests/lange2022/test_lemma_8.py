"""Lemma 8: one output channel of a convolution, over samples and positions, is Ĥŵ."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from equipoise.preconditioners.hessian.preconditioner import im2col


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("padding", [0, 1])
def test_a_convolution_is_a_matrix_times_its_weights(padding):
    conv = nn.Conv2d(2, 3, 3, padding=padding).double()
    h = random(4, 2, 5, 6)
    rows = im2col(conv, h).flatten(0, -2)
    for channel in range(3):
        found = conv.bias[channel] + rows @ conv.weight[channel].flatten()
        assert_close(found, conv(h)[:, channel].flatten(), rtol=1e-12, atol=1e-12)


def test_taps_in_another_order_are_not():
    """The columns of (16) belong to w(v, j), not to w(j, v)."""
    conv = nn.Conv2d(1, 1, 3, bias=False).double()
    h = random(2, 1, 5, 5)
    swapped = im2col(conv, h).flatten(0, -2) @ conv.weight[0, 0].mT.flatten()
    assert (swapped - conv(h).flatten()).abs().max() > 0.1
