"""The claims' printed sides are what the paper prints; why they fail, and where they hold.

How often each fails is counted in ``test_statements``.
"""

import pytest
import torch
from torch.autograd.functional import jacobian
from torch.testing import assert_close

from equipoise_papers.santurkar2018.one_unit import (
    bn_gradient,
    bn_hessian,
    largest_curvature,
    lipschitz_gap,
    standardise,
)
from equipoise_papers.santurkar2018.one_unit import printed_and_corrected as forms
from equipoise_papers.santurkar2018.one_unit.claims import (
    SAMPLES,
    normal,
    random_cases,
    squared_norm,
)
from papers_reference import one_unit as paper
from papers_support.one_unit_problems import form

CASES = 20
EXACT = {"rtol": 1e-9, "atol": 1e-11}


def seeded():
    return torch.Generator().manual_seed(0)


def same_draws(cases=CASES):
    """The cases that a claim draws from ``seeded()``, and the generator for what it draws next."""
    generator = seeded()
    return random_cases(generator, cases), generator


class TestPrintedSides:
    """Both sides of each claim, case by case, against transcriptions and autograd."""

    @pytest.mark.parametrize("matched", [True, False], ids=["γ = σ", "γ = 1"])
    def test_theorem_4_1(self, matched):
        printed, corrected = forms.theorem_4_1(seeded(), CASES, at="y", matched=matched)
        drawn, generator = same_draws()
        labels = normal(generator, *drawn.y.shape).sign()
        for i, (y, t) in enumerate(zip(drawn.y, labels, strict=True)):
            gamma = float(y.std(correction=0)) if matched else 1.0

            def loss(z, t=t):
                return torch.log1p(torch.exp(-t * z)).sum()

            exact = jacobian(lambda y, g=gamma, loss=loss: loss(paper.bn(y, g)), y)
            own, same = jacobian(loss, y), jacobian(loss, paper.bn(y, gamma))
            assert_close(printed.left[i], exact.square().sum(), **EXACT)
            assert_close(printed.right[i], paper.theorem_4_1(y, own, gamma), **EXACT)
            assert_close(corrected.right[i], paper.theorem_4_1(y, same, gamma), **EXACT)

    def test_theorem_4_1_at_the_same_z_is_an_equality(self):
        printed, corrected = forms.theorem_4_1(seeded(), CASES, at="z")
        assert_close(printed.right, corrected.right, **EXACT)
        assert_close(printed.left, printed.right, **EXACT)

    def test_the_jacobian_of_normalised_outputs(self):
        """Without the term of the mean it is another one."""
        claim, _ = forms.fact_c2(seeded(), CASES)
        assert claim.violations == 0
        (y,) = same_draws(1)[0].y
        exact, values = jacobian(paper.bn, y), paper.bn(y)
        scaled = exact * y.std(correction=0)
        printed = torch.eye(len(y)) - 1 / len(y) - torch.outer(values, values) / len(y)
        assert_close(scaled, printed.double(), **EXACT)
        assert (scaled - (printed + 1 / len(y))).abs().max() > 0.01

    @pytest.mark.parametrize("gamma", [0.2, 1.0, 3.0])
    def test_theorem_4_2(self, gamma):
        printed, corrected = forms.theorem_4_2_second(seeded(), CASES, gamma=gamma)
        drawn, _ = same_draws()
        for i, (y, g, H) in enumerate(zip(drawn.y, drawn.g, drawn.hessian, strict=True)):
            g_y = bn_gradient(y, g, gamma=gamma)
            exact = form(bn_hessian(y, g, H, gamma=gamma), g_y)
            rest = (y, g, g_y, H, gamma)
            assert_close(printed.left[i], exact, **EXACT)
            assert_close(printed.right[i], paper.theorem_4_2(g, *rest), **EXACT)
            assert_close(corrected.right[i], paper.theorem_4_2(g_y, *rest), **EXACT)

    @pytest.mark.parametrize("printed_form", ["4.4", "4.4, unsquared", "17"])
    def test_theorem_4_4(self, printed_form):
        printed, _ = forms.theorem_4_4(seeded(), CASES, form=printed_form)
        drawn, generator = same_draws()
        radii = normal(generator, CASES).exp()
        for i, (y, g, radius) in enumerate(zip(drawn.y, drawn.g, radii, strict=True)):
            g_y = bn_gradient(y, g)
            assert_close(printed.left[i], radius**2 * (g_y @ g_y), **EXACT)
            right = paper.theorem_4_4(y, g, radius)[printed_form]
            assert_close(printed.right[i], right, **EXACT)


