"""Explicit matrices against autograd: ĤᵀSĤ is the Hessian, PPᵀg the gradient that is used."""

import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian
from torch.nn import functional as F
from torch.testing import assert_close

from equipoise.preconditioners.hessian_blocks import (
    HessianBlock,
    Preconditioner,
    column_statistics,
    extended,
    hessian_block,
    im2col,
    preconditioner,
    tap_statistics,
)

EXACT = {"rtol": 1e-12, "atol": 1e-13}
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


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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


def autograd_hessian(model, layer, loss, unit):
    """Second derivatives of the loss by the (bias, weights) of one unit, bias first."""
    weight, bias = layer.weight.detach(), layer.bias
    shape = weight[unit].shape
    names = {id(p): n for n, p in model.named_parameters()}
    row = F.one_hot(torch.tensor(unit), len(weight)).double()

    def of_unit(parameters):
        used = parameters if bias is not None else torch.cat([parameters.new_zeros(1), parameters])
        change = row.view(-1, *[1] * len(shape)) * used[1:].reshape(1, *shape)
        replaced = {names[id(layer.weight)]: weight + change}
        if bias is not None:
            replaced[names[id(layer.bias)]] = bias.detach() + row * used[0]
        return loss(lambda x: torch.func.functional_call(model, replaced, (x,)))

    return hessian(of_unit, torch.zeros(weight[unit].numel() + (bias is not None)).double())


class TestHessianBlock:
    """ĤᵀSĤ equals the Hessian by autograd, for every unit of every kind of layer."""

    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("index", [0, 2, 4])
    def test_dense(self, index, bias):
        sizes = zip((5, 7, 6), (7, 6, 3), strict=True)
        layers = [m for i, o in sizes for m in (nn.Linear(i, o, bias=bias), nn.Tanh())]
        model, x, y = seeded(nn.Sequential(*layers[:-1])), random(9, 5), torch.arange(9) % 3

        def loss(run):
            return F.cross_entropy(run(x), y)

        block = hessian_block(model[index], lambda: loss(model), unit=1)
        assert block.curvature.shape == (9, 1, 1)
        assert_close(block.matrix(), autograd_hessian(model, model[index], loss, 1), **EXACT)

    @pytest.mark.parametrize("unit", [0, 5])
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("name", GEOMETRIES)
    def test_convolution(self, name, bias, unit):
        conv, x = convolution(name, bias)
        shape = conv(x).shape[1:]
        head = seeded(nn.Linear(shape.numel(), 3), seed=3)
        model = nn.Sequential(conv, nn.Softplus(), nn.Flatten(), head)
        y = torch.arange(len(x)) % 3

        def loss(run):
            return F.cross_entropy(run(x), y)

        block = hessian_block(conv, lambda: loss(model), unit=unit)
        assert block.curvature.shape == (len(x), shape[1:].numel(), shape[1:].numel())
        assert_close(block.matrix(), autograd_hessian(model, conv, loss, unit), **EXACT)

    def test_tokens_that_attend_to_each_other_share_a_block(self):
        class Mixer(nn.Module):
            def __init__(self):
                super().__init__()
                self.into, self.out = nn.Linear(3, 2), nn.Linear(2, 2)

            def forward(self, x):
                h = self.into(x)
                return self.out((h @ h.mT).softmax(-1) @ h)

        model, x = seeded(Mixer()), random(4, 5, 3)

        def loss(run):
            return run(x).square().mean()

        block = hessian_block(model.into, lambda: loss(model))
        assert block.curvature.shape == (4, 5, 5)
        assert_close(block.matrix(), autograd_hessian(model, model.into, loss, 0), **EXACT)

    def test_preconditioning_is_the_hessian_in_other_coordinates(self):
        """PᵀĤᵀSĤP = ĜᵀSĜ (Theorem 3)."""
        model, x = seeded(nn.Sequential(nn.Linear(4, 3), nn.Tanh())), random(8, 4) + 2
        block = hessian_block(model[0], lambda: model(x).square().mean())
        P = preconditioner(block.statistics(), eps=(1e-2, 1e-4))
        congruent = P.matrix().T @ block.matrix() @ P.matrix()
        assert_close(block.preconditioned(P), congruent, **EXACT)

    def test_a_linear_loss_has_no_curvature(self):
        layer = seeded(nn.Linear(2, 1))
        assert not hessian_block(layer, lambda: layer(random(3, 2)).mean()).matrix().any()

    def test_the_model_is_left_alone(self):
        model, x = seeded(nn.Sequential(nn.Linear(2, 2), nn.Tanh())), random(3, 2)
        model(x).sum().backward()
        before = [p.grad.clone() for p in model.parameters()]
        with torch.no_grad():
            hessian_block(model[0], lambda: model(x).square().mean())
        assert all(torch.equal(p.grad, b) for p, b in zip(model.parameters(), before, strict=True))
        assert not model[0]._forward_hooks

    def test_a_hook_does_not_survive_an_exception(self):
        layer = nn.Linear(2, 2)
        with pytest.raises(RuntimeError):
            hessian_block(layer, lambda: layer(random(3, 7)))
        assert not layer._forward_hooks


