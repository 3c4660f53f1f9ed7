"""Every eigenvalue: closed form, quadrature, brackets and simulation say the same."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.theory import (
    ACTIVATIONS,
    Setting,
    UnstableFixedPointWarning,
    alpha_relu,
    backward_spectrum,
    cross_batch,
    explosion_rate,
    forward_spectrum,
    simulate_networks,
    simulate_spectra,
    weight_gradients,
)
from equipoise.theory.activation.catalogue import homogeneous
from equipoise.theory.batch_norm.fixed_point.closed_form import closed_form
from equipoise.theory.batch_norm.fixed_point.solution import Solution
from equipoise.theory.batch_norm.fixed_point.solve import solve_by_quadrature
from equipoise.theory.simulation.spectra import _traces, sample_spectra
from reference.brackets import ACTIVATIONS as REFERENCE
from reference.brackets import spectra

TABLE = json.loads((Path(__file__).parents[3] / "reference" / "spectra.json").read_text("utf-8"))


def named(solution: Solution):
    """Every number under the reference's name."""
    numbers = {"q": solution.q, "kappa": solution.kappa}
    numbers |= {"cross_c": solution.cross_covariance, "cross_rate": solution.cross_rate}
    for way, triple in (("backward", solution.backward), ("forward", solution.forward)):
        numbers |= {f"{way}_{part}": value for part, value in zip("GLM", triple, strict=True)}
    return numbers


def case_name(row):
    return f"{row['activation']} B={row['batch_size']} eps={row['eps']} beta={row['beta']}"


class TestAgainstTheBrackets:
    """tests/reference/brackets.py knows no collapsed formula; its table holds the slow cases."""

    @pytest.mark.parametrize("row", TABLE, ids=case_name)
    def test_every_number_is_within_its_error(self, row):
        options = {key: row[key] for key in ("eps", "gamma", "beta")}
        ours = named(solve_by_quadrature(Setting(row["activation"], row["batch_size"], **options)))
        for name, value in ours.items():
            exact = row["values"][name]
            allowed = value.error + 2 * row["accuracy"] + 4e-16 * abs(exact)
            assert abs(value.value - exact) <= allowed, name
            assert value.error < 1e-9 or abs(row["eps"] - 1) < 0.01, name

    def test_the_table_is_what_the_reference_computes(self):
        row = next(r for r in TABLE if r["activation"] == "tanh" and r["eps"] == 0)
        again = spectra(REFERENCE["tanh"], row["batch_size"])
        for name, value in row["values"].items():
            assert float(again[name]) == pytest.approx(value, abs=1e-15)

    def test_another_batch_size_would_be_noticed(self):
        row = next(r for r in TABLE if r["activation"] == "tanh" and r["eps"] == 0)
        ours = named(solve_by_quadrature(Setting("tanh", row["batch_size"] + 1)))
        assert abs(ours["backward_M"].value - row["values"]["backward_M"]) > 1e-3


