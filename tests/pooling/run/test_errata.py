"""Errata 2 to 6 of RUN's supplementary material: its printed gradient against the library's.

Equation (22) factorises the gradient of the factor form. Each test repairs all errata but one and
compares with the gradient of ``run_factor``. The size of the error is the erratum's own.
"""

from collections import Counter

import numpy as np
import pytest
import torch

from equipoise.pooling.run.factor import run_factor
from reference import run as reference

ETA = 0.5
SEEDS = range(20)


def problem(seed, N=9, D=5):
    """F, v_0 and G, standard normal."""
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape) for shape in ((N, D), (D, 1), (N, D))]


def gradient(F, v0, G, K):
    """∂⟨G, F_K⟩/∂F as the library computes it."""
    features = torch.from_numpy(F).requires_grad_()
    updated = run_factor(features, torch.from_numpy(v0[:, 0]), eta=ETA, num_steps=K)
    return torch.autograd.grad(updated, features, torch.from_numpy(G))[0].numpy()


def errors(K, change, terms=range(5)):
    """Relative errors of the repaired factors after a change, over the seeds."""
    found = []
    for seed in SEEDS:
        F, v0, G = problem(seed)
        factors = reference.repaired_factors(F, v0, ETA, K) | change(F, v0, K)
        exact = gradient(F, v0, G, K)
        printed = reference.sandwich_gradient(factors, G, terms)
        found.append(np.linalg.norm(printed - exact) / np.linalg.norm(exact))
    return found


def nothing(F, v0, K):
    return {}


def printed(name):
    return lambda F, v0, K: {name: dict(reference.printed_factors(F, v0, ETA, K))[name]()}


def test_with_all_repairs_one_step_is_exact():
    assert max(errors(1, nothing)) < 1e-12


@pytest.mark.parametrize(
    ("K", "least", "most"), [(2, 0.13, 0.34), (3, 0.22, 0.57), (4, 0.26, 0.88)]
)
def test_erratum_2_more_steps_need_powers_that_commute(K, least, most):
    """(20): dv_K = K Mᴷ⁻¹ dM v_0 needs dM and M to commute. The median of twenty."""
    assert least < np.median(errors(K, nothing)) < most


def test_erratum_3_one_label_is_missing_and_one_is_double():
    """(22), row l_1^1: its right factor is labelled r_1^2."""
    F, v0, _ = problem(0)
    names = Counter(name for name, _ in reference.printed_factors(F, v0, ETA, 1))
    assert [name for name, count in names.items() if count > 1] == ["r12"]
    assert set(reference.repaired_factors(F, v0, ETA, 1)) == set(names) | {"r11"}


def test_erratum_4_a_wrong_factor_is_wrong_by_half_to_four_times_the_gradient():
    """(22), row l_1^2: r_1^2 = F v_0 v_Kᵀ, not F v_K v_Kᵀ; worse by the eigenvalue to the K."""
    found = [errors(K, printed("r12")) for K in (1, 2, 3)]
    assert min(found[0]) > 0.4
    medians = [np.median(values) for values in found]
    assert 0.5 < medians[0] < 4
    assert medians[1] > 10 * medians[0]
    assert medians[2] > 10 * medians[1]


@pytest.mark.parametrize("name", ["r31", "r41", "r32", "r42"])
def test_erratum_5_factors_do_not_multiply(name):
    """(22), rows 3 and 4: a scalar was split between the factors."""
    with pytest.raises(ValueError, match="mismatch in its core dimension"):
        errors(2, printed(name))


class TestErratum6:
    """(25) and (26) sum i = 1 … 5 over a family that (21) numbers 0 … 4."""

    def test_there_is_no_fifth_term(self):
        with pytest.raises(KeyError, match="l51"):
            errors(1, nothing, terms=range(1, 6))

    def test_the_zeroth_term_is_about_all_of_the_gradient(self):
        """It is G (I − ηP)."""
        found = errors(1, nothing, terms=range(1, 5))
        assert min(found) > 0.7
        assert max(found) < 1.3
