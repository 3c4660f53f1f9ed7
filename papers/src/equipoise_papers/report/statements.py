"""Theorems that no experiment measures, judged by the tests of the two distributions.

Each statement names the test that decides it; ``tests/report/test_statements.py`` checks that the
test is there.
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise_papers.experiments.verdict import Check


@dataclass(frozen=True, slots=True)
class DecidedByTest:
    """A statement of a paper that tests decide.

    Args:
        says: The statement.
        holds: Whether it is right as printed.
        found: What the test shows, in numbers.
        test: Path and name of the test, from the root of the repository.
    """

    says: str
    holds: bool
    found: str
    test: str

    def check(self) -> Check:
        """As a check of a report."""
        return Check(self.says, f"{self.found} ({self.test})", self.holds)


_THEORY = "tests/theory"
_INTEGRAL = (
    f"{_THEORY}/batch_norm/fixed_point/test_solve.py"
    "::test_every_number_is_within_its_error_of_the_double_integral"
)
YANG2019 = (
    DecidedByTest(
        "Theorem 1, eigenspaces of ultrasymmetric operators",
        True,
        "all eigenvalues of random operators, B from 4",
        f"{_THEORY}/covariance/test_operators.py::TestUltrasymmetric::test_spectrum_on_symmetric_matrices",
    ),
    DecidedByTest(
        "Theorem 2, the map of covariances for positive-homogeneous activations (Laplace)",
        True,
        "agrees with simulation; rank > 2α is not needed: right at rank 2 with α = 2 too",
        f"{_THEORY}/covariance/test_bn_map.py::TestMethodsAgree::test_simulation",
    ),
    DecidedByTest(
        "Theorem 4, the fixed point as integrals, from B = 4 on",
        True,
        "equal to 10⁻¹¹ for every activation tried",
        _INTEGRAL,
    ),
    DecidedByTest(
        "Theorem 5, ReLU's fixed point in closed form",
        True,
        "agrees with quadrature, B = 4 to 1,000",
        f"{_THEORY}/batch_norm/fixed_point/test_critical_eps.py::TestFixedPoint::test_relu",
    ),
    DecidedByTest(
        "Theorem 6, ReLU's forward eigenvalues in closed form",
        True,
        "agree with quadrature",
        f"{_THEORY}/batch_norm/spectra/test_formulas.py"
        "::TestClosedForms::test_they_are_what_quadrature_finds",
    ),
    DecidedByTest(
        "Theorem 7, λ_G as a double integral, which needs B from 4 on (not stated)",
        True,
        "the printed integral agrees with the library to 10⁻¹¹; it has no value at B = 3",
        _INTEGRAL,
    ),
    DecidedByTest(
        "Theorem 8, closed forms of λ_G for positive-homogeneous activations",
        True,
        "agree with quadrature, B from 4",
        f"{_THEORY}/batch_norm/test_explosion.py::TestHomogeneous::test_closed_form_equals_quadrature",
    ),
    DecidedByTest(
        "Theorem 9, λ_G by Gegenbauer coefficients",
        True,
        "agrees with integrals in thirty digits",
        f"{_THEORY}/batch_norm/fixed_point/test_solve.py"
        "::test_smooth_activations_match_theorem_9_in_thirty_digits",
    ),
    DecidedByTest(
        "Theorem 9, λ_G > 1: gradients explode under every activation",
        True,
        "no activation tried is below (B − 2)/(B − 3), the rate of straight lines",
        f"{_THEORY}/batch_norm/test_explosion.py::test_no_smooth_activation_beats_the_identity",
    ),
    DecidedByTest(
        "λ_G dominates λ_L and λ_M, and the traces add up",
        True,
        "for every activation of the table",
        f"{_THEORY}/batch_norm/spectra/test_formulas.py::TestInvariants::test_g_dominates_and_traces_add_up",
    ),
    DecidedByTest(
        "Theorem 3, argument Σ⁻¹ + 2iλG/B",
        False,
        "its inverse is meant: for the identity the trace is not B without it",
        f"{_THEORY}/covariance/test_bn_map.py::TestIdentity::test_erratum_2_without_the_inverse_it_is_not",
    ),
    DecidedByTest(
        "Proposition B.69, 1/B terms of the forward eigenvalues",
        False,
        "right for α = 1 alone: −9.4907 at α = 2, printed −1.4907",
        f"{_THEORY}/batch_norm/spectra/test_formulas.py"
        "::TestClosedForms::test_large_batch_expansion_of_the_forward_eigenvalues",
    ),
    DecidedByTest(
        "Corollary B.70, forward λ_L > λ_M, where it stands: α-ReLU, α ≥ 1, large batches",
        True,
        "not for α < 1 or other activations: tanh at B = 16 has 0.480 against 0.887",
        f"{_THEORY}/batch_norm/spectra/test_formulas.py"
        "::TestClosedForms::test_either_forward_eigenvalue_may_be_the_larger",
    ),
    DecidedByTest(
        "Lemma B.59, eigenvector BSB1(w−u, wv)",
        False,
        "BSB1(u−w, 2v), which the display has",
        f"{_THEORY}/covariance/test_operators.py::TestDOS::test_the_eigenvector_as_printed_is_none",
    ),
    DecidedByTest(
        "Proposition I.7, derivative of the two-sided kernel",
        False,
        "0.79721 at α = 1, b = 0.2, c = 0.37; printed 1.24079",
        f"{_THEORY}/covariance/test_kernels.py::TestErrata::test_erratum_3_derivative_of_the_two_sided_kernel",
    ),
)
_HESSIAN = "tests/preconditioners/hessian/test_errata.py"
LANGE2022 = (
    DecidedByTest(
        "Algorithms 2 and 3 apply PPᵀ",
        True,
        "equal to the explicit product, with step 5 after step 4",
        "tests/preconditioners/bnp/test_equality.py::TestPaperPreset::test_dense",
    ),
    DecidedByTest(
        "Proposition 7, one step of BN without gradients through statistics is one of BNP",
        True,
        "equal to 10⁻¹², also for three stacked layers",
        "tests/preconditioners/bnp/test_equality.py"
        "::test_proposition_7_one_step_of_batch_norm_is_one_step_of_bnp",
    ),
    DecidedByTest(
        "Theorem 3, the Hessian under preconditioning is ĜᵀSĜ",
        True,
        "equal to 10⁻¹² to the Hessian in the other coordinates",
        "tests/preconditioners/hessian/test_blocks.py"
        "::TestHessianBlock::test_preconditioning_is_the_hessian_in_other_coordinates",
    ),
    DecidedByTest(
        "Proposition 6, 4nN + 6nm + 2m + 8n operations for a step",
        True,
        "counted one by one, m fewer; 5nm where q² goes into σ̃² first",
        "papers/tests/lange2022/test_proposition_6.py::test_operations_are_as_printed",
    ),
    DecidedByTest(
        "Lemma 8, a convolution is linear in its weights, by the matrix of (16) and (18)",
        True,
        "equal to PyTorch's convolution; columns of (16) in the order of its example",
        "papers/tests/lange2022/test_lemma_8.py::test_a_convolution_is_a_matrix_times_its_weights",
    ),
    DecidedByTest(
        "Theorem 1, local rate",
        True,
        "0.3998 seen, 0.39988 predicted; needs α < 2/λ_max",
        "papers/tests/lange2022/test_theorem_1.py::TestErratum12::test_numbers",
    ),
    DecidedByTest(
        "Proposition 10, bound for the means of channels",
        True,
        "attained, ratio 1",
        f"{_HESSIAN}::TestErratum9::test_the_bound_for_means_is_attained",
    ),
    DecidedByTest(
        "Theorem 4, with full column rank centring never worsens the condition number, and "
        "scaling comes within √(n + 1) of the best scaling",
        True,
        "on all of 300 random matrices; scaling itself may worsen it, from 9.96 to 11.19 for one "
        "of 5 × 3; with fewer rows than columns, as in Fig. 8, centring may: H = 2I₂ goes from "
        "1.2247 to 1.4142",
        "papers/tests/lange2022/test_theorem_4.py::TestTheorem4::test_no_violation_with_full_rank",
    ),
    DecidedByTest(
        "Proposition 11, κ(ĤᵀSĤ) ≤ κ(Ĥ)²κ(S) for definite S",
        True,
        "holds for each of the definite S tried",
        f"{_HESSIAN}::TestErratum3::test_definite_curvature_does_not",
    ),
    DecidedByTest(
        "Section 3.3, κ(∇²L) ≤ κ(Ĥ)²κ(S) for every network",
        False,
        "ReLU makes S singular, which Proposition 11 excludes: 40,002 against a bound of 2",
        f"{_HESSIAN}::TestErratum3::test_singular_curvature_breaks_the_bound",
    ),
    DecidedByTest(
        "Proposition 5, from mean 0 and variance 1",
        False,
        "14.5 instead of 2 at 500 × 500; needs a fourth moment",
        "papers/tests/lange2022/test_proposition_5.py::TestProof::test_mean_0_and_variance_1_do_not_suffice",
    ),
    DecidedByTest(
        "Proposition 9, the Hessian of a convolution: S in blocks, one per sample",
        True,
        "equal to automatic differentiation, with inputs of layer ℓ − 1",
        "tests/preconditioners/hessian/test_blocks.py::TestHessianBlock::test_convolution",
    ),
    DecidedByTest(
        "Proposition 2, the Hessian of a dense layer: S diagonal, for a loss of single inputs",
        True,
        "equal to automatic differentiation; with batch norm downstream, which couples inputs, "
        "95 % of S lies off its diagonal",
        "tests/preconditioners/hessian/test_blocks.py::TestHessianBlock::test_dense",
    ),
    DecidedByTest(
        "P improves the condition number by about κ(D)²",
        False,
        "no estimate of the gain, and no bound on it either",
        "tests/preconditioners/hessian/test_conditions.py"
        "::TestBlockConditions::test_kappa_of_d_does_not_bound_the_gain",
    ),
)
_RUN = "tests/pooling/run"
YU2020 = (
    DecidedByTest(
        "(18), the differential of F_K",
        True,
        "exact at K = 1 with all repairs",
        f"{_RUN}/test_errata.py::test_with_all_repairs_one_step_is_exact",
    ),
    DecidedByTest(
        "(20), dv_K = K (FᵀF)^(K−1) […] v₀",
        False,
        "needs the sum over positions of the differential; gradients err by 0.13 to 0.88",
        f"{_RUN}/test_errata.py::test_erratum_2_more_steps_need_powers_that_commute",
    ),
    DecidedByTest(
        "(22), r₁² = F v_K v_Kᵀ",
        False,
        "F v₀ v_Kᵀ: wrong by half to four times the gradient at K = 1",
        f"{_RUN}/test_errata.py"
        "::test_erratum_4_a_wrong_factor_is_wrong_by_half_to_four_times_the_gradient",
    ),
    DecidedByTest(
        "(22), rows 3 and 4",
        False,
        "shapes do not multiply",
        f"{_RUN}/test_errata.py::test_erratum_5_factors_do_not_multiply",
    ),
)