class TestClosedForms:
    @pytest.mark.parametrize("B", [4, 5, 9, 64, 10**4, 10**6])
    @pytest.mark.parametrize(
        ("alpha", "a", "b"),
        [(1, 1, 1), (1, 1, 0), (1, 1, 0.2), (1, 1, -1), (1.5, 1, 0), (2, 1, 0), (0.75, 1, 0.3)],
    )
    def test_they_are_what_quadrature_finds(self, alpha, a, b, B):
        problem = Setting(
            homogeneous("f", alpha, a, b), B, gamma=1.3, weight_variance=1.7, bias_variance=0.2
        )
        closed, quadrature = named(closed_form(problem)), named(solve_by_quadrature(problem))
        for name, value in closed.items():
            other = quadrature[name]
            assert abs(value.value - other.value) <= value.error + other.error, name

    def test_identity(self):
        """λ_G = (B-2)/(B-3) and λ↑_L = λ↑_M = (B-1)/(B+1)."""
        assert backward_spectrum("identity", 12).G.value == 10 / 9
        forward = forward_spectrum("identity", 12)
        assert forward.L.value == pytest.approx(11 / 13, abs=1e-15)
        assert forward.M.value == pytest.approx(11 / 13, abs=1e-15)

    @pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
    def test_large_batch_expansion_of_the_forward_eigenvalues(self, alpha):
        """Erratum 1: λ↑_L = α + (ρ - 2α² - α)/B + O(B⁻²); the printed 1/B terms are wrong."""
        exact = [(B, forward_spectrum(alpha_relu(alpha), B)) for B in (10**5, 10**6)]
        rho = exact[1][1].M.value  # tends to J′(0)/(J(1) - J(0))
        fitted = [B * (spectrum.L.value - alpha) for B, spectrum in exact]
        correct = rho - 2 * alpha**2 - alpha
        assert fitted[1] == pytest.approx(correct, abs=2e-4)
        printed = 2 * alpha**3 - 4 * alpha**2 - alpha
        if alpha == 2.0:
            assert correct == pytest.approx(-9.4907, abs=1e-4)
            assert printed + rho == pytest.approx(-1.4907, abs=1e-4)

    @pytest.mark.parametrize(
        ("name", "along_l", "along_m"), [("tanh", 0.480, 0.887), ("relu", 0.866, 0.631)]
    )
    def test_either_forward_eigenvalue_may_be_the_larger(self, name, along_l, along_m):
        """Erratum to B.70, which says λ↑_L > λ↑_M: so for ReLU, the other way for tanh."""
        spectrum = forward_spectrum(name, 16)
        assert spectrum.L.value == pytest.approx(along_l, abs=5e-4)
        assert spectrum.M.value == pytest.approx(along_m, abs=5e-4)

    def test_asking_for_one_where_there_is_none(self):
        with pytest.raises(ValueError, match="no closed form is known for tanh"):
            backward_spectrum("tanh", 8, method="closed form")
        with pytest.raises(ValueError, match="method must be"):
            forward_spectrum("relu", 8, method="magic")


class TestInvariants:
    @given(
        name=st.sampled_from(["tanh", "gelu", "relu", "silu", "hardtanh"]),
        B=st.integers(4, 200),
        scale=st.floats(0.1, 10),
        shift=st.floats(-2, 2),
    )
    def test_a_scaled_and_shifted_activation_has_the_same_eigenvalues(self, name, B, scale, shift):
        """φ → aφ + b changes q and c, never an eigenvalue."""
        plain = ACTIVATIONS[name]
        moved = type(plain)(
            "moved", lambda x: scale * plain.function(x) + shift, None, plain.kinks
        )
        before, after = (
            named(solve_by_quadrature(Setting(plain, B))),
            named(solve_by_quadrature(Setting(moved, B))),
        )
        for key in ("backward_G", "backward_L", "backward_M", "forward_L", "forward_M"):
            assert after[key].value == pytest.approx(before[key].value, abs=1e-9)
        assert after["cross_rate"].value == pytest.approx(before["cross_rate"].value, abs=1e-9)

    @pytest.mark.parametrize("options", [{}, {"eps": 0.05}, {"gamma": 2.0, "beta": 0.4}])
    def test_sigmoid_is_tanh_of_half_its_argument(self, options):
        tanh = {**options, "gamma": options.get("gamma", 1.0) / 2}
        if "beta" in options:
            tanh["beta"] = options["beta"] / 2
        if "eps" in options:  # κ of tanh is four times sigmoid's
            tanh["eps"] = 4 * options["eps"]
            tanh["gamma"] = options.get("gamma", 1.0) / 2
        ours, other = (
            backward_spectrum("sigmoid", 9, **options),
            backward_spectrum("tanh", 9, **tanh),
        )
        for part in "GLM":
            assert getattr(ours, part).value == pytest.approx(
                getattr(other, part).value, rel=1e-10
            )

    @pytest.mark.parametrize("name", sorted(ACTIVATIONS))
    @pytest.mark.parametrize("B", [4, 7, 33])
    def test_g_dominates_and_traces_add_up(self, name, B):
        """The map keeps the cone of covariances, in which G lies: λ_G ≥ |λ_L|, |λ_M|."""
        spectrum = backward_spectrum(name, B)
        assert spectrum.G.value >= (B - 2) / (B - 3) - 1e-12
        for part in (spectrum.L, spectrum.M):
            assert abs(part.value) <= spectrum.G.value + part.error
        counts = spectrum.multiplicities
        assert sum(counts) == B * (B - 1) // 2
        parts = (spectrum.G, spectrum.L, spectrum.M)
        total = sum(c * p.value for c, p in zip(counts, parts, strict=True))
        assert spectrum.trace == pytest.approx(total)

    def test_the_rate_is_g(self):
        for options in ({}, {"eps": 0.1}, {"beta": 0.3}):
            along_g = backward_spectrum("silu", 11, **options).G
            assert along_g == explosion_rate("silu", 11, **options)

    def test_stability_is_on_every_estimate(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UnstableFixedPointWarning)
            assert backward_spectrum("gelu", 64).L.stable is False
        assert forward_spectrum("gelu", 16).M.stable is True


