"""Brackets, formulas, simulation and the library agree on every eigenvalue.

``tests/reference/brackets.py`` uses no collapsed formula. Here the paper's formulas, transcribed,
and random neurons meet it and the library; twins show that each comparison can fail.
"""

import math
from functools import cache

import numpy as np
import pytest
import torch
from mpmath import mp
from torch.nn import functional as F

from equipoise.theory import Setting, backward_spectrum, cross_batch
from equipoise.theory.batch_norm.fixed_point.closed_form import closed_form
from equipoise.theory.batch_norm.fixed_point.solve import solve_by_quadrature
from equipoise.theory.covariance.operators import Brackets, UltrasymmetricOperator
from reference.brackets import (
    ACTIVATIONS,
    TEN,
    Radial,
    Samples,
    eigenvalues,
    layer,
    nodes_for,
    section_6_brackets,
    spectra,
    spectra_with_eps,
)
from reference.mean_field import PairLaw, Real, law_of, pair_law

WAYS = [f"{way}_{space}" for way in ("forward", "backward") for space in "GLM"]


@cache
def exact(name, B):
    return spectra(ACTIVATIONS[name], B)


def named(solution):
    """The library's numbers under the reference's names."""
    numbers = {"q": solution.q, "kappa": solution.kappa}
    numbers |= {"cross_c": solution.cross_covariance, "cross_rate": solution.cross_rate}
    for way, triple in (("backward", solution.backward), ("forward", solution.forward)):
        numbers |= {f"{way}_{space}": part for space, part in zip("GLM", triple, strict=True)}
    return numbers


def assert_same(ours, expected, names, tolerance):
    for name in names:
        assert abs(ours[name] - expected[name]) <= tolerance, name


@pytest.mark.parametrize("B", [4, 6, 9])
def test_ten_brackets_make_the_operator_s_eigenvalues(B):
    """Section 2; the operator itself is held against dense matrices in its own tests."""
    values = np.random.default_rng(0).normal(size=10)
    ours = UltrasymmetricOperator(B, Brackets(*values)).centred_eigenvalues()
    expected = eigenvalues(dict(zip(TEN, values, strict=True)), B)
    np.testing.assert_allclose(ours, np.array(expected, dtype=float), atol=1e-12)


def test_further_samples_have_the_moments_of_the_sphere():
    """E[w_i w_j w_k w_l] is n/(n + 2) times what a Gaussian of the same covariance has."""
    B, n = 6, Real(5)
    samples = nodes_for(ACTIVATIONS["tanh"], B, 40)
    for wanted, expected in [
        ((3,), 0),
        ((3, 3), 1),
        ((1, 3), -1 / n),
        ((3, 4), -1 / n),
        ((1, 1, 1, 1), n / (n + 2) * 3),
        ((1, 2, 3, 3), n / (n + 2) * (2 / n**2 - 1 / n)),
        ((1, 2, 3, 4), n / (n + 2) * 3 / n**2),
    ]:
        moment = (samples.law.weights * samples.product(*wanted)).sum()
        assert abs(moment - expected) < 1e-17


def kernel(alpha, a, b, c):
    """J_φ(c) and J_φ′(c) of Section 12 for φ = a ρ_α(x) - b ρ_α(-x), by hypergeometric series."""

    def one_sided(power, c):
        front = 1 / (2 * mp.sqrt(mp.pi) * mp.gamma(power + 0.5))
        half = mp.mpf(power) / 2
        even = mp.gamma(half + 0.5) ** 2 * mp.hyp2f1(-half, -half, 0.5, c * c)
        odd = mp.gamma(half + 1) ** 2 * mp.hyp2f1(0.5 - half, 0.5 - half, 1.5, c * c)
        return front * (even + 2 * c * odd)

    def both(power, sign):
        return (a * a + b * b) * one_sided(power, c) + sign * 2 * a * b * one_sided(power, -c)

    derivative = (2 * alpha + 1) / (1 - c * c) * (both(alpha + 1, 1) - c * both(alpha, -1))
    return both(alpha, -1), derivative


