"""What is measured on tensors: mean squares, and how much the products of positions scatter."""

import numpy as np
import pytest
import torch

from equipoise.theory.propagation import tensors
from equipoise.theory.propagation.layout import Atom, Layout
from equipoise.theory.propagation.tensors import mean_square, scatter_of_products
from equipoise.theory.propagation.values.covariances import measured


class TestMeanSquare:
    @pytest.mark.parametrize("scale", [1e-30, 1e-13, 1.0, 1e11, 1e30])
    @pytest.mark.parametrize("count", [1, 1000, 300_000])
    def test_is_that_of_float64_at_any_scale(self, scale, count):
        """Squares of the outer scales underflow or overflow in float32."""
        x = scale * torch.randn(count, generator=torch.Generator().manual_seed(0))
        assert mean_square(x) == pytest.approx(float(x.double().square().mean()), rel=1e-7)

    def test_a_few_large_values_among_many_small(self):
        x = torch.full((100_000,), 1e-25)
        x[17] = 3.0
        assert mean_square(x) == pytest.approx(9e-5, rel=1e-7)

    def test_order_in_memory_does_not_matter(self):
        x = torch.randn(64, 8, 9, 10, generator=torch.Generator().manual_seed(0))
        for other in (
            x.permute(3, 0, 2, 1),
            x.to(memory_format=torch.channels_last),
            x[:, ::2],
            x[:, :1].expand(64, 8, 9, 10),
        ):
            expected = float(other.double().square().mean())
            assert mean_square(other) == pytest.approx(expected, rel=1e-7)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
    def test_other_types(self, dtype):
        x = torch.randn(5000, generator=torch.Generator().manual_seed(0)).to(dtype)
        assert mean_square(x) == pytest.approx(float(x.double().square().mean()), rel=1e-12)

    def test_infinite_and_missing_values_are_seen(self):
        x = torch.ones(5000)
        x[3] = torch.inf
        assert mean_square(x) == torch.inf
        assert np.isnan(mean_square(torch.full((5000,), torch.nan)))
        assert np.isnan(mean_square(torch.zeros(0)))

    def test_nothing_is_nothing(self):
        assert mean_square(torch.zeros(5000)) == 0.0


@pytest.mark.parametrize("shape", [(4, 7, 3), (4, 3, 7), (1, 5, 2), (6, 40, 2)])
def test_scatter_of_products_is_that_of_its_definition(shape):
    """Whichever side of the products is the smaller."""
    x = np.random.default_rng(0).normal(size=shape)
    centred = x - x.mean(1, keepdims=True)
    G = centred @ centred.swapaxes(1, 2)
    mean = G.mean(0)
    expected = ((G**2).sum((1, 2)).mean() - (mean**2).sum()) / np.trace(mean) ** 2
    assert scatter_of_products(x) == pytest.approx(expected, abs=1e-12)


class TestSamplesApart:
    """What is read of large tensors a few samples at a time is what is read of them at once."""

    @pytest.mark.parametrize("shape", [(6, 5, 8), (6, 9, 4), (2, 40, 3), (5, 1, 7), (4, 6, 1)])
    @pytest.mark.parametrize("part", [1, 80])
    def test_of_a_tensor(self, shape, part, monkeypatch):
        roles = ("sample", "position", "feature")
        layout = Layout(tuple((Atom.new(r, n),) for r, n in zip(roles, shape, strict=True)))
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) + 0.3
        at_once = measured(x, layout)
        monkeypatch.setattr(tensors, "_LARGEST_PART", part)
        apart = measured(x, layout)
        assert apart.scatter == pytest.approx(at_once.scatter, rel=1e-10, abs=1e-13)
        np.testing.assert_allclose(apart.mean, at_once.mean, rtol=1e-12)
        pairs = zip(apart.covariance.blocks, at_once.covariance.blocks, strict=True)
        for one, other in pairs:
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)

    def test_the_scatter_is_that_of_its_formula(self):
        x = np.random.default_rng(0).standard_normal((6, 9, 4))
        centred = x - x.mean(1, keepdims=True)
        products = np.einsum("npf,nqf->npq", centred, centred)
        squares = (products**2).sum((1, 2)).mean() - (products.mean(0) ** 2).sum()
        expected = squares / np.einsum("npp->n", products).mean() ** 2
        assert scatter_of_products(x) == pytest.approx(expected, rel=1e-12)
