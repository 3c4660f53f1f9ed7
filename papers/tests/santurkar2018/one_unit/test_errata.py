"""Where the paper is wrong about one unit: errata 1 to 6 and 11 of the specification.

Each false reading fails on random cases, with counts of 2000 where the law of the cases allows
one, or on a counterexample; beside it stands the right reading, which holds on the same cases.
"""

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from equipoise_papers.santurkar2018.one_unit.bounds import curvature_along_gradient, minimax_bound
from equipoise_papers.santurkar2018.one_unit.curvature import largest_curvature
from equipoise_papers.santurkar2018.one_unit.derivatives import (
    bn_gradient,
    bn_hessian,
    standardise,
)
from equipoise_papers.santurkar2018.one_unit.weights import matching_scale_and_shift

EXACT = {"rtol": 1e-9, "atol": 1e-11}
CASES, M = 2000, 16


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def outputs(seed=0):
    """Units whose deviations and means vary, [CASES, M]."""
    return random(CASES, 1, seed=seed).exp() * random(CASES, M, seed=seed + 1) + random(
        CASES, 1, seed=seed + 2
    )


def semidefinite(seed=10):
    A = random(CASES, M, M, seed=seed)
    return A @ A.mT / M


def squared(v):
    return v.square().sum(-1)


def dot(a, b):
    return (a * b).sum(-1)


def form(H, v):
    return (v * (H @ v.unsqueeze(-1)).squeeze(-1)).sum(-1)


def exceeded(left, right):
    """In how many cases left > right by more than rounding."""
    return int((left > right + 1e-9 * (left.abs() + right.abs())).sum())


class TestErratum1:
    """Theorem 4.1 with each network at its own activations."""

    def sides(self, gradient, gamma, *, own):
        y = outputs()
        yh, sigma = standardise(y).values, standardise(y).deviation
        gamma = sigma if gamma == "sigma" else torch.ones_like(sigma)
        z = gamma[:, None] * yh
        g = gradient(y if own else z)
        right = squared(g) - g.sum(-1).square() / M - dot(g, yh).square() / M
        return squared(bn_gradient(y, gradient(z), gamma=gamma)), (gamma / sigma) ** 2 * right

    def logistic(self, z):
        labels = random(CASES, M, seed=5).sign()
        return -labels * torch.sigmoid(-labels * z)

    @pytest.mark.parametrize("gamma", ["sigma", "one"])
    def test_the_literal_reading_fails_in_about_half_of_all_cases(self, gamma):
        left, right = self.sides(self.logistic, gamma, own=True)
        assert 700 < exceeded(left, right) < 1100
        assert 1.3 < (left / right).max() < 10

    @pytest.mark.parametrize("gamma", ["sigma", "one"])
    def test_at_the_same_z_it_is_an_equality(self, gamma):
        assert_close(*self.sides(self.logistic, gamma, own=False), **EXACT)

    def test_for_a_squared_loss_both_readings_agree(self):
        """Its two gradients differ only along 1 and ŷ, which are projected out."""
        target = random(CASES, M, seed=6)
        assert_close(*self.sides(lambda z: z - target, "sigma", own=True), **EXACT)


class TestErratum2:
    """The inner product said to be "expected to be bounded away from zero" is ∂L/∂γ."""

    target = random(CASES, M, seed=6)

    def products(self, gamma, beta):
        yh = standardise(outputs()).values
        g = gamma[:, None] * yh + beta[:, None] - self.target
        size = M**0.5 * squared(g).sqrt()
        return dot(g, yh) / size, g.sum(-1) / size

    def test_at_stationary_scale_and_shift_both_gains_vanish(self):
        """Squared loss; the best γ and β are a regression on ŷ."""
        yh = standardise(outputs()).values
        along, mean = self.products(dot(self.target, yh) / M, self.target.mean(-1))
        assert along.abs().max() < 1e-14
        assert mean.abs().max() < 1e-14

    def test_at_fixed_ones_they_do_not(self):
        along, _ = self.products(torch.ones(CASES), torch.zeros(CASES))
        assert along.abs().median() > 0.3


