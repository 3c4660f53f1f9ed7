"""Every eigenvalue: closed form, quadrature, brackets and simulation agree."""

import json
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.theory import (
    Setting,
    UnstableFixedPointWarning,
    backward_spectrum,
    explosion_rate,
    forward_spectrum,
)
from equipoise.theory.activation.catalogue import ACTIVATIONS, alpha_relu, homogeneous
from equipoise.theory.batch_norm.fixed_point.closed_form import closed_form
from equipoise.theory.batch_norm.fixed_point.solution import Solution
from equipoise.theory.batch_norm.fixed_point.solve import solve_by_quadrature
from reference.brackets import ACTIVATIONS as REFERENCE
from reference.brackets import spectra
from support.cases import each

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
    """tests/reference/brackets.py uses no collapsed formula; its table holds the slow cases."""

    @each("row", TABLE, ids=case_name)
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

    def test_another_batch_size_is_rejected(self):
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

    @each("name", sorted(ACTIVATIONS))
    @each("B", [4, 7, 33])
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
