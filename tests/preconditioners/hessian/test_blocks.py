"""ĤᵀSĤ is the Hessian by autograd, for every unit of every kind of layer."""

import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian
from torch.nn import functional as F
from torch.testing import assert_close

from equipoise.preconditioners.hessian.blocks import HessianBlock, hessian_block
from equipoise.preconditioners.hessian.preconditioner import extended, preconditioner
from support.convolutions import GEOMETRIES, convolution, random, seeded

EXACT = {"rtol": 1e-12, "atol": 1e-13}


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
    """For dense layers, convolutions and tokens."""

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
        with torch.device("meta"):  # the default device does not matter
            again = hessian_block(model[0], lambda: model(x).square().mean())
            assert_close(again.preconditioned(P), congruent, **EXACT)

    def test_a_linear_loss_has_no_curvature(self):
        layer = seeded(nn.Linear(2, 1))
        assert not hessian_block(layer, lambda: layer(random(3, 2)).mean()).matrix().any()

    def test_gradients_and_hooks_of_the_model_are_untouched(self):
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


def test_statistics_of_a_block_are_those_of_its_features():
    H = random(6, 2)
    for bias in (True, False):
        block = HessianBlock(extended(H, bias=bias), torch.ones(6, 1, 1), bias, 1e-16)
        assert_close(block.statistics().mean, H.mean(0))
        assert_close(block.statistics().second_moment, H.square().mean(0))
