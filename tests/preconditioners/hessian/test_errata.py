"""Where the paper is wrong: errata as counterexamples, by the specification's numbers.

Numbers that can be computed exactly are. Every claim that needs a hypothesis is also shown with
it, so that each test has a half that fails for the other. Errata 2, 5 and 12 are about
statements that the library does not use; their tests are those of the paper's reproduction.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from equipoise.preconditioners.hessian.blocks import HessianBlock, hessian_block, weighted_gram
from equipoise.preconditioners.hessian.conditions import block_conditions
from equipoise.preconditioners.hessian.preconditioner import (
    column_statistics,
    extended,
    im2col,
    preconditioner,
    tap_statistics,
)
from support.convolutions import random

EXACT = {"rtol": 1e-12, "atol": 1e-13}


class TestErratum1:
    """Step 5 uses the updated gradient of the weights."""

    def bias_and_weight_steps(self, updated):
        """Algorithm 2, steps 4 and 5, for q = 1."""
        H, g = random(7, 5) * 0.2 + 3, random(6, 2, seed=5)
        P = preconditioner(column_statistics(H))
        new = (g[1:] - P.mean[:, None] * g[0]) / P.scale.square()[:, None]
        bias = g[:1] - P.mean @ (new if updated else g[1:])
        return torch.cat([bias, new]), P.precondition(g)

    def test_with_it_the_step_is_the_preconditioned_gradient(self):
        assert_close(*self.bias_and_weight_steps(updated=True), **EXACT)

    def test_with_the_old_one_it_is_not(self):
        step, right = self.bias_and_weight_steps(updated=False)
        assert (step - right).norm() > 10


class TestErratum3:
    """Proposition 11 needs a nonsingular S."""

    def conditions(self, last):
        H = torch.tensor([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0]], dtype=torch.float64)
        curvature = torch.tensor([1.0, 1.0, last]).double().view(3, 1, 1)
        return block_conditions(HessianBlock(H, curvature, bias=False, rounding=2.3e-16))

    def test_singular_curvature_breaks_the_bound(self):
        """HᵀSH = [[2, 0.01], [0.01, 1e-4]], whose eigenvalues have ratio 40002."""
        found = self.conditions(0.0)
        trace, determinant = 2.0001, 1e-4
        root = math.sqrt(trace**2 - 4 * determinant)
        assert abs(found.raw.value - (trace + root) ** 2 / (4 * determinant)) <= found.raw.error
        assert round(found.raw.value) == 40002
        assert round(found.product_bound, 1) == 2.0
        assert not found.positive

    @pytest.mark.parametrize("last", [1e-6, 1e-3, 1.0])
    def test_definite_curvature_does_not(self, last):
        found = self.conditions(last)
        assert found.positive
        assert found.raw.value - found.raw.error <= found.product_bound

    def test_relu_makes_it_singular(self):
        """Samples that switch the unit off have no curvature."""
        layer, head = nn.Linear(3, 4).double(), nn.Linear(4, 1).double()
        x = random(30, 3)
        block = hessian_block(layer, lambda: head(layer(x).relu()).square().mean())
        found = block_conditions(block)
        assert 0 < found.curvature.rank < 30


class TestErratum4:
    """With σ̃ the scales differ by at most √(1 + 1/ε₁), so κ(D)² of features is at most 101."""

    def test_the_cap(self):
        H = random(50, 6) * 10.0 ** torch.arange(6)
        raw, used = (preconditioner(column_statistics(H), eps=e) for e in ((0, 0), (1e-2, 0)))
        spreads = [float((p.scale.max() / p.scale.min()).square()) for p in (raw, used)]
        assert spreads[0] > 1e9
        assert 100 < spreads[1] <= 101


class StackedBatchNorm:
    """Three layers g(W BN(h) + b), γ = 1, β = 0, and the plain network they are equal to."""

    def __init__(self, eps=0.0):
        sizes = [(5, 7), (7, 6), (6, 3)]
        self.x, self.y, self.eps = random(12, 5) * 2 + 3, torch.arange(12) % 3, eps
        self.parameters = [random(i + 1, o, seed=i) / 2 for i, o in sizes]

    def normalised(self, h, through):
        variance, mean = torch.var_mean(h, 0, correction=0)
        if not through:
            variance, mean = variance.detach(), mean.detach()
        return (h - mean) / (variance + self.eps).sqrt()

    def gradients(self, through=False):
        """Of (b, W) of every layer, the bias in the first row."""
        leaves = [p.clone().requires_grad_() for p in self.parameters]
        h = self.x
        for p in leaves:
            h = torch.tanh(p[0] + self.normalised(h, through) @ p[1:])
        return torch.autograd.grad(F.cross_entropy(h, self.y), leaves)

    def plain(self):
        """Parameters (b̂, Ŵ), their gradients and P of every layer of the plain network."""
        transforms, leaves, h = [], [], self.x
        for p in self.parameters:
            statistics = column_statistics(h)
            transforms.append(preconditioner(statistics, eps=(0.0, self.eps)))
            weight = p[1:] / transforms[-1].scale[:, None]
            bias = p[:1] - (statistics.mean / transforms[-1].scale) @ p[1:]
            leaves.append(torch.cat([bias, weight]).requires_grad_())
            h = torch.tanh(leaves[-1][0] + h @ leaves[-1][1:])
        return leaves, torch.autograd.grad(F.cross_entropy(h, self.y), leaves), transforms


class TestErratum6:
    """One step of BatchNorm is one preconditioned step (Proposition 7 as corrected)."""

    @pytest.mark.parametrize("eps", [0.0, 1e-3])
    def test_three_stacked_layers(self, eps):
        network, rate = StackedBatchNorm(eps), 0.5
        steps = zip(network.parameters, network.gradients(), *network.plain(), strict=True)
        for normalised, gradient, plain, plain_gradient, P in steps:
            after_step = P.apply(normalised - rate * gradient)
            assert_close(after_step, plain - rate * P.precondition(plain_gradient), **EXACT)

    def test_not_without_the_preconditioner(self):
        network = StackedBatchNorm()
        steps = zip(network.gradients(), *network.plain(), strict=True)
        for gradient, _, plain_gradient, P in steps:
            ours, theirs = P.apply(gradient), plain_gradient
            assert (ours - theirs).norm() > 0.1 * ours.norm()

    def test_not_with_the_gradient_through_the_statistics(self):
        network = StackedBatchNorm()
        steps = list(zip(network.gradients(through=True), *network.plain(), strict=True))
        for gradient, _, plain_gradient, P in steps[:-1]:
            ours, theirs = P.apply(gradient), P.precondition(plain_gradient)
            assert (ours - theirs).norm() > 0.2 * theirs.norm()


class TestErratum7:
    """S is block diagonal for convolutions, not diagonal."""

    def test_dropping_entries_off_the_diagonal(self):
        conv = nn.Conv2d(2, 3, 3, padding=1).double()
        head = nn.Linear(3 * 16, 3).double()
        with torch.no_grad():
            for i, p in enumerate([*conv.parameters(), *head.parameters()]):
                p.copy_(random(*p.shape, seed=i) / 3)
        x, y = random(6, 2, 4, 4), torch.arange(6) % 3
        block = hessian_block(conv, lambda: F.cross_entropy(head(conv(x).tanh().flatten(1)), y))
        diagonal = torch.diag_embed(block.curvature.diagonal(dim1=1, dim2=2))
        exact, dropped = block.matrix(), weighted_gram(block.features, diagonal)
        assert (exact - dropped).norm() > 0.1 * exact.norm()


def border_factor(kernel, height, width):
    """f = (k-1)(1/2r + 1/2s - (k-1)/4rs) of Proposition 10."""
    k, r, s = kernel, height, width
    return (k - 1) * (1 / (2 * r) + 1 / (2 * s) - (k - 1) / (4 * r * s))


class TestErratum9:
    """Channel for exact tap statistics: |Δμ| ≤ fM, attained; |Δσ²| ≤ 3fM²."""

    def differences(self, kernel, x):
        conv = nn.Conv2d(1, 1, kernel, padding=kernel // 2)
        exact, channel = (tap_statistics(conv, x, exact=e) for e in (True, False))
        mean = (exact.mean - channel.mean).abs().max()
        return float(mean), float((exact.variance - channel.variance).abs().max())

    @pytest.mark.parametrize(("kernel", "shape"), [(3, (3, 3)), (3, (7, 5)), (5, (8, 14))])
    def test_the_bounds_hold(self, kernel, shape):
        f = border_factor(kernel, *shape)
        for seed in range(40):
            size, shift = torch.rand(
                2, generator=torch.Generator().manual_seed(seed)
            ) * torch.tensor([1.0, 2.0])
            x = random(4, 1, *shape, seed=seed).sign() * size - shift
            largest = float(x.abs().max())
            mean, variance = self.differences(kernel, x)
            assert mean <= f * largest * (1 + 1e-12)
            assert variance <= 3 * f * largest**2 * (1 + 1e-12)

    @pytest.mark.parametrize(("kernel", "shape"), [(3, (3, 3)), (3, (7, 5)), (5, (8, 14))])
    def test_the_bound_for_means_is_attained(self, kernel, shape):
        """By a constant map: a corner tap misses f of it."""
        mean, _ = self.differences(kernel, torch.full((2, 1, *shape), 0.7, dtype=torch.float64))
        assert_close(mean, 0.7 * border_factor(kernel, *shape), rtol=1e-12, atol=0)

    @pytest.mark.parametrize(("size", "ratio"), [(8, 2.29), (11, 2.47), (101, 2.94)])
    def test_the_bound_for_variances_is_approached(self, size, ratio):
        """By a map that is 1 in its first row and column and -1 elsewhere, in units of fM²."""
        x = torch.full((1, 1, size, size), -1.0)
        x[..., 0, :] = x[..., :, 0] = 1
        _, variance = self.differences(3, x)
        assert ratio < variance / border_factor(3, size, size) < 3

    def test_channel_statistics_leave_small_maps_worse_conditioned(self):
        conv, x = nn.Conv2d(4, 1, 3, padding=1), random(64, 4, 3, 3) * 0.1 + 1
        block = HessianBlock(
            extended(im2col(conv, x)), torch.eye(9).expand(64, 9, 9).double(), True, 2.3e-16
        )
        channel, exact = (
            block_conditions(block, preconditioner(tap_statistics(conv, x, exact=e)))
            for e in (False, True)
        )
        assert exact.normalised.value < channel.normalised.value < exact.features.value


class TestErratum14:
    """Proposition 2 is false with batch-coupled layers downstream."""

    def model(self, training):
        norm = nn.BatchNorm1d(3).double().train(training)
        layer, w = nn.Linear(3, 3).double(), random(3, seed=1)
        with torch.no_grad():
            layer.weight.copy_(torch.eye(3))
            layer.bias.zero_()
        x = random(8, 3)
        return layer, x, lambda a: (norm(a).tanh() @ w).square().mean()

    def second_derivatives(self, layer, x, loss):
        """S of the first unit, for all pairs of samples."""
        unit = torch.tensor([1.0, 0.0, 0.0])
        return torch.autograd.functional.hessian(
            lambda shift: loss(layer(x) + shift[:, None] * unit), torch.zeros(8).double()
        )

    def test_batch_norm_fills_s_off_its_diagonal(self):
        layer, x, loss = self.model(training=True)
        S = self.second_derivatives(layer, x, loss)
        assert float((S - torch.diag(S.diag())).norm() / S.norm()) > 0.3
        with pytest.raises(ValueError, match="samples influence each other"):
            hessian_block(layer, lambda: loss(layer(x)))

    def test_in_evaluation_mode_s_is_the_blocks(self):
        layer, x, loss = self.model(training=False)
        S = self.second_derivatives(layer, x, loss)
        block = hessian_block(layer, lambda: loss(layer(x)))
        assert_close(torch.diag(block.curvature.flatten()), S, **EXACT)
