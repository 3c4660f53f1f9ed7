"""Curvature of the loss along its gradient: Theorems 4.2 and C.1."""

import math

import pytest
import torch
from torch.testing import assert_close

from equipoise_papers.santurkar2018.one_unit import (
    bn_gradient,
    bn_hessian,
    curvature_along_gradient,
    largest_curvature,
    standardise,
)
from papers_support.one_unit_problems import EXACT, SETTINGS, Unit, form, random


@pytest.mark.parametrize(("gamma", "eps"), SETTINGS)
class TestCurvatureAlongGradient:
    def test_equals_that_of_the_hessian(self, gamma, eps):
        unit = Unit(gamma=gamma, eps=eps)
        found = curvature_along_gradient(unit.y, unit.g, unit.H, **unit.options)
        assert_close(found.value, form(unit.H_y, unit.g_y), **EXACT)

    def test_its_terms_are_those_of_the_first_display_at_eps_0(self, gamma, eps):
        unit = Unit(gamma=gamma, eps=eps)
        found = curvature_along_gradient(unit.y, unit.g, unit.H, **unit.options)
        normalised = standardise(unit.y, eps=eps)
        variance, along = normalised.deviation**2, unit.g @ normalised.values
        displayed = torch.stack(
            [
                gamma**2 / variance * form(unit.H, unit.g_y),
                gamma / (12 * variance) * along * unit.g_y.square().sum(),
            ]
        )
        terms = torch.stack([found.of_loss, found.of_scale])
        if eps:
            assert (terms - displayed).abs().max() > 1e-9 * terms.abs().max()
        else:
            assert_close(terms, displayed, **EXACT)


class TestLargestCurvature:
    def test_attained_and_not_exceeded(self):
        """X = λueᵀ attains the value, and the dual problem's bound equals it."""
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

    def test_if_the_gradient_has_no_part_along_the_first_eigenvector(self):
        """The hard case of such problems: s has to be lengthened along it."""
        g, H = torch.tensor([1.0, 0.0]), torch.diag(torch.tensor([1.0, 9.0]))
        found = largest_curvature(g, H)
        assert_close(found.value, found.bound, **EXACT)
        assert found.value > 2.2  # w on a circle around (1/2, 0): w_1² + 9w_2²
        angles = torch.linspace(0, 2 * math.pi, 100001, dtype=torch.float64)
        circle = (0.5 + 0.5 * angles.cos()).square() + 9 * (0.5 * angles.sin()).square()
        assert_close(found.value, circle.max(), rtol=1e-8, atol=0)

    @pytest.mark.parametrize("H", [-torch.eye(3), torch.zeros(3, 3)], ids=["negative", "zero"])
    def test_without_positive_curvature_zero_inputs_are_best(self, H):
        found = largest_curvature(torch.ones(3), H)
        assert found.value == 0
        assert found.bound < 1e-15
        assert (found.direction == 0).all()

    def test_a_counterexample_to_equation_58(self):
        """The maximum is not at XXᵀ = λ²I, where gᵀHg is 1.25."""
        g, H = torch.tensor([0.05, 1.0]).double(), torch.diag(torch.tensor([100.0, 1.0])).double()
        found = largest_curvature(g, H)
        X = found.direction[:, None]
        assert round(float(form(H, g)), 2) == 1.25
        assert round(float(form(X.T @ H @ X, X.T @ g)), 2) == 27.88
        assert_close(found.value, found.bound, **EXACT)

    def test_equation_57_lacks_a_factor_and_a_centring(self):
        """β = γ²/σ² gᵀP K Ĥ K P g, in which P also takes the mean out."""
        y, g, X, gamma = random(12), random(12, seed=4), random(12, 5, seed=9), 0.7
        A, K = random(12, 12, seed=5), X @ X.T
        unit, H_y = standardise(y), bn_hessian(y, g, A @ A.T, gamma=gamma)
        of_weights = X.T @ bn_gradient(y, g, gamma=gamma)
        exact = form(X.T @ H_y @ X, of_weights)
        printed = g - unit.values * (g @ unit.values) / 12
        right = gamma / unit.deviation * (printed - g.mean())
        assert_close(form(K @ H_y @ K, right), exact, **EXACT)
        assert abs(form(K @ H_y @ K, printed) / exact - 1) > 0.1


GOOD = torch.tensor([1.0, 2.0, 4.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: largest_curvature(GOOD, torch.eye(3), radius=-1), "radius must be finite"),
        (lambda: largest_curvature(torch.zeros(3), torch.eye(3)), "g must not be zero"),
        (lambda: largest_curvature(GOOD, torch.eye(2)), r"hessian must have shape \(3, 3\)"),
        (lambda: curvature_along_gradient(GOOD, GOOD, GOOD), r"hessian must have shape \(3, 3\)"),
    ],
    ids=["radius", "zero gradient", "small hessian", "no matrix"],
)
def test_wrong_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
