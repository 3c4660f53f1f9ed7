from typing import get_args

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from equipoise.layers import LpNorm
from equipoise.models import Norm
from equipoise_papers.santurkar2018.deep_linear import deep_linear

# Norm is a kind by name, or a function.
KINDS = [kind for kind in get_args(get_args(Norm)[0]) if kind != "instance"]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def build(**options):
    return deep_linear(generator=seeded(), **options).double()


def batch(samples=50, width=10):
    return torch.randn(samples, width, dtype=torch.float64, generator=seeded(1))


class TestLinear:
    def test_one_matrix_in_the_order_of_application(self):
        model, x = build(), batch()
        product = torch.eye(10, dtype=torch.float64)
        for layer in model:
            product = layer.weight @ product
        assert_close(model(x), x @ product.T, rtol=0, atol=1e-12)

    def test_twin_normalised_it_is_not_linear(self):
        model, x = build(norm="batch"), batch()
        assert not torch.allclose(model(2 * x), 2 * model(x))

    def test_the_papers_size_by_default(self):
        model = deep_linear()
        assert [type(layer) for layer in model] == 25 * [nn.Linear]
        assert all(p.shape == (10, 10) for p in model.parameters())
        assert len(list(model.parameters())) == 25  # no biases


class TestNormalisers:
    def test_one_follows_every_layer_including_the_last(self):
        model = deep_linear(4, depth=3, norm="l1")
        names = ["linear1", "norm1", "linear2", "norm2", "linear3", "norm3"]
        assert [name for name, _ in model.named_children()] == names
        assert type(model.norm3) is LpNorm
        assert model.norm3.p == 1

    def test_outputs_start_standardised(self):
        """So the scale of the targets has to be learned by the last γ."""
        y = build(norm="batch")(batch(1000))
        assert_close(y.mean(0), torch.zeros(10).double(), rtol=0, atol=1e-12)
        assert (y.var(0, correction=0) - 1).abs().max() < 1e-3

    def test_weights_do_not_depend_on_the_normaliser(self):
        plain, normalised = build(), build(norm="batch")
        for number in range(1, 26):
            name = f"linear{number}"
            assert torch.equal(getattr(plain, name).weight, getattr(normalised, name).weight)

    @pytest.mark.parametrize("norm", KINDS)
    def test_every_kind_gives_gradients_to_every_layer(self, norm):
        model = build(depth=4, norm=norm)
        (model(batch()) - 1).square().sum().backward()
        assert all(p.grad.any() and p.grad.isfinite().all() for p in model.parameters())

    def test_a_function_of_the_width(self):
        model = deep_linear(6, 2, norm=nn.LayerNorm)
        assert type(model.norm2) is nn.LayerNorm


class TestGlorot:
    def test_variance_is_one_over_the_width(self):
        """Uniform within √(3 / width): E[w²] = 1 / width, of deviation (2 / √5) / width."""
        weights = torch.cat([p.detach().flatten() for p in build(width=20).parameters()])
        assert weights.abs().max() <= (3 / 20) ** 0.5
        squares = weights.square()
        assert abs(squares.mean() - 1 / 20) < 3 * squares.std() / len(squares) ** 0.5

    def test_seeds(self):
        one, two, other = (deep_linear(generator=seeded(s))[0].weight for s in (0, 0, 1))
        assert torch.equal(one, two)
        assert not torch.equal(one, other)


def test_batch_norm_trains_faster_at_the_papers_rate():
    """[santurkar2018], Figure 12: summed squares, 10⁻⁶, a target of one Gaussian matrix."""
    x = torch.randn(1000, 10, dtype=torch.float64, generator=seeded(2))
    y = x @ torch.randn(10, 10, dtype=torch.float64, generator=seeded(3))
    losses = {}
    for norm in ("none", "batch"):
        model = build(norm=norm)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for _ in range(50):
            optimizer.zero_grad()
            loss = (model(x) - y).square().sum()
            loss.backward()
            optimizer.step()
        losses[norm] = loss.item()
    assert losses["batch"] < losses["none"] < y.square().sum()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 0}, "must be at least 1; got width=0"),
        ({"depth": 0}, "must be at least 1; got .*depth=0"),
        ({"norm": "instance"}, "instance norm needs positions"),
        ({"norm": "bn"}, "norm must be one of none, batch"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        deep_linear(**arguments)
