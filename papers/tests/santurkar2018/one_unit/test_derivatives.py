"""Derivatives through batch normalisation of one unit, against automatic differentiation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.testing import assert_close

from equipoise_papers.santurkar2018.one_unit import (
    bn_gradient,
    bn_hessian,
    curvature_along_gradient,
    largest_curvature,
    lipschitz_gap,
    minimax_bound,
    radial_derivative,
    standardise,
)
from papers_reference.one_unit import hessian_34_37, hessian_38_40, hessian_41_42
from papers_support.one_unit_problems import EXACT, SETTINGS, Unit, random

NUMBERS = st.floats(-10, 10).map(lambda x: round(x, 3))


@pytest.mark.parametrize(("gamma", "eps"), SETTINGS)
class TestDerivatives:
    def test_gradient(self, gamma, eps):
        unit = Unit(gamma=gamma, eps=eps)
        assert_close(bn_gradient(unit.y, unit.g, **unit.options), unit.g_y, **EXACT)

    def test_hessian(self, gamma, eps):
        unit = Unit(gamma=gamma, eps=eps)
        assert_close(bn_hessian(unit.y, unit.g, unit.H, **unit.options), unit.H_y, **EXACT)


@pytest.mark.parametrize("gamma", [1.0, 0.3, -2.0])
@pytest.mark.parametrize("literal", [hessian_34_37, hessian_38_40, hessian_41_42])
def test_the_three_printed_hessians_are_right(literal, gamma):
    unit = Unit(gamma=gamma)
    ours = bn_hessian(unit.y, unit.g, unit.H, gamma=gamma)
    assert_close(literal(unit.y, unit.g, unit.H, gamma), ours, **EXACT)


def test_without_the_curvature_of_the_scale_the_hessian_is_wrong():
    """γ²/σ² PHP alone, as if σ did not depend on y."""
    unit = Unit()
    alone = unit.H_y - bn_hessian(unit.y, unit.g, torch.zeros_like(unit.H))
    assert (alone - unit.H_y).norm() > 0.05 * unit.H_y.norm()


def test_gradient_equals_that_of_pytorchs_batch_norm():
    y, g = random(8, 3), random(8, 3, seed=1)
    leaf = y.clone().requires_grad_()
    weight = random(3, seed=2)
    out = F.batch_norm(leaf, None, None, weight, training=True, eps=1e-3)
    (exact,) = torch.autograd.grad(out, leaf, g)
    assert_close(bn_gradient(y.T, g.T, gamma=weight, eps=1e-3), exact.T, **EXACT)


def test_units_are_independent_and_have_their_own_scale():
    """Leading dimensions are units; every function treats each as if it were alone."""
    y, g, gamma = random(2, 3, 8), random(2, 3, 8, seed=1), random(2, 3, seed=2)
    H = random(2, 3, 8, 8, seed=3)
    H = H @ H.mT

    def numbers(*arguments, **options):
        y, g, H = arguments
        yield bn_gradient(y, g, **options)
        yield bn_hessian(y, g, H, **options)
        yield lipschitz_gap(y, g, **options).squared_norm
        yield curvature_along_gradient(y, g, H, **options).value
        yield minimax_bound(y, g, radius=2.0, **options).normalised
        yield radial_derivative(y, g, **options)
        yield largest_curvature(g, H).value

    for eps in (0.0, 0.1):
        together = numbers(y, g, H, gamma=gamma, eps=eps)
        alone = numbers(y[1, 2], g[1, 2], H[1, 2], gamma=gamma[1, 2], eps=eps)
        for one, many in zip(alone, together, strict=True):
            assert_close(many[1, 2], one, **EXACT)


class TestRanges:
    @given(
        st.lists(NUMBERS, min_size=2, max_size=20).filter(lambda y: max(y) - min(y) > 0.1),
        st.integers(0, 10**6),
        st.floats(0.01, 100),
    )
    def test_gradients_are_orthogonal_to_constants_and_to_outputs(self, y, seed, scale):
        y = torch.tensor(y, dtype=torch.float64)
        g = random(len(y), seed=seed)
        found = bn_gradient(y, g, gamma=scale)
        size = scale * g.norm() / y.std(correction=0)
        assert abs(found.sum()) < 1e-12 * len(y) * size
        assert abs(found @ y) < 1e-12 * len(y) * size * y.norm()
        assert found.norm() <= size * (1 + 1e-12)

    @given(st.integers(2, 20), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3), st.integers(0, 10**6))
    def test_scale_and_shift_of_the_outputs(self, m, scale, shift, seed):
        """ŷ does not change, and gradients shrink with the scale."""
        y, g = random(m, seed=seed), random(m, seed=seed + 1)
        found = bn_gradient(scale * y + shift, g)
        size = g.norm() / (scale * y.std(correction=0))
        assert (found - bn_gradient(y, g) / scale).norm() < 1e-9 * size * (1 + abs(shift) / scale)

    def test_with_two_samples_the_gradient_is_zero(self):
        """The normalised outputs are ±1 for all outputs."""
        y, g = torch.tensor([0.3, 7.1], dtype=torch.float64), random(2)
        assert standardise(y).values.abs() == pytest.approx(1, abs=1e-15)
        assert bn_gradient(y, g).abs().max() < 1e-15
        assert bn_hessian(y, g, torch.eye(2)).abs().max() < 1e-15


GOOD = torch.tensor([1.0, 2.0, 4.0])


WRONG = {
    "constant": (lambda: bn_gradient(torch.ones(3), GOOD), "y is constant over the batch"),
    "constant to rounding": (
        lambda: bn_gradient(torch.full((9,), 0.1), torch.ones(9)),
        "y is constant",
    ),
    "one sample": (lambda: bn_gradient(GOOD[:1], GOOD[:1]), "at least 2 samples"),
    "other shape": (
        lambda: bn_gradient(GOOD, GOOD[:2]),
        r"g must have shape \(3,\) to fit y, got \(2,\)",
    ),
    "not finite": (lambda: bn_gradient(GOOD, GOOD / 0), "g must be finite"),
    "negative eps": (
        lambda: bn_gradient(GOOD, GOOD, eps=-1),
        "eps must be finite and not negative, got -1",
    ),
    "gamma per sample": (
        lambda: bn_gradient(GOOD, GOOD, gamma=GOOD),
        r"gamma must be a number or of shape \(\)",
    ),
    "small hessian": (
        lambda: bn_hessian(GOOD, GOOD, torch.eye(2)),
        r"hessian must have shape \(3, 3\)",
    ),
}


@pytest.mark.parametrize(("call", "message"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_integers_are_refused():
    with pytest.raises(TypeError, match=r"y must be a floating-point tensor.*got torch.int64"):
        bn_gradient(torch.arange(3), GOOD)


def test_a_constant_unit_is_fine_with_eps():
    centred = GOOD.double() - GOOD.double().mean()
    assert_close(bn_gradient(torch.ones(3), GOOD, eps=0.25), 2 * centred, **EXACT)