@pytest.mark.parametrize("B", [4, 5, 6, 8, 16])
class TestClosedForms:
    """Section 7, and Section 8's cross-batch constant and rate."""

    @pytest.mark.parametrize(
        ("name", "alpha", "a", "b"),
        [
            ("identity", 1.0, 1, 1),
            ("relu", 1.0, 1, 0),
            ("leaky_relu(0.2)", 1.0, 1, mp.mpf(1) / 5),
            ("alpha_relu(1.5)", 1.5, 1, 0),
        ],
    )
    def test_homogeneous(self, name, alpha, a, b, B):
        J, slope = kernel(alpha, a, b, mp.mpf(-1) / (B - 1))
        J1, D = mp.mpf(a * a + b * b), a * a + b * b - J
        n, wide, ratio = B - 1, B - 1 + 2 * alpha, slope / D
        along_g = alpha**2 * ((B - 2) * J1 + (2 * alpha - 1) * J)
        along_g += (B - 3 + 2 * alpha) * (2 * alpha - 1) * slope / n
        along_l = alpha**2 * (3 * B - 4) + alpha * n * (3 * B - 8) + (B - 3) * n**2
        along_l = 2 * along_l / n * ratio - 2 * alpha**2 * (B - 2) * (B - 1 + alpha)
        along_l = along_l / ((B - 3) * n * wide)
        front = alpha**2 * (B - 2) * (B - 3 + 2 * alpha) / ((2 * alpha - 1) * (B - 3) * n)
        along_m = B * (B**2 + 2 * (alpha - 2) * B + 2 * alpha * (alpha - 3) + 3)
        c_alpha = 2 ** (alpha - 1) * mp.gamma(alpha + 0.5) / mp.sqrt(mp.pi)
        K = c_alpha * mp.gamma(n / 2) / mp.gamma(n / 2 + alpha) * (mp.mpf(n) / 2) ** alpha
        mean = mp.gamma(n / 2) * mp.gamma((alpha + 1) / 2) / mp.gamma((alpha + n) / 2)
        beta = mp.beta(alpha / 2, B / 2)
        expected = {
            "q": K * J1,
            "kappa": K * D,
            "forward_L": alpha * (B - 2) / wide + B * ratio / (n * wide),
            "forward_M": B * ratio / wide,
            "backward_G": along_g / ((2 * alpha - 1) * (B - 3) * D),
            "backward_L": along_l + front * J1 / D,
            "backward_M": along_m * ratio / ((B - 3) * n * wide),
            "cross_c": (a - b) ** 2 / (4 * mp.pi) * n**alpha * mean**2,
            "cross_rate": B
            * n ** (alpha - 1)
            * alpha**2
            * (a + b) ** 2
            / (8 * mp.pi * K * D)
            * beta**2,
        }
        expected = {k: float(v) for k, v in expected.items()}
        assert_same(exact(name, B), expected, expected, 2e-15)
        ours = named(closed_form(Setting(name, B)))
        for quantity, value in expected.items():
            assert abs(ours[quantity].value - value) <= ours[quantity].error + 2e-15, quantity


SAMPLE = [("tanh", 4), ("gelu", 5), ("relu", 6), ("hardtanh", 5), ("softplus", 8), ("elu(1)", 4)]


@pytest.mark.parametrize(("name", "B"), SAMPLE)
class TestConsistency:
    def test_trace(self, name, B):
        """λ_G + (B - 1) λ_L + B(B - 3)/2 λ_M is one average (Section 6)."""
        f, kappa = ACTIVATIONS[name], exact(name, B)["kappa"]
        n, law = B - 1, law_of(f, B)
        one, two = (n - z**2 for z in (law.z1, law.z2))
        D1, D2 = f.slope(law.z1), f.slope(law.z2)
        inner = 2 * D1**2 * one**2 + n * D1 * D2 * (one * two + (1 + law.z1 * law.z2) ** 2)
        expected = (law.weights * inner).sum() / (2 * kappa * (B - 3))
        assert backward_spectrum(name, B).trace == pytest.approx(float(expected), rel=1e-11)

    def test_either_order_of_the_jacobian(self, name, B):
        """Brackets with slopes at the input and at the output belong to adjoint operators."""
        f, samples = ACTIVATIONS[name], nodes_for(ACTIVATIONS[name], B, 100)
        ours = layer(f, samples, Real(1)).backward
        other = section_6_brackets(f, samples)
        assert max(abs(a - other[k]) for k, a in zip(TEN, ours, strict=True)) > 1e-3
        pairs = zip(
            eigenvalues(dict(zip(TEN, ours, strict=True)), B), eigenvalues(other, B), strict=True
        )
        assert all(abs(a - b) < 1e-12 for a, b in pairs)

    def test_cross_batch_rates_agree(self, name, B):
        """The library has one number for both ways; the reference computes them apart."""
        ours, reference = cross_batch(name, B).forward, exact(name, B)
        for quantity in ("cross_rate", "cross_rate_backward"):
            assert abs(ours.value - float(reference[quantity])) <= ours.error + 1e-14