class TestCollapsed:
    """Above the critical ε all samples become equal and the eigenvalues are those of a tangent."""

    def test_smooth_activations_have_one_eigenvalue(self):
        solution = solve_by_quadrature(Setting("tanh", 9, eps=1.25))
        for value in (*solution.backward, *solution.forward, solution.cross_rate):
            assert value.value == pytest.approx(0.8, abs=1e-12)

    def test_relu_keeps_three(self):
        """Just below its critical ε the eigenvalues tend to those above it."""
        critical = 0.339430  # critical_eps("relu", batch_size=64) = 0.33943…
        below = named(solve_by_quadrature(Setting("relu", 64, eps=critical * 0.9999)))
        above = named(solve_by_quadrature(Setting("relu", 64, eps=critical * 1.0001)))
        for name in ("backward_G", "backward_L", "backward_M", "forward_L", "forward_M"):
            assert below[name].value == pytest.approx(above[name].value, rel=2e-3), name
        assert above["kappa"].value == 0 < below["kappa"].value


class TestCrossBatch:
    def test_forward_and_backward_coincide(self):
        pair = cross_batch("silu", 8)
        assert pair.forward == pair.backward
        row = spectra(REFERENCE["silu"], 8)
        assert pair.forward.value == pytest.approx(float(row["cross_rate"]), abs=1e-14)
        assert pair.forward.value == pytest.approx(float(row["cross_rate_backward"]), abs=1e-14)

    def test_two_batches_of_relu_correlate(self):
        """c_CB = (E φ)², which is 1/(2π) at a large batch."""
        pair = cross_batch("relu", 10**6)
        assert pair.c.value == pytest.approx(1 / (2 * np.pi), abs=1e-6)
        assert pair.correlation.value == pytest.approx(1 / np.pi, abs=1e-6)

    def test_square_of_a_mean_that_may_be_negative(self):
        """Erratum 11: for φ = -softplus the mean is negative, its square is not."""
        ours = cross_batch(lambda x: -torch.nn.functional.softplus(x), 9).c
        other = cross_batch(torch.nn.functional.softplus, 9).c
        assert ours.value == pytest.approx(other.value, rel=1e-9)
        assert ours.value > 0

    @pytest.mark.parametrize("name", ["relu", "tanh", "gelu", "alpha_relu(2)"])
    def test_what_batches_have_in_common_dies_out(self, name):
        for B in (4, 16, 1000):
            assert cross_batch(name, B).backward.value < 1

    def test_bias_variance_is_shared(self):
        plain, biased = cross_batch("tanh", 8), cross_batch("tanh", 8, bias_variance=0.3)
        assert biased.c.value == pytest.approx(plain.c.value + 0.3)