class TestErratum3:
    """Theorem 4.2, second display: gᵀHg does not bound g_yᵀHg_y."""

    def sides(self, gamma, vector):
        y, g, H = outputs(), random(CASES, M, seed=4), semidefinite()
        sigma, yh = standardise(y).deviation, standardise(y).values
        g_y = bn_gradient(y, g, gamma=gamma)
        exact = form(bn_hessian(y, g, H, gamma=gamma), g_y)
        first = form(H, g_y if vector == "g_y" else g)
        subtracted = dot(g, yh) * squared(g_y) / (M * gamma)
        return exact, (gamma / sigma) ** 2 * (first - subtracted), sigma

    @pytest.mark.parametrize(
        ("gamma", "least", "most"), [(0.2, 50, 200), (1.0, 850, 1100), (3.0, 1600, 1999)]
    )
    def test_violations(self, gamma, least, most):
        exact, printed, _ = self.sides(gamma, "g")
        assert least < exceeded(exact, printed) < most

    def test_even_where_the_scale_is_at_most_the_deviation(self):
        """γ ≤ σ makes g_y shorter than g, but H need not preserve that."""
        exact, printed, sigma = self.sides(1.0, "g")
        small = sigma >= 1
        assert 5 < exceeded(exact[small], printed[small]) < 50

    @pytest.mark.parametrize("gamma", [0.2, 1.0, 3.0])
    def test_the_first_display_is_an_equality(self, gamma):
        exact, right, _ = self.sides(gamma, "g_y")
        assert_close(exact, right, rtol=1e-9, atol=1e-9 * float(exact.abs().max()))


class TestErratum4:
    """Theorem 4.4: g_j is squared already, λ² is missing in one place and 1/m in another."""

    def sides(self, right):
        y, g = outputs(), random(CASES, M, seed=4)
        lam = random(CASES, seed=7).exp()
        sigma, yh, mu = standardise(y).deviation, standardise(y).values, g.mean(-1)
        along, plain = dot(g, yh).square(), lam**2 * squared(g)
        bracket = {
            "printed": plain**2 - M * mu**2 - lam**2 * along,
            "g for g²": plain - M * mu**2 - lam**2 * along,
            "(17)": plain - lam**2 * (M * mu**2 + along / M**0.5),
            "corrected": plain - lam**2 * (M * mu**2 + along / M),
        }[right]
        return lam**2 * minimax_bound(y, g).normalised, bracket / sigma**2

    @pytest.mark.parametrize(
        ("right", "least", "most"),
        [("printed", 250, 450), ("g for g²", 1800, 1950), ("(17)", 1999, 2000)],
    )
    def test_violations(self, right, least, most):
        assert least <= exceeded(*self.sides(right)) <= most

    def test_the_corrected_form_is_an_equality(self):
        left, right = self.sides("corrected")
        assert_close(left, right, **EXACT)

    def test_a_multiple_of_the_identity_is_not_needed(self):
        """XXᵀ = λ²I is tight for every gradient, a single direction for one."""
        y, g = outputs()[0], random(M, seed=4)
        g_y = bn_gradient(y, g)
        bound = minimax_bound(y, g, radius=2.0).normalised
        one = 2 * torch.outer(g_y / g_y.norm(), torch.ones(3).double() / 3**0.5)
        Q = torch.linalg.qr(random(M + 2, M, seed=8)).Q
        for X, tight in ((one, True), (2 * Q.T, True), (2 * Q.T[:, :5], False)):
            assert torch.linalg.matrix_norm(X, ord=2) <= 2 + 1e-12
            assert bool(abs(squared(X.T @ g_y) / bound - 1) < 1e-12) == tight


class TestErratum5:
    """(57), (58) and Theorem C.1: the maximum over X is not at XXᵀ = λ²I."""

    def networks(self):
        """At γ = σ, with ⟨g, ŷ⟩ > 0: g_y and its Hessian, g and H, and κ."""
        y, g, H = outputs(), random(CASES, M, seed=4), semidefinite()
        sigma, yh = standardise(y).deviation, standardise(y).values
        g = g * dot(g, yh).sign()[:, None]
        g_y = bn_gradient(y, g, gamma=sigma)
        kappa = dot(g, yh) * squared(g_y) / (M * sigma)
        return g_y, bn_hessian(y, g, H, gamma=sigma), g, H, kappa

    def test_a_counterexample_to_58(self):
        g, H = torch.tensor([0.05, 1.0]).double(), torch.diag(torch.tensor([100.0, 1.0])).double()
        found = largest_curvature(g, H)
        X = found.direction[:, None]
        assert round(float(form(H, g)), 2) == 1.25
        assert round(float(form(X.T @ H @ X, X.T @ g)), 2) == 27.88
        assert_close(found.value, found.bound, **EXACT)

    def test_57_lacks_a_factor_and_a_centring(self):
        """β = γ²/σ² gᵀP K Ĥ K P g, in which P also takes the mean out."""
        y, g, X = outputs()[0], random(M, seed=4), random(M, 5, seed=9)
        H, gamma, K = semidefinite()[0], 0.7, X @ X.T
        unit, H_y = standardise(y), bn_hessian(y, g, H, gamma=gamma)
        of_weights = X.T @ bn_gradient(y, g, gamma=gamma)
        exact = form(X.T @ H_y @ X, of_weights)
        printed = g - unit.values * dot(g, unit.values) / M
        right = gamma / unit.deviation * (printed - g.mean())
        assert_close(form(K @ H_y @ K, right), exact, **EXACT)
        assert abs(form(K @ H_y @ K, printed) / exact - 1) > 0.1

    def test_theorem_c1_fails_with_the_true_maxima(self):
        g_y, H_y, g, H, kappa = self.networks()
        left, plain = largest_curvature(g_y, H_y), largest_curvature(g, H)
        assert 800 < exceeded(left.value, plain.bound - kappa) < 1100
        assert exceeded(left.value, plain.bound) > 400  # not even without κ

    def test_how_often_depends_on_the_size_of_the_hessian(self):
        """What BN adds to the Hessian does not scale with H."""
        g_y, _, g, H, kappa = self.networks()
        y, sigma = outputs(), standardise(outputs()).deviation
        big = 16 * H
        left = largest_curvature(g_y, bn_hessian(y, g, big, gamma=sigma))
        count = exceeded(left.value, largest_curvature(g, big).bound - kappa)
        assert 0 < count < 150

    def test_it_fails_with_a_multiple_of_the_identity_too(self):
        g_y, H_y, g, H, kappa = self.networks()
        assert 400 < exceeded(form(H_y, g_y), form(H, g) - kappa) < 700

    def test_what_holds_there_is_the_first_display(self):
        g_y, H_y, _, H, kappa = self.networks()
        left = form(H_y, g_y)
        assert_close(left, form(H, g_y) - kappa, rtol=1e-9, atol=1e-9 * float(left.abs().max()))


