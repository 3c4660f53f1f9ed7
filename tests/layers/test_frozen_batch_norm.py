"""Frozen batch norm is batch norm's evaluation, in both modes."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from equipoise.layers import convert
from equipoise.layers.frozen_batch_norm import FrozenBatchNorm


def trained() -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(3, eps=1e-3)
    for seed in range(3):
        norm(2 + 3 * torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(seed)))
    return norm


@pytest.mark.parametrize("training", [True, False])
def test_is_batch_norm_in_evaluation_mode(training):
    norm, x = trained(), torch.randn(5, 3, 2, 2)
    frozen = convert(nn.Sequential(norm), "batch", "frozen").model.train(training)
    assert isinstance(frozen[0], FrozenBatchNorm)
    assert_close(frozen(x), norm.eval()(x), rtol=0, atol=0)
    assert not torch.allclose(frozen(x), norm.train()(x))


def test_statistics_stay_and_parameters_learn():
    frozen = FrozenBatchNorm(3)
    frozen(5 + torch.randn(8, 3)).square().sum().backward()
    assert frozen.running_mean.tolist() == [0.0] * 3
    assert frozen.weight.grad is not None
    assert frozen.bias.grad is not None
    assert FrozenBatchNorm(3, affine=False).weight is None


def test_no_channels_are_refused():
    with pytest.raises(ValueError, match="num_features"):
        FrozenBatchNorm(0)