def section_10(f, B, eps, kappa, count):
    """The collapsed formulas, at any κ."""
    n, radial = B - 1, Radial(f, B, eps, kappa * np.array([Real(0.9), Real(1.1)]), count)
    law = nodes_for(f, B, count).law
    z1, z2 = law.z1, law.z2
    a2, b2, ab, ss = z1**2 / B, z2**2 / B, z1 * z2 / B, (z1 + z2) ** 2 / B
    curly = ab + ss / (B - 2) + (ss + a2 + b2 - 1) / Real((B - 2) * (B - 3))
    x, p = radial.law_of_x(kappa)
    total = dict.fromkeys(WAYS, Real(0))
    for weight, x_, R2, s2 in zip(p, x, radial.R2, radial.s2, strict=True):
        R = np.sqrt(R2)
        one, two, D1, D2 = *map(f.value, (R * z1, R * z2)), *map(f.slope, (R * z1, R * z2))
        tau = 1 - (1 - R2) ** 2
        P11, P12 = 1 - 1 / Real(B) - R2 * a2, -1 / Real(B) - R2 * ab
        g = 1 / Real(B**2) - 2 * R2 * a2 / (B * n) + R2**2 * a2 * (1 - a2) / n
        h = 1 / Real(B**2) - R2 * ss / (B * (B - 2)) + R2**2 * ab * (1 - a2 - b2) / (B - 2)
        shape = 1 - R2 * (a2 + b2 + ss / (B - 2)) + 2 * R2**2 * ab * curly
        on_l = one**2 * (z1**2 - 1) - Real(2 * n) / (B - 2) * one * two * (z1**2 - 1)
        on_g = (n - tau * z1**2) * D1**2 + (1 + tau * z1 * z2) * D1 * D2
        for way, scale, inner in [
            ("forward_G", (x_ - n) / (2 * kappa), one**2 - one * two),
            ("forward_L", x_ / n / (2 * kappa), on_l),
            ("forward_M", x_ / (B * kappa), one * two * curly * B),
            ("backward_G", 1 / (B * s2), on_g),
            ("backward_L", 1 / s2, D1**2 * (P11**2 - g) - 2 * D1 * D2 * (P11 * P12 - h)),
            ("backward_M", 1 / s2, D1 * D2 * shape),
        ]:
            total[way] += weight * scale * (law.weights * inner).sum()
    return total


class TestWithEps:
    @pytest.mark.parametrize(("name", "B", "eps"), [("tanh", 4, 0.1), ("gelu", 5, 1e-3)])
    def test_section_10(self, name, B, eps):
        """Its collapsed formulas give what brackets and library give; at another ε they do not."""
        f = ACTIVATIONS[name]
        reference = spectra_with_eps(f, B, eps, count=40)
        collapsed = section_10(f, B, eps, reference["kappa"], 40)
        assert_same(reference, collapsed, WAYS, 1e-13)
        ours = named(solve_by_quadrature(Setting(name, B, eps=eps)))
        for quantity in WAYS:
            distance = abs(ours[quantity].value - float(collapsed[quantity]))
            assert distance <= ours[quantity].error + 1e-13, quantity
        other = section_10(f, B, 1.1 * eps, reference["kappa"], 20)
        assert abs(ours["backward_G"].value - other["backward_G"]) > 1e-4

    @pytest.mark.parametrize(("name", "B", "eps"), [("tanh", 4, 0.1), ("gelu", 8, 1e-6)])
    def test_cross_batch_rates_agree(self, name, B, eps):
        ours = cross_batch(name, B, eps=eps).forward
        reference = spectra_with_eps(ACTIVATIONS[name], B, eps, count=40)
        for quantity in ("cross_rate", "cross_rate_backward"):
            assert abs(ours.value - float(reference[quantity])) <= ours.error + 1e-13