def test_weight_gradients_of_a_network():
    """E(∂W)² = κ tr Π / σ_w²: the ratio of both gradients in one random layer."""
    B, width, variance = 8, 1500, 1.7
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(B, width, generator=generator, dtype=torch.float64)
    x = None
    for _ in range(6):
        centred = h - h.mean(0)
        x = torch.relu(centred / centred.square().mean(0).sqrt())
        weight = torch.randn(width, width, generator=generator, dtype=torch.float64)
        h = x @ weight * (variance / width) ** 0.5
    normed = h.clone().requires_grad_()
    y = torch.relu((normed - normed.mean(0)) / normed.var(0, correction=0).sqrt())
    at_output = torch.randn(B, width, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((y * at_output).sum(), normed)
    per_weight = (x.T @ gradient).square().mean()
    per_trace = gradient.square().sum(0).mean()
    predicted = weight_gradients("relu", B, weight_variance=variance).per_trace
    assert float(per_weight / per_trace) == pytest.approx(predicted.value, rel=0.02)
    assert weight_gradients("relu", B).rate.value == explosion_rate("relu", B).value


class TestSimulatedSpectra:
    def test_networks_approach_theory(self):
        run = simulate_spectra("relu", 8, width=1000, depth=8, networks=16)
        exact = backward_spectrum("relu", 8)
        for column, part in enumerate("GLM"):
            samples = run.backward[:, column]
            error = samples.std(ddof=1) / 4 + 3 / 1000  # and the bias of finite width
            assert abs(samples.mean() - getattr(exact, part).value) < 4 * error
        assert abs(run.cross_batch.mean() - cross_batch("relu", 8).forward.value) < 0.01

    def test_the_traces_are_the_definition(self):
        """⟨Δ, Jᵀ Δ J⟩ summed over an orthonormal basis of each subspace, through autograd."""
        B = 5
        problem = Setting("tanh", B, eps=0.1, gamma=1.3, beta=0.2)
        generator = torch.Generator().manual_seed(3)
        h = torch.randn(1, B, generator=generator, dtype=torch.float64)
        h -= h.mean()

        def layer(z):
            centred = z - z.mean()
            return torch.tanh(1.3 * centred / (centred.square().mean() + 0.1).sqrt() + 0.2)

        J = torch.autograd.functional.jacobian(layer, h[0])
        G = torch.eye(B, dtype=torch.float64) - 1 / B
        bases = {"G": [G / (B - 1) ** 0.5], "L": [], "M": []}
        zero_sum = torch.linalg.svd(G)[0][:, : B - 1].T
        bases["L"] = [G @ torch.diag(u) @ G / (1 - 2 / B) ** 0.5 for u in zero_sum]
        every = torch.stack([*bases["G"], *bases["L"]]).reshape(B, -1)
        symmetric = []
        for i in range(B):
            for j in range(i + 1):
                E = torch.zeros(B, B, dtype=torch.float64)
                E[i, j] = E[j, i] = 1
                symmetric.append((G @ E @ G).reshape(-1))
        rest = torch.stack(symmetric)
        rest = rest - rest @ every.T @ every
        rows = torch.linalg.svd(rest, full_matrices=False)
        bases["M"] = [v.reshape(B, B) for s, v in zip(rows.S, rows.Vh, strict=True) if s > 1e-9]
        assert len(bases["M"]) == B * (B - 3) // 2
        kappa = 0.7
        found = _traces(problem, h, kappa)[0]
        y = layer(h[0])
        for column, part in enumerate("GLM"):
            backward = sum((D * (J.T @ D @ J)).sum() for D in bases[part]) / len(bases[part])
            forward = sum(y @ D @ J @ D @ h[0] for D in bases[part]) / len(bases[part]) / kappa
            assert float(found[column]) == pytest.approx(float(backward), rel=1e-10)
            assert float(found[3 + column]) == pytest.approx(float(forward), rel=1e-9, abs=1e-12)

    def test_nothing_to_sample_above_the_critical_eps(self):
        with pytest.raises(ValueError, match="nothing to sample"):
            sample_spectra("tanh", 8, eps=1.5)
        with pytest.raises(
            ValueError, match="samples must be a whole number of at least 2; got 1"
        ):
            sample_spectra("tanh", 8, samples=1)

    def test_gradients_of_networks_grow_at_g(self):
        run = simulate_networks("silu", 8, width=600, depth=14, networks=12)
        slopes = -np.diff(run.log_gradients[:, 2:], axis=1).mean(1)
        error = slopes.std(ddof=1) / 12**0.5 + 2 / 600
        assert abs(slopes.mean() - np.log(backward_spectrum("silu", 8).G.value)) < 4 * error
