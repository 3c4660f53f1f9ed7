"""Rescaling and shifting features changes nothing, for any optimizer attached to."""

import copy

import pytest
import torch
from torch import nn

from equipoise.preconditioners import BNP
from support.bnp_problems import OPTIMIZERS, attached, batches, generator, mlp, stepped, train

EXACT = {"eps": (0.0, 0.0)}


class Affine(nn.Module):
    """a ⊙ h + c between two layers."""

    def __init__(self, a, c):
        super().__init__()
        self.a, self.c = a, c

    def forward(self, h):
        return self.a * h + self.c


def rescaled(model, seed=3):
    """The same function, with every layer's features replaced by a ⊙ h + c."""
    g = generator(seed)
    parts = []
    for part in copy.deepcopy(model):
        if isinstance(part, nn.Linear):
            n = part.in_features
            a = 10 ** (4 * torch.rand(n, generator=g, dtype=torch.float64) - 2)
            c = 3 * torch.randn(n, generator=g, dtype=torch.float64)
            with torch.no_grad():
                part.weight.div_(a)
                part.bias.sub_(part.weight @ c)
            parts.append(Affine(a, c))
        parts.append(part)
    return nn.Sequential(*parts)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
class TestAffineInvariance:
    def test_losses_are_those_of_the_original_features(self, optimizer):
        _, before, _ = attached(mlp(), optimizer, **EXACT)
        _, after, _ = attached(rescaled(mlp()), optimizer, **EXACT)
        assert before[-1] < before[0]
        torch.testing.assert_close(after, before, rtol=0, atol=1e-12)

    def test_a_plain_optimizer_depends_on_the_features(self, optimizer):
        losses = [
            train(model, OPTIMIZERS[optimizer](model.parameters()), batches())
            for model in (mlp(), rescaled(mlp()))
        ]
        assert not torch.allclose(*losses, rtol=0, atol=1e-3)

    def test_clipping_the_transformed_gradient_keeps_invariance(self, optimizer):
        options = EXACT | {"max_norm": 0.1}
        _, before, _ = attached(mlp(), optimizer, **options)
        _, after, _ = attached(rescaled(mlp()), optimizer, **options)
        torch.testing.assert_close(after, before, rtol=0, atol=1e-12)


def test_the_explicit_form_is_invariant_for_sgd():
    before, after = (stepped(m, **EXACT)[1] for m in (mlp(), rescaled(mlp())))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-12)


def test_the_papers_start_breaks_invariance():
    options = EXACT | {"bias_correction": False}
    before, after = (stepped(m, **options)[1] for m in (mlp(), rescaled(mlp())))
    assert not torch.allclose(after, before, rtol=0, atol=1e-3)


def test_the_absolute_eps_alone_breaks_a_global_scale():
    for eps, equal in (((1e-2, 0.0), True), ((1e-2, 1e-1), False)):
        losses = []
        for scale in (1.0, 100.0):
            model = mlp()
            with torch.no_grad():
                model[0].weight.div_(scale)
            data = [(scale * x, y) for x, y in batches()]
            losses.append(attached(model, "adam", data, eps=eps)[1])
        assert torch.allclose(*losses, rtol=0, atol=1e-12) == equal


def test_preconditioned_gradients_fed_to_adam_depend_on_the_features():
    """What attach() avoids: Adam cancels the scaling by which step() makes steps invariant."""
    losses = []
    for model in (mlp(), rescaled(mlp())):
        pre = BNP(model, **EXACT)
        losses.append(train(model, OPTIMIZERS["adam"](model.parameters()), batches(), pre))
    assert not torch.allclose(*losses, rtol=0, atol=1e-3)
