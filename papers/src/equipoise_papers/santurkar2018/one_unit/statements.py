"""The paper's statements about one unit: as printed, as corrected, and how often each fails.

Every statement draws random cases and evaluates both forms on them. How often a printed form
fails depends on the distribution of the cases (``claims.random_cases``); a corrected form never
fails.

References:
    [santurkar2018], Section 4 and Appendix C.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from equipoise_papers.checks import whole_number
from equipoise_papers.santurkar2018.one_unit import printed_and_corrected as forms
from equipoise_papers.santurkar2018.one_unit.printed_and_corrected import PrintedAndCorrected


@dataclass(frozen=True, slots=True)
class StatementCheck:
    """How often a statement fails on random cases.

    Args:
        name: Of the statement.
        cases: In how many the printed form was tried: those drawn that its premise allows.
        printed_violations: Number of cases in which the printed form fails.
        corrected_violations: Number of cases in which the corrected form fails.
        worst_factor: Largest factor by which the printed form's right side is exceeded; 1 if it
            never is, infinite if a right side of 0 or less is.
    """

    name: str
    cases: int
    printed_violations: int
    corrected_violations: int
    worst_factor: float


@dataclass(frozen=True, slots=True)
class Statement:
    """One sentence of the paper.

    Args:
        name: Where it is printed, and how it is read.
        printed: What is printed.
        corrected: What is true.
        claims: Draws cases and returns the printed and the corrected claim.
        ours: Whether the sentence is not the paper's: another reading of one, or a repair by half.
    """

    name: str
    printed: str
    corrected: str
    claims: Callable[[torch.Generator, int], PrintedAndCorrected]
    ours: bool = False

    def check(self, generator: torch.Generator, cases: int = 2000) -> StatementCheck:
        """Count violations of both forms.

        Args:
            generator: Source of the cases.
            cases: How many, at least 1.

        Raises:
            ValueError: If there are no cases.

        Examples:
            >>> found = statement("Theorem 4.4").check(torch.Generator().manual_seed(0), 100)
            >>> found.printed_violations > 0, found.corrected_violations
            (True, 0)
        """
        cases = whole_number("cases", cases, 1)
        printed, corrected = self.claims(generator, cases)
        return StatementCheck(
            self.name,
            len(printed.left),
            printed.violations,
            corrected.violations,
            printed.worst_factor,
        )


def statement(name: str) -> Statement:
    """Look a statement up by name.

    Raises:
        ValueError: If there is none.
    """
    found = {each.name: each for each in STATEMENTS}
    if name not in found:
        raise ValueError(f"no statement is called {name!r}; there are: {'; '.join(found)}.")
    return found[name]


_SAME_Z = "equality at ε = 0, with g the gradient handed down at the same z"
_SECOND = (
    "gradient-direction curvature ≤ γ²/σ² (gᵀHg - ⟨g,ŷ⟩‖g_y‖²/(mγ))",
    "equality with g_yᵀHg_y in the place of gᵀHg",
)
_MINIMAX = "ĝ = γ²/σ² (g - λ²m μ_g² - λ²⟨g,ŷ⟩²/m), g = λ²‖g‖², with g_y held fixed"
_C1 = "at XXᵀ = λ²I: equality with g_yᵀHg_y in the place of gᵀHg; in general no sign"

# In the paper's order.
STATEMENTS: tuple[Statement, ...] = (
    Statement(
        "Fact C.1",
        "∇_y L̂ = γ/(mσ) (mg - 1⟨1,g⟩ - ŷ⟨g,ŷ⟩)",
        "as printed, also at ε > 0",
        forms.fact_c1,
    ),
    Statement(
        "Fact C.2",
        "∂ŷ_b/∂y_k = (1[b=k] - 1/m - ŷ_bŷ_k/m)/σ",
        "as printed, also at ε > 0",
        forms.fact_c2,
    ),
    Statement(
        "Theorem 4.1",
        "‖∇_y L̂‖² ≤ γ²/σ² (‖∇_y L‖² - ⟨1,∇_y L⟩²/m - ⟨∇_y L,ŷ⟩²/m), both at the same z, as the "
        "proof has it",
        _SAME_Z,
        partial(forms.theorem_4_1, at="z"),
    ),
    Statement(
        "Theorem 4.1, own activations, γ = σ",
        "the same with each network at its own activations, which the proof excludes; logistic "
        "loss",
        _SAME_Z,
        partial(forms.theorem_4_1, at="y", matched=True),
        ours=True,
    ),
    Statement(
        "Theorem 4.1, own activations, γ = 1",
        "the same with γ = 1",
        _SAME_Z,
        partial(forms.theorem_4_1, at="y"),
        ours=True,
    ),
    Statement(
        "Theorem 4.1, ε > 0",
        "‖g_y‖² ≤ γ²/σ² (‖g‖² - ⟨1,g⟩²/m - ⟨g,ŷ⟩²/m) at the same z",
        "equality with (2 - ‖ŷ‖²/m)⟨g,ŷ⟩²/m as last term",
        partial(forms.theorem_4_1_eps, eps=0.1),
        ours=True,
    ),
    Statement(
        "After Theorem 4.1",
        "⟨g,ŷ⟩ is rarely zero; logistic loss",
        "⟨g,ŷ⟩ = ∂L/∂γ",
        forms.rarely_uncorrelated,
    ),
    Statement(
        "After Theorem 4.1, best γ and β",
        "⟨g,ŷ⟩ is not zero at the best γ and β of a squared loss either",
        "⟨g,ŷ⟩ = ∂L/∂γ, which is zero there",
        forms.stationary_scale,
        ours=True,
    ),
    Statement(
        "Theorem 4.2, first display",
        "g_yᵀ(∇²L̂)g_y ≤ γ²/σ² g_yᵀHg_y - γ/(mσ²)⟨g,ŷ⟩‖g_y‖²",
        "equality at ε = 0",
        forms.theorem_4_2_first,
    ),
    Statement(
        "Theorem 4.2, second display",
        f"if ‖g_y‖_H ≤ ‖g‖_H, which the proof uses: {_SECOND[0]}",
        _SECOND[1],
        partial(forms.theorem_4_2_second, gamma=1.0, premise="norms under H"),
    ),
    Statement(
        "Theorem 4.2, second display, literal premise",
        f"if H keeps the order of ‖g_y‖ and ‖g‖ (“preserves the relative norms”), γ = 3: "
        f"{_SECOND[0]}",
        _SECOND[1],
        partial(forms.theorem_4_2_second, gamma=3.0, premise="order kept"),
        ours=True,
    ),
    *(
        Statement(
            f"Theorem 4.2, second display, no premise, γ = {gamma:g}",
            _SECOND[0],
            _SECOND[1],
            partial(forms.theorem_4_2_second, gamma=gamma),
            ours=True,
        )
        for gamma in (0.2, 1.0, 3.0)
    ),
    Statement(
        "After Theorem 4.2",
        "⟨ŷ,g⟩ > 0 as long as -g points to the minimum",
        "convexity gives ⟨g, z - z*⟩ ≥ 0",
        forms.positive_correlation,
    ),
    Statement(
        "Theorem 4.4",
        "ĝ ≤ γ²/σ² (g² - m μ_g² - λ²⟨g,ŷ⟩²)",
        _MINIMAX,
        partial(forms.theorem_4_4, form="4.4"),
    ),
    Statement(
        "Theorem 4.4, g for g²",
        "ĝ ≤ γ²/σ² (g - m μ_g² - λ²⟨g,ŷ⟩²)",
        _MINIMAX,
        partial(forms.theorem_4_4, form="4.4, unsquared"),
        ours=True,
    ),
    Statement(
        "Equation (17)",
        "ĝ ≤ λ²γ²/σ² (‖g‖² - ⟨1,g⟩²/m - ⟨g,ŷ⟩²/√m)",
        _MINIMAX,
        partial(forms.theorem_4_4, form="17"),
    ),
    Statement(
        "Equation (58)",
        "max over ‖X‖ ≤ λ of gᵀKHKg, K = XXᵀ, is λ⁴gᵀHg",
        "it is the maximum over a sphere, attained by X of rank one",
        forms.equation_58,
    ),
    Statement(
        "Theorem C.1",
        "largest curvature with BN < γ²/σ² (largest without - λ⁴κ); γ = σ, ⟨g,ŷ⟩ > 0, H ⪰ 0",
        _C1,
        partial(forms.theorem_c1, everywhere=True),
    ),
    Statement(
        "Theorem C.1, XXᵀ = λ²I",
        "the same with K = λ²I in both networks",
        _C1,
        partial(forms.theorem_c1, everywhere=False),
    ),
    Statement(
        "Observation 4.3, activations",
        "γ = σ and β = μ reproduce the activations",
        "as printed, for one batch, where σ > 0",
        forms.same_activations,
    ),
    Statement(
        "Observation 4.3, minima",
        "all minima are preserved; least squares without a bias",
        "with a bias in the layer without BN",
        forms.preserved_minima,
    ),
    Statement(
        "Lemma 4.5",
        "‖W_0 - Ŵ*‖² ≤ ‖W_0 - W*‖² - (‖W*‖² - ⟨W*,W_0⟩)²/‖W*‖²",
        "equality for Ŵ* = kW*, k = ⟨W*,W_0⟩/‖W*‖² > 0",
        partial(forms.nearest_optimum, per_unit=False),
    ),
    Statement(
        "Lemma 4.5, closest optimum",
        "kW* is the closest optimum with BN",
        "scaling every row by itself comes closer still",
        partial(forms.nearest_optimum, per_unit=True),
        ours=True,
    ),
    Statement(
        "Proof of Lemma 4.5, ε = 0",
        "BN(aWx) = BN(Wx), hence ⟨w, ∇_w L̂⟩ = 0 row by row",
        "as printed",
        partial(forms.scale_invariance, eps=0.0),
    ),
    Statement(
        "Proof of Lemma 4.5, ε = 1e-5",
        "the same with PyTorch's default ε",
        "⟨w, ∇_w L̂⟩ = γε⟨g,ŷ⟩/σ²",
        partial(forms.scale_invariance, eps=1e-5),
        ours=True,
    ),
)