def test_for_a_squared_loss_both_readings_of_theorem_4_1_agree():
    """Its two gradients differ only along 1 and ŷ, which are projected out."""
    drawn, generator = same_draws(2000)
    gamma, target = drawn.unit.deviation, normal(generator, *drawn.y.shape)
    z = gamma[:, None] * drawn.unit.values
    own = lipschitz_gap(drawn.y, drawn.y - target, gamma=gamma).printed_bound
    same = lipschitz_gap(drawn.y, z - target, gamma=gamma)
    assert_close(own, same.printed_bound, **EXACT)
    assert_close(own, same.squared_norm, **EXACT)


class TestSubtractedTerms:
    """⟨g, ŷ⟩, "expected to be bounded away from zero", is ∂L/∂γ; so is ⟨1, g⟩ = ∂L/∂β."""

    def shares(self, scale, shift, drawn, target):
        """Of ‖g‖², by which scale and shift shorten it; squared loss."""
        g = scale[:, None] * drawn.unit.values + shift[:, None] - target
        gap = lipschitz_gap(drawn.y, g)
        return gap.scale / gap.gradient, gap.shift / gap.gradient

    def test_they_vanish_at_the_best_scale_and_shift(self):
        drawn, generator = same_draws(2000)
        target = normal(generator, *drawn.y.shape)
        best = (target * drawn.unit.values).mean(-1)
        for share in self.shares(best, target.mean(-1), drawn, target):
            assert share.max() < 1e-28

    def test_at_fixed_ones_they_do_not(self):
        drawn, generator = same_draws(2000)
        target = normal(generator, *drawn.y.shape)
        one, zero = torch.ones(2000), torch.zeros(2000)
        of_scale, _ = self.shares(one, zero, drawn, target)
        assert of_scale.median() > 0.09


def test_theorem_4_2_fails_even_where_the_scale_is_at_most_the_deviation():
    """γ ≤ σ makes g_y shorter than g, but H need not preserve that."""
    printed, _ = forms.theorem_4_2_second(seeded(), 6000, gamma=1.0)
    drawn, _ = same_draws(6000)
    assert 5 < int(printed.broken[drawn.unit.deviation >= 1].sum()) < 50


class TestTheoremC1:
    """Maxima over inputs at γ = σ, with ⟨g, ŷ⟩ > 0."""

    def largest(self, factor):
        """With batch norm, without it, and κ, for Hessians that are ``factor`` times as large."""
        drawn, _ = same_draws(2000)
        gamma, H = drawn.unit.deviation, factor * drawn.hessian
        g = drawn.g * drawn.along.sign()[:, None]
        g_y = bn_gradient(drawn.y, g, gamma=gamma)
        kappa = drawn.along.abs() * squared_norm(g_y) / (SAMPLES * gamma)
        normalised = largest_curvature(g_y, bn_hessian(drawn.y, g, H, gamma=gamma))
        return normalised.value, largest_curvature(g, H).bound, kappa

    def test_the_printed_claim(self):
        printed, _ = forms.theorem_c1(seeded(), 2000, everywhere=True)
        normalised, plain, kappa = self.largest(1)
        assert_close(printed.left, normalised, **EXACT)
        assert_close(printed.right, plain - kappa, **EXACT)

    def test_it_fails_even_without_the_subtracted_term(self):
        normalised, plain, _ = self.largest(1)
        assert int((normalised > plain * (1 + 1e-9)).sum()) > 400

    def test_how_often_depends_on_the_size_of_the_hessian(self):
        """What batch norm adds to the Hessian does not scale with H."""
        normalised, plain, kappa = self.largest(16)
        assert 0 < int((normalised > (plain - kappa) + 1e-9 * plain).sum()) < 150


def test_correlation_is_negative_only_where_the_minimum_lies_beyond_the_outputs():
    """Such a minimum asks for a larger γ, not for a smaller one."""
    printed, _ = forms.positive_correlation(seeded(), 2000)
    drawn, generator = same_draws(2000)
    minimum = random_cases(generator, 2000).y
    along = (standardise(drawn.y).values * minimum).sum(-1)
    assert 30 < printed.violations < 150
    assert (along[printed.broken] > SAMPLES).all()
