"""P against the product of the paper's matrices, and the statistics that it is made of."""

import pytest
import torch
from torch.testing import assert_close

from equipoise.preconditioners.hessian.preconditioner import (
    Preconditioner,
    column_statistics,
    extended,
    im2col,
    preconditioner,
    tap_statistics,
)
from support.cases import each
from support.convolutions import GEOMETRIES, convolution, random

EXACT = {"rtol": 1e-12, "atol": 1e-13}


@pytest.mark.parametrize("bias", [True, False])
class TestPreconditioner:
    def transform(self, bias, eps=(1e-2, 1e-4)):
        H = random(9, 4) * torch.tensor([0.1, 1.0, 5.0, 30.0]) + 3
        return H, preconditioner(column_statistics(H), eps=eps, bias=bias)

    def test_matrix_is_the_product_of_centring_and_scaling(self, bias):
        H, P = self.transform(bias)
        variance = H.var(0, correction=0) if bias else H.square().mean(0)
        scale = (variance + 1e-2 * variance.max() + 1e-4).sqrt()
        D = torch.diag(torch.cat([torch.ones(int(bias)).double(), 1 / scale]))
        U = torch.eye(4 + bias).double()
        if bias:
            U[0, 1:] = -H.mean(0)
        assert_close(P.matrix(), U @ D)
        assert_close(P.scaling(), D.diag())

    def test_operators_are_the_matrix(self, bias):
        H, P = self.transform(bias)
        g, matrix = random(4 + bias, 3, seed=4), P.matrix()
        assert_close(P.apply(g), matrix @ g, **EXACT)
        assert_close(P.apply_transpose(g), matrix.T @ g, **EXACT)
        assert_close(P.precondition(g), matrix @ matrix.T @ g, **EXACT)
        features = extended(H, bias=bias)
        assert_close(P.normalise(features), features @ matrix, **EXACT)

    def test_without_eps_columns_have_unit_size(self, bias):
        H, P = self.transform(bias, eps=(0.0, 0.0))
        G = P.normalise(extended(H, bias=bias))
        assert_close(G.square().mean(0), torch.ones(4 + bias).double())

    def test_eps_bounds_the_spread_of_scales(self, bias):
        """Largest over smallest σ̃ is at most √(1 + 1/ε₁)."""
        H = random(9, 4) * torch.tensor([1e-9, 1.0, 1e3, 1e6])
        P = preconditioner(column_statistics(H), eps=(1e-2, 0.0), bias=bias)
        spread = P.scale.max() / P.scale.min()
        assert_close(spread, torch.tensor(101.0).double().sqrt(), rtol=1e-6, atol=0)

    def test_constant_columns_stay_finite(self, bias):
        H = torch.tensor([[0.1, 0.0, 1.0]] * 3).double()
        P = preconditioner(column_statistics(H), bias=bias)
        assert torch.isfinite(P.matrix()).all()
        if bias:
            assert_close(P.normalise(extended(H))[:, 1:], torch.zeros(3, 3).double())


class TestConvolutionMatrix:
    """H of a convolution, and its column statistics without building it."""

    @each("name", GEOMETRIES)
    def test_matrix_times_weights_is_the_convolution(self, name):
        conv, x = convolution(name)
        per_group = conv.out_channels // conv.groups
        expected = conv(x).movedim(1, -1).flatten(0, -2)
        for group in range(conv.groups):
            units = slice(group * per_group, (group + 1) * per_group)
            product = im2col(conv, x, group=group) @ conv.weight[units].flatten(1).T
            assert_close(product + conv.bias[units], expected[:, units], **EXACT)

    @each("name", GEOMETRIES)
    def test_exact_tap_statistics_are_those_of_its_columns(self, name):
        conv, x = convolution(name)
        for group in range(conv.groups):
            reduced = tap_statistics(conv, 1e3 + x, group=group)
            full = column_statistics(im2col(conv, 1e3 + x, group=group))
            assert_close(reduced.mean, full.mean, rtol=1e-13, atol=0)
            # (mean/deviation)² roundings is what centring costs either way.
            assert_close(reduced.variance, full.variance, rtol=1e-9, atol=0)

    def test_channel_statistics_are_those_of_the_unpadded_map(self):
        conv, x = convolution("grouped")
        found = tap_statistics(conv, x, exact=False, group=1)
        variance, mean = torch.var_mean(x[:, 2:], (0, 2, 3), correction=0)
        assert_close(found.mean.view(2, 9), mean[:, None].expand(2, 9))
        assert_close(found.variance.view(2, 9), variance[:, None].expand(2, 9))

    def test_channel_is_exact_for_a_pointwise_kernel_and_only_there(self):
        for name, equal in (("pointwise", True), ("padded", False)):
            conv, x = convolution(name)
            channel, exact = (tap_statistics(conv, x + 1, exact=e) for e in (False, True))
            assert torch.allclose(channel.variance, exact.variance, rtol=1e-12) is equal


def test_a_preconditioner_without_centring_leaves_the_bias_alone():
    P = Preconditioner(torch.zeros(2).double(), torch.tensor([2.0, 4.0]).double())
    g = torch.ones(3, 1).double()
    assert_close(P.precondition(g), torch.tensor([[1.0], [0.25], [0.0625]]).double())


def test_a_negative_eps_is_refused():
    with pytest.raises(ValueError, match="eps"):
        preconditioner(column_statistics(random(3, 2)), eps=(-1.0, 0.0))