class TestRefusals:
    """What has no Hessian of this form is refused with a remedy."""

    def test_samples_coupled_by_batch_norm(self):
        norm = nn.BatchNorm1d(3, track_running_stats=True)
        model, x = seeded(nn.Sequential(nn.Linear(4, 3), norm, nn.Tanh())), random(8, 4)
        with pytest.raises(ValueError, match="evaluation mode"):
            hessian_block(model[0], lambda: model(x).square().mean())
        model.eval()
        hessian_block(model[0], lambda: model(x).square().mean())

    def test_a_weight_used_twice(self):
        layer = seeded(nn.Linear(2, 2))
        with pytest.raises(ValueError, match="2 times"):
            hessian_block(layer, lambda: layer(layer(random(3, 2))).square().mean())

    def test_a_loss_without_the_layer(self):
        layer, other = seeded(nn.Linear(2, 2)), seeded(nn.Linear(2, 2))
        x = random(3, 2)
        with pytest.raises(ValueError, match="does not depend"):
            hessian_block(layer, lambda: (layer(x) * 0).detach().sum() + other(x).square().sum())

    def test_a_loss_per_sample(self):
        layer = seeded(nn.Linear(2, 2))
        with pytest.raises(ValueError, match="single number"):
            hessian_block(layer, lambda: layer(random(3, 2)))

    @pytest.mark.parametrize(
        ("layer", "shape"), [(nn.Linear(2, 2), (2,)), (nn.Conv1d(2, 2, 1), (2, 3))]
    )
    def test_inputs_without_a_batch(self, layer, shape):
        with pytest.raises(ValueError, match="batch dimension"):
            hessian_block(seeded(layer), lambda: layer(random(*shape)).square().mean())

    @pytest.mark.parametrize("layer", [nn.Tanh(), nn.ConvTranspose1d(1, 1, 1)])
    def test_other_layers(self, layer):
        with pytest.raises(TypeError, match=type(layer).__name__):
            hessian_block(layer, lambda: torch.zeros(()))

    def test_units_that_do_not_exist(self):
        with pytest.raises(ValueError, match=r"\[0, 2\)"):
            hessian_block(nn.Linear(2, 2), lambda: torch.zeros(()), unit=2)

    def test_negative_eps(self):
        with pytest.raises(ValueError, match="eps"):
            preconditioner(column_statistics(random(3, 2)), eps=(-1.0, 0.0))


@pytest.mark.parametrize("bias", [True, False])
class TestPreconditioner:
    """The operator against the product of the paper's matrices."""

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

    @pytest.mark.parametrize("name", GEOMETRIES)
    def test_matrix_times_weights_is_the_convolution(self, name):
        conv, x = convolution(name)
        per_group = conv.out_channels // conv.groups
        expected = conv(x).movedim(1, -1).flatten(0, -2)
        for group in range(conv.groups):
            units = slice(group * per_group, (group + 1) * per_group)
            product = im2col(conv, x, group=group) @ conv.weight[units].flatten(1).T
            assert_close(product + conv.bias[units], expected[:, units], **EXACT)

    @pytest.mark.parametrize("name", GEOMETRIES)
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


def test_statistics_of_a_record_are_those_of_its_features():
    H = random(6, 2)
    for bias in (True, False):
        block = HessianBlock(extended(H, bias=bias), torch.ones(6, 1, 1), bias, 1e-16)
        assert_close(block.statistics().mean, H.mean(0))
        assert_close(block.statistics().second_moment, H.square().mean(0))


def test_a_preconditioner_without_centring_leaves_the_bias_alone():
    P = Preconditioner(torch.zeros(2).double(), torch.tensor([2.0, 4.0]).double())
    g = torch.ones(3, 1).double()
    assert_close(P.precondition(g), torch.tensor([[1.0], [0.25], [0.0625]]).double())
