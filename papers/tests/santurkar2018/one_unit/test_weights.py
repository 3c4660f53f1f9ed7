"""Scale invariance of the weights before batch normalisation of one unit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.functional import jacobian
from torch.nn import functional as F
from torch.testing import assert_close

from equipoise_papers.santurkar2018.one_unit import (
    matching_scale_and_shift,
    nearest_multiple,
    radial_derivative,
    standardise,
)
from papers_reference.one_unit import bn
from papers_support.one_unit_problems import EXACT, SETTINGS, Unit, random


@pytest.mark.parametrize(("gamma", "eps"), SETTINGS)
def test_radial_derivative(gamma, eps):
    unit = Unit(gamma=gamma, eps=eps)
    X, w = random(12, 4, seed=9), random(4, seed=10)
    y = X @ w
    exact = w @ jacobian(lambda w: unit.loss(bn(X @ w, gamma, 0.3, eps)), w)
    g = jacobian(unit.loss, bn(y, gamma, 0.3, eps))
    found = radial_derivative(y, g, **unit.options)
    assert_close(found, exact, rtol=1e-9, atol=1e-12)
    assert (found == 0) == (eps == 0)


@pytest.mark.parametrize(("eps", "cosine"), [(0.0, 1e-14), (1e-5, 1e-1)])
def test_gradients_are_orthogonal_to_weights_row_by_row(eps, cosine):
    """To rounding at ε = 0; with PyTorch's ε and small inputs visibly not."""
    X, W = random(16, 5) * 1e-2, random(3, 5, seed=1)
    signs = random(3, 16, seed=2)
    leaf = W.clone().requires_grad_()
    y = (X @ leaf.T).T
    torch.stack([bn(unit, eps=eps) for unit in y]).tanh().mul(signs).sum().backward()
    radial = (W * leaf.grad).sum(1)
    cosines = radial.abs() / (W.norm(dim=1) * leaf.grad.norm(dim=1))
    assert (cosines < cosine).all()
    assert bool((cosines > 1e-4).any()) == (eps > 0)
    g = signs * (1 - standardise(y.detach(), eps=eps).values.tanh().square())
    assert_close(radial_derivative(y.detach(), g, eps=eps), radial, rtol=1e-9, atol=1e-12)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 10**6))
def test_nearest_multiple(units, inputs, seed):
    """k minimises the distance, the lemma's identity holds, single rows come closer."""
    optimum, start = random(units, inputs, seed=seed), random(units, inputs, seed=seed + 1)
    start = start * (start * optimum).sum(1, keepdim=True).sign()
    whole, single = (nearest_multiple(optimum, start, per_unit=p) for p in (False, True))
    far = (start - optimum).square().sum()
    k = whole.factor
    for found in (whole, single):
        assert_close(found.squared_distance, far - found.gain, rtol=1e-9, atol=1e-9 * far)
    assert_close(whole.gain, optimum.square().sum() * (1 - k) ** 2, **EXACT)
    for other in (0.9 * k, 1.1 * k):
        assert (start - other * optimum).square().sum() > whole.squared_distance
    assert single.squared_distance <= whole.squared_distance * (1 + 1e-12)
    assert single.factor.shape == (units,)


def test_matching_scale_and_shift_reproduce_the_batch():
    """This batch and no other."""
    y = random(3, 16) * 4 - 2
    gamma, beta = matching_scale_and_shift(y)
    others = y[:, :8]
    for batch, exact in ((y, True), (others, False)):
        z = gamma[:, None] * standardise(batch).values + beta[:, None]
        assert ((z - batch).abs().max() < 1e-13) == exact


class TestPreservedMinima:
    """Observation 4.3: minima are preserved if the layer without BN has a bias."""

    M = 16
    X, target = random(M, 4, seed=11), random(M, seed=12) + 1.5

    def loss(self, w, gamma, beta):
        """Mean squared error with BN after Xw."""
        return F.mse_loss(gamma * standardise(self.X @ w).values + beta, self.target)

    def minimum(self, *, bias):
        """Of least squares, as parameters of the network with BN, and its loss."""
        X = torch.cat([self.X, torch.ones(self.M, 1)], 1) if bias else self.X
        solution = torch.linalg.lstsq(X, self.target[:, None]).solution[:, 0]
        parameters = solution[:4], *matching_scale_and_shift(X @ solution)
        loss = F.mse_loss(X @ solution, self.target)
        return [p.clone().requires_grad_() for p in parameters], loss

    @pytest.mark.parametrize("bias", [False, True])
    def test_gradients_at_the_minimum(self, bias):
        parameters, loss = self.minimum(bias=bias)
        value = self.loss(*parameters)
        assert_close(value, loss, rtol=1e-9, atol=1e-11)  # the activations are reproduced
        for gradient in torch.autograd.grad(value, parameters):
            assert bool(gradient.norm() < 1e-14) == bias

    def test_without_a_bias_bn_has_a_lower_minimum(self):
        _, loss = self.minimum(bias=False)
        lower, best = self.minimum(bias=True)
        assert_close(self.loss(*lower), best, rtol=1e-9, atol=1e-11)
        assert best < loss - 0.05


GOOD = torch.tensor([1.0, 2.0, 4.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nearest_multiple(GOOD, GOOD[:2]), "must have one shape"),
        (lambda: nearest_multiple(GOOD, -GOOD), "must be positive, got -21"),
        (lambda: nearest_multiple(0 * GOOD, GOOD), "must be positive, got 0"),
        (lambda: matching_scale_and_shift(torch.ones(3)), "y is constant over the batch"),
    ],
    ids=["other weights", "opposite weights", "no optimum", "constant"],
)
def test_wrong_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