class TestErratum6:
    """Observation 4.3: minima are preserved if the layer without BN has a bias."""

    X, target = random(M, 4, seed=11), random(M, seed=12) + 1.5

    def network(self, w, gamma, beta):
        """Mean squared error with BN after Xw."""
        z = gamma * standardise(self.X @ w).values + beta
        return F.mse_loss(z, self.target)

    def minimum(self, *, bias):
        """Of least squares, as parameters of the network with BN, and its loss."""
        X = torch.cat([self.X, torch.ones(M, 1)], 1) if bias else self.X
        solution = torch.linalg.lstsq(X, self.target[:, None]).solution[:, 0]
        parameters = solution[:4], *matching_scale_and_shift(X @ solution)
        return [p.clone().requires_grad_() for p in parameters], F.mse_loss(
            X @ solution, self.target
        )

    @pytest.mark.parametrize("bias", [False, True])
    def test_gradients_at_the_minimum(self, bias):
        parameters, loss = self.minimum(bias=bias)
        value = self.network(*parameters)
        assert_close(value, loss, **EXACT)  # the activations are reproduced
        gradients = torch.autograd.grad(value, parameters)
        for gradient in gradients:
            assert bool(gradient.norm() < 1e-14) == bias

    def test_without_a_bias_bn_has_a_lower_minimum(self):
        _, loss = self.minimum(bias=False)
        lower, best = self.minimum(bias=True)
        assert_close(self.network(*lower), best, **EXACT)
        assert best < loss - 0.05

    def test_for_one_batch_only(self):
        (w, gamma, beta), _ = self.minimum(bias=True)
        y = self.X @ w
        half = gamma * standardise(y[:8]).values + beta
        whole = gamma * standardise(y).values + beta
        assert_close(half - whole[:8], half - (y + beta - y.mean())[:8], **EXACT)
        assert (half - whole[:8]).abs().max() > 0.1


class TestErratum11:
    """ŷ and g said to correlate "as long as the negative gradient points to the minimum"."""

    def cases(self):
        """Squared loss: -g = z* - ŷ points straight at the minimum z*."""
        yh, minimum = standardise(outputs()).values, outputs(seed=20)
        return yh, minimum, yh - minimum

    def test_it_need_not_be_positive(self):
        """Where the minimum lies beyond ŷ: it asks for a larger γ, not for a smaller one."""
        yh, minimum, g = self.cases()
        negative = dot(yh, g) < 0
        assert 30 < int(negative.sum()) < 150
        assert (dot(yh, minimum)[negative] > M).all()

    def test_convexity_gives_another_inner_product(self):
        yh, minimum, g = self.cases()
        assert (dot(g, yh - minimum) >= 0).all()
        assert (form(semidefinite(), yh - minimum) >= 0).all()


def test_curvature_terms_are_those_of_the_display():
    """The record's two terms are the two sides' at ε = 0."""
    y, g, H = outputs(), random(CASES, M, seed=4), semidefinite()
    unit, g_y = standardise(y), bn_gradient(y, g, gamma=0.7)
    found = curvature_along_gradient(y, g, H, gamma=0.7)
    assert_close(found.of_loss, (0.7 / unit.deviation) ** 2 * form(H, g_y), **EXACT)
    subtracted = 0.7 / (M * unit.deviation**2) * dot(g, unit.values) * squared(g_y)
    assert_close(found.of_scale, subtracted, **EXACT)
