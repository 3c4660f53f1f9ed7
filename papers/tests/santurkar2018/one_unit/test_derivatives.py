"""Derivatives through batch normalisation of one unit, against automatic differentiation."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.functional import hessian, jacobian
from torch.nn import functional as F
from torch.testing import assert_close

from equipoise_papers.santurkar2018.one_unit.bounds import (
    curvature_along_gradient,
    lipschitz_gap,
    minimax_bound,
)
from equipoise_papers.santurkar2018.one_unit.curvature import largest_curvature
from equipoise_papers.santurkar2018.one_unit.derivatives import (
    bn_gradient,
    bn_hessian,
    standardise,
)
from equipoise_papers.santurkar2018.one_unit.weights import (
    matching_scale_and_shift,
    nearest_multiple,
    radial_derivative,
)
from papers_reference.one_unit import bn, hessian_34_37, hessian_38_40, hessian_41_42

EXACT = {"rtol": 1e-11, "atol": 1e-12}
NUMBERS = st.floats(-10, 10).map(lambda x: round(x, 3))


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def form(matrix, v):
    return v @ matrix @ v


class Unit:
    """One unit below a loss that is neither convex nor separable, with all its derivatives."""

    def __init__(self, m=12, gamma=1.0, eps=0.0, seed=0):
        self.options = {"gamma": gamma, "eps": eps}
        self.y = random(m, seed=seed) * 2 + 1
        self.mixing, self.slope = random(m, m, seed=seed + 1), random(m, seed=seed + 2)
        self.z = bn(self.y, gamma, 0.3, eps)
        self.g, self.H = jacobian(self.loss, self.z), hessian(self.loss, self.z)
        self.g_y, self.H_y = (
            derivative(lambda y: self.loss(bn(y, gamma, 0.3, eps)), self.y)
            for derivative in (jacobian, hessian)
        )

    def loss(self, z):
        return torch.tanh(self.mixing @ z) @ self.slope + (self.slope * z).square().sum() / 2


SETTINGS = [(1.0, 0.0), (0.3, 0.0), (-2.0, 0.0), (1.0, 1e-5), (0.7, 0.5), (-2.0, 30.0)]


@pytest.mark.parametrize(("gamma", "eps"), SETTINGS)
class TestDerivatives:
    def test_gradient(self, gamma, eps):
        unit = Unit(gamma=gamma, eps=eps)
        assert_close(bn_gradient(unit.y, unit.g, **unit.options), unit.g_y, **EXACT)

    def test_hessian(self, gamma, eps):
        unit = Unit(gamma=gamma, eps=eps)
        assert_close(bn_hessian(unit.y, unit.g, unit.H, **unit.options), unit.H_y, **EXACT)

    def test_squared_norm_of_the_gradient(self, gamma, eps):
        unit = Unit(gamma=gamma, eps=eps)
        gap = lipschitz_gap(unit.y, unit.g, **unit.options)
        exact = unit.g_y.square().sum()
        assert_close(gap.squared_norm, exact, **EXACT)
        if eps:
            assert gap.printed_bound > exact * (1 + 1e-12)
        else:
            assert_close(gap.printed_bound, exact, **EXACT)

    def test_curvature_along_the_gradient(self, gamma, eps):
        unit = Unit(gamma=gamma, eps=eps)
        found = curvature_along_gradient(unit.y, unit.g, unit.H, **unit.options)
        assert_close(found.value, form(unit.H_y, unit.g_y), **EXACT)

    def test_what_is_subtracted_are_the_derivatives_of_scale_and_shift(self, gamma, eps):
        """⟨g, ŷ⟩ = ∂L/∂γ and ⟨1, g⟩ = ∂L/∂β, so both gains vanish where those do."""
        unit = Unit(gamma=gamma, eps=eps)
        parameters = torch.tensor([gamma, 0.3], dtype=torch.float64)
        exact = jacobian(lambda p: unit.loss(bn(unit.y, *p, eps)), parameters)
        gap = lipschitz_gap(unit.y, unit.g, **unit.options)
        assert_close(12 * torch.stack([gap.scale, gap.shift]), exact.square(), **EXACT)

    def test_of_the_logarithm_of_the_weight_norm(self, gamma, eps):
        unit = Unit(gamma=gamma, eps=eps)
        X = random(12, 4, seed=9)
        w = random(4, seed=10)
        y = X @ w
        exact = w @ jacobian(lambda w: unit.loss(bn(X @ w, gamma, 0.3, eps)), w)
        g = jacobian(unit.loss, bn(y, gamma, 0.3, eps))
        found = radial_derivative(y, g, **unit.options)
        assert_close(found, exact, rtol=1e-9, atol=1e-12)
        assert (found == 0) == (eps == 0)


@pytest.mark.parametrize("gamma", [1.0, 0.3, -2.0])
@pytest.mark.parametrize("literal", [hessian_34_37, hessian_38_40, hessian_41_42])
def test_the_three_printed_hessians_are_right(literal, gamma):
    unit = Unit(gamma=gamma)
    assert_close(literal(unit.y, unit.g, unit.H, gamma), unit.H_y, **EXACT)


def test_without_the_curvature_of_the_scale_the_hessian_is_wrong():
    """γ²/σ² PHP alone, as if σ did not depend on y."""
    unit = Unit()
    alone = unit.H_y - bn_hessian(unit.y, unit.g, torch.zeros_like(unit.H))
    assert (alone - unit.H_y).norm() > 0.05 * unit.H_y.norm()


def test_it_is_pytorchs_batch_norm():
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

    @given(st.integers(3, 20), st.floats(0, 10), st.integers(0, 10**6))
    def test_the_printed_bound_is_one_at_every_eps(self, m, eps, seed):
        gap = lipschitz_gap(random(m, seed=seed), random(m, seed=seed + 1), eps=eps)
        assert gap.squared_norm <= gap.printed_bound * (1 + 1e-12) + 1e-12 * gap.gradient

    def test_with_two_samples_no_gradient_is_left(self):
        """The outputs are ±1 whatever the inputs."""
        y, g = torch.tensor([0.3, 7.1], dtype=torch.float64), random(2)
        assert standardise(y).values.abs() == pytest.approx(1, abs=1e-15)
        assert bn_gradient(y, g).abs().max() < 1e-15
        assert bn_hessian(y, g, torch.eye(2)).abs().max() < 1e-15


class TestMinimaxBound:
    def test_attained_by_inputs_of_rank_one_and_exceeded_by_none(self):
        y, g, radius = random(12), random(12, seed=1), 1.7
        bound = minimax_bound(y, g, gamma=0.6, radius=radius)
        g_y = bn_gradient(y, g, gamma=0.6)
        best = radius * torch.outer(g_y / g_y.norm(), random(5, seed=2) / random(5, seed=2).norm())
        assert_close((best.T @ g_y).square().sum(), bound.normalised, **EXACT)
        for seed in range(50):
            X = random(12, 5, seed=seed)
            X = X * radius / torch.linalg.matrix_norm(X, ord=2)
            assert (X.T @ g_y).square().sum() < bound.normalised
            assert (X.T @ g).square().sum() < bound.plain

    def test_the_formula_of_the_theorem(self):
        y, g, radius, m = random(12), random(12, seed=1), 1.7, 12
        found = minimax_bound(y, g, radius=radius)
        values, variance = standardise(y).values, y.var(correction=0)
        bracket = found.plain - radius**2 * (m * g.mean() ** 2 + (g @ values) ** 2 / m)
        assert_close(found.normalised, bracket / variance, **EXACT)


class TestLargestCurvature:
    def test_attained_and_certified(self):
        """X = λueᵀ gives the value, the dual problem bounds it, and they meet."""
        A, g, radius = random(12, 12), random(12, seed=1), 1.3
        H = (A + A.T) / 2
        found = largest_curvature(g, H, radius=radius)
        X = radius * torch.outer(found.direction, torch.tensor([0.6, 0.8], dtype=torch.float64))
        assert_close(form(X.T @ H @ X, X.T @ g), found.value, **EXACT)
        assert_close(found.value, found.bound, **EXACT)
        for seed in range(100):
            X = random(12, 4, seed=seed)
            X = X * radius / torch.linalg.matrix_norm(X, ord=2)
            assert form(X.T @ H @ X, X.T @ g) < found.value

    def test_where_the_gradient_has_no_part_along_the_first_eigenvector(self):
        """The hard case of such problems: s has to be filled up along it."""
        g, H = torch.tensor([1.0, 0.0]), torch.diag(torch.tensor([1.0, 9.0]))
        found = largest_curvature(g, H)
        assert_close(found.value, found.bound, **EXACT)
        assert found.value > 2.2  # w on a circle around (1/2, 0): w_1² + 9w_2²
        angles = torch.linspace(0, 2 * math.pi, 100001, dtype=torch.float64)
        circle = (0.5 + 0.5 * angles.cos()).square() + 9 * (0.5 * angles.sin()).square()
        assert_close(found.value, circle.max(), rtol=1e-8, atol=0)

    @pytest.mark.parametrize("H", [-torch.eye(3), torch.zeros(3, 3)], ids=["negative", "zero"])
    def test_without_positive_curvature_no_input_is_best(self, H):
        found = largest_curvature(torch.ones(3), H)
        assert found.value == 0
        assert found.bound < 1e-15
        assert (found.direction == 0).all()


class TestWeights:
    @given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 10**6))
    def test_nearest_multiple(self, units, inputs, seed):
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

    def test_matching_scale_and_shift_return_the_batch(self):
        """This batch and no other."""
        y = random(3, 16) * 4 - 2
        gamma, beta = matching_scale_and_shift(y)
        others = y[:, :8]
        for batch, exact in ((y, True), (others, False)):
            z = gamma[:, None] * standardise(batch).values + beta[:, None]
            assert ((z - batch).abs().max() < 1e-13) == exact

    @pytest.mark.parametrize(("eps", "cosine"), [(0.0, 1e-14), (1e-5, 1e-1)])
    def test_gradients_are_orthogonal_to_weights_row_by_row(self, eps, cosine):
        """Exactly at ε = 0; with PyTorch's ε and small inputs visibly not."""
        X, W = random(16, 5) * 1e-2, random(3, 5, seed=1)
        leaf = W.clone().requires_grad_()
        torch.stack([bn(y, eps=eps) for y in (X @ leaf.T).T]).tanh().mul(
            random(3, 16, seed=2)
        ).sum().backward()
        found = (W * leaf.grad).sum(1).abs() / (W.norm(dim=1) * leaf.grad.norm(dim=1))
        assert (found < cosine).all()
        assert bool((found > 1e-4).any()) == (eps > 0)


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
    "negative radius": (lambda: minimax_bound(GOOD, GOOD, radius=-1), "radius must be finite"),
    "negative radius of curvature": (
        lambda: largest_curvature(GOOD, torch.eye(3), radius=-1),
        "radius must be finite",
    ),
    "no gradient": (lambda: largest_curvature(torch.zeros(3), torch.eye(3)), "g must not be zero"),
    "other weights": (lambda: nearest_multiple(GOOD, GOOD[:2]), "must have one shape"),
    "opposite weights": (lambda: nearest_multiple(GOOD, -GOOD), "must be positive, got -21"),
    "no optimum": (lambda: nearest_multiple(0 * GOOD, GOOD), "must be positive, got 0"),
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
