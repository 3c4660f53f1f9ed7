"""Ghost batch norm: each virtual batch is a batch norm of its own."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from equipoise.layers import GhostBatchNorm1d, GhostBatchNorm2d
from equipoise.layers._statistics import virtual_batches


def inputs(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x + torch.arange(float(shape[0]), dtype=torch.float64).reshape(-1, *[1] * (x.ndim - 1))


def ghost(size, make=GhostBatchNorm1d, **options):
    return make(4, virtual_batch_size=size, dtype=torch.float64, **options)


def plain(make=nn.BatchNorm1d, **options):
    return make(4, dtype=torch.float64, **options)


class TestVirtualBatches:
    @pytest.mark.parametrize("momentum", [0.1, 0.5, None])
    @pytest.mark.parametrize("size", [2, 3, 4, 12])
    def test_one_batch_norm_after_the_other(self, size, momentum):
        layer, one = ghost(size, momentum=momentum), plain(momentum=momentum)
        x = inputs(12, 4)
        expected = torch.cat([one(part) for part in x.split(size)])
        assert torch.equal(layer(x), expected)
        assert_close(layer.state_dict(), one.state_dict(), rtol=0, atol=0)

    def test_the_whole_batch_is_batch_norm(self):
        layer, one = ghost(12), plain()
        assert torch.equal(layer(inputs(12, 4)), one(inputs(12, 4)))
        assert_close(layer.state_dict(), one.state_dict(), rtol=0, atol=0)

    def test_virtual_batches_of_half_the_batch_are_not_batch_norm(self):
        layer, one = ghost(6), plain()
        assert (layer(inputs(12, 4)) - one(inputs(12, 4))).abs().max() > 0.5
        assert layer.num_batches_tracked == 2

    def test_virtual_batches_are_independent(self):
        layer, x = ghost(4, GhostBatchNorm2d), inputs(8, 4, 2, 2)
        other = x.clone()
        other[4:] *= 7
        assert torch.equal(layer(x)[:4], layer(other)[:4])

    def test_samples_of_one_virtual_batch_depend_on_each_other(self):
        layer, x = ghost(4, GhostBatchNorm2d), inputs(8, 4, 2, 2)
        other = x.clone()
        other[3] *= 7
        assert not torch.equal(layer(x)[:3], layer(other)[:3])

    def test_closed_form_of_the_running_mean(self):
        """Hoffer et al.: weights (1 - η)^k and η (1 - η)^(k - j) for virtual batch j of k."""
        layer, x, eta = ghost(3, momentum=0.2), inputs(12, 4), 0.2
        layer(x)
        means = x.reshape(4, 3, 4).mean(1)
        weights = eta * (1 - eta) ** torch.arange(3, -1, -1, dtype=torch.float64)
        assert_close(layer.running_mean, weights @ means, rtol=0, atol=1e-14)


class TestRemainder:
    @pytest.mark.parametrize(
        ("samples", "size", "values", "sizes"),
        [
            (10, 4, 1, [4, 4, 2]),
            (9, 4, 1, [4, 5]),  # a single value joins
            (9, 4, 2, [4, 4, 1]),  # two positions have a variance
            (3, 4, 1, [3]),
            (4, 4, 1, [4]),
            (5, None, 1, [5]),
        ],
    )
    def test_sizes(self, samples, size, values, sizes):
        assert virtual_batches(samples, size, values) == sizes

    def test_the_last_samples_are_normalised_by_themselves(self):
        layer, x = ghost(4), inputs(10, 4)
        assert torch.equal(layer(x)[8:], plain()(x[8:]))

    def test_a_single_last_sample_joins_the_batch_before(self):
        layer, x = ghost(4), inputs(9, 4)
        assert torch.equal(layer(x)[4:], plain()(x[4:]))

    @pytest.mark.parametrize(("samples", "size"), [(1, 4), (3, 1)])
    def test_no_virtual_batch_may_have_a_single_value(self, samples, size):
        layer = ghost(size)
        with pytest.raises(ValueError, match="a single value has no variance"):
            layer(inputs(samples, 4))
        assert layer.num_batches_tracked == 0

    def test_one_sample_with_positions_is_instance_norm(self):
        x = inputs(5, 4, 3, 3)
        expected = nn.functional.instance_norm(x)
        assert_close(ghost(1, GhostBatchNorm2d)(x), expected, rtol=0, atol=1e-13)


def test_the_size_must_be_positive():
    with pytest.raises(ValueError, match=r"virtual_batch_size must be .* at least 1; got 0"):
        GhostBatchNorm1d(4, virtual_batch_size=0)


def test_swa_refreshes_the_statistics():
    """`update_bn` knows batch norms by their class; ghost batch norm is one in evaluation."""
    layer, x = ghost(4), inputs(8, 4)
    layer(100 + x)
    torch.optim.swa_utils.update_bn([x], layer)
    assert_close(layer.running_mean, x.mean(0), rtol=0, atol=1e-12)
