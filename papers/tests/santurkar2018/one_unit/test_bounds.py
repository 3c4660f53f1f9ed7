"""Lengths of gradients through batch normalisation of one unit: Theorems 4.1 and 4.4."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.functional import jacobian
from torch.testing import assert_close

from equipoise_papers.santurkar2018.one_unit import (
    bn_gradient,
    lipschitz_gap,
    minimax_bound,
    standardise,
)
from papers_reference.one_unit import bn
from papers_support.one_unit_problems import EXACT, SETTINGS, Unit, random


@pytest.mark.parametrize(("gamma", "eps"), SETTINGS)
class TestLipschitzGap:
    def test_squared_norm_of_the_gradient(self, gamma, eps):
        unit = Unit(gamma=gamma, eps=eps)
        gap = lipschitz_gap(unit.y, unit.g, **unit.options)
        exact = unit.g_y.square().sum()
        assert_close(gap.squared_norm, exact, **EXACT)
        if eps:
            assert gap.printed_bound > exact * (1 + 1e-12)
        else:
            assert_close(gap.printed_bound, exact, **EXACT)

    def test_subtracted_terms_are_the_derivatives_of_scale_and_shift(self, gamma, eps):
        """⟨g, ŷ⟩ = ∂L/∂γ and ⟨1, g⟩ = ∂L/∂β, so both gains vanish where those do."""
        unit = Unit(gamma=gamma, eps=eps)
        parameters = torch.tensor([gamma, 0.3], dtype=torch.float64)
        exact = jacobian(lambda p: unit.loss(bn(unit.y, *p, eps)), parameters)
        gap = lipschitz_gap(unit.y, unit.g, **unit.options)
        assert_close(12 * torch.stack([gap.scale, gap.shift]), exact.square(), **EXACT)


@given(st.integers(3, 20), st.floats(0, 10), st.integers(0, 10**6))
def test_the_printed_bound_holds_at_every_eps(m, eps, seed):
    gap = lipschitz_gap(random(m, seed=seed), random(m, seed=seed + 1), eps=eps)
    assert gap.squared_norm <= gap.printed_bound * (1 + 1e-12) + 1e-12 * gap.gradient


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

    def test_a_multiple_of_the_identity_is_not_needed(self):
        """XXᵀ = λ²I attains it for every gradient, a single direction for one gradient."""
        y, g = random(12), random(12, seed=4)
        g_y = bn_gradient(y, g)
        bound = minimax_bound(y, g, radius=2.0).normalised
        one = 2 * torch.outer(g_y / g_y.norm(), torch.ones(3).double() / 3**0.5)
        Q = torch.linalg.qr(random(14, 12, seed=8)).Q
        for X, attained in ((one, True), (2 * Q.T, True), (2 * Q.T[:, :5], False)):
            assert torch.linalg.matrix_norm(X, ord=2) <= 2 + 1e-12
            assert bool(abs((X.T @ g_y).square().sum() / bound - 1) < 1e-12) == attained

    def test_a_negative_radius_is_refused(self):
        with pytest.raises(ValueError, match="radius must be finite and not negative, got -1"):
            minimax_bound(random(3), random(3), radius=-1)