def simulate(activation, B, eps, kappa, channels):
    """Every quantity through torch's batch norm and autograd, per channel; no theory but κ.

    Forward rates pull f f^T : Δ back to h and move h by ΔGh/(2κ), which moves its covariance by Δ.
    """
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(B, channels, generator=generator, dtype=torch.float64) * math.sqrt(kappa)
    h.requires_grad_()
    f = activation(F.batch_norm(h, None, None, training=True, eps=eps))

    def pull(cotangent):
        """J^T applied to one vector, or to one per channel."""
        cotangent = cotangent if cotangent.dim() == 2 else cotangent[:, None].expand_as(f)
        return torch.autograd.grad(f, h, cotangent, retain_graph=True)[0]

    n, e = B - 1, torch.eye(B, dtype=torch.float64)
    G = e - 1 / B
    u, v = e[0] - e[1], e[2] - e[3]
    pulled = [pull(column) for column in G]
    a, b, Ju, Jv = pulled[0], pulled[1], pull(u), pull(v)
    spread = torch.stack([G[0] @ a, G[1] @ a, G[0] @ b, G[1] @ b]) ** 2
    D = torch.outer(G[0], G[0]) - torch.outer(G[1], G[1])
    with torch.no_grad():
        values = {
            "q": (f**2).mean(0),
            "qc": (f.sum(0) ** 2 - (f**2).sum(0)) / (B * n),
            "weight_gradient": (u @ f) ** 2 / 2,
            "mean": f.mean(0),
            "mean_jacobian": sum(column @ g for column, g in zip(G, pulled, strict=True)) / n,
            "backward_G": sum((g**2).sum(0) for g in pulled) / n,
            "backward_L": (spread[0] - spread[1] - spread[2] + spread[3]) / (D**2).sum(),
            "backward_M": ((u @ Ju) * (v @ Jv) + (u @ Jv) * (v @ Ju)) / 4,
        }
    for space, Delta in {"G": G, "L": D, "M": torch.outer(u, v) + torch.outer(v, u)}.items():
        pushed = 2 * pull((Delta @ f).detach()) * (Delta @ h).detach() / (2 * kappa)
        values[f"forward_{space}"] = pushed.sum(0) / (Delta**2).sum()
    return {
        key: (float(value.mean()), float(value.std()) / math.sqrt(channels))
        for key, value in values.items()
    }


@pytest.mark.parametrize(
    ("name", "activation", "eps"),
    [("gelu", F.gelu, 0.0), ("tanh", torch.tanh, 0.1), ("relu", F.relu, 0.1)],
)
def test_simulation_through_batch_norm(name, activation, eps):
    """The library's numbers in standard errors; those of another batch are rejected."""
    ours, other = (solve_by_quadrature(Setting(name, B, eps=eps)) for B in (6, 7))
    measured = simulate(activation, 6, eps or 1e-14, ours.kappa.value, 200_000)

    def deviations(solution):
        theory = {quantity: part.value for quantity, part in named(solution).items()}
        theory |= {
            "qc": theory["q"] * solution.c.value,
            "weight_gradient": theory["kappa"],
            "mean": math.sqrt(theory["cross_c"]),
            "mean_jacobian": math.sqrt(theory["cross_rate"]),
        }
        # Without ε, λ↑_G vanishes in every channel but for rounding.
        return [abs(m - theory[k]) / max(se, 1e-9) for k, (m, se) in measured.items()]

    assert max(deviations(ours)) < 3.5
    assert max(deviations(other)) > 20


def test_a_pair_without_cuts_misses_kinks():
    f = ACTIVATIONS["hardtanh"]
    law: PairLaw = pair_law(5, (), 64)
    careless = layer(f, Samples(law, 5), Real(1)).second_moments
    assert abs(careless[0] - exact("hardtanh", 5)["q"]) > 1e-6
