"""Gaussian covariance kernels: closed forms against mpmath, Gauss–Hermite and the errata."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp

from equipoise.theory.activation.catalogue import (
    ACTIVATIONS,
    Activation,
    Homogeneity,
    named_activation,
)
from equipoise.theory.batch_norm.averages.homogeneous import kernel, kernel_of, kernel_of_slope
from equipoise.theory.covariance.kernels import closed_form_kernel, correlation_kernels

SMOOTH = ["identity", "square", "erf", "sin"]
KINKED = ["relu", "leaky_relu(0.2)", "abs", "alpha_relu(0.75)", "alpha_relu(1.5)", "alpha_relu(2)"]


def kernel_for(name):
    found = closed_form_kernel(named_activation(name))
    assert found is not None
    return found


def integral(power, c):
    """J_α from Section 12's integral over η, in 30 digits."""
    with mp.workdps(30):
        power, c = mp.mpf(power), mp.mpf(c)
        scale = 2 ** (power - 1) * mp.gamma(power + 0.5) / mp.sqrt(mp.pi)
        inner = mp.quad(
            lambda eta: mp.cos(eta) ** power / (1 - c * mp.cos(eta)) ** (1 + power),
            [0, mp.pi / 4, mp.pi / 2],
        )
        front = mp.gamma(power + 1) / (2 * mp.pi * scale)
        return front * mp.sin(mp.acos(c)) ** (2 * power + 1) * inner


def hermite(name, cov, count=80):
    """V of a 2 x 2 covariance by a product rule, exact for smooth φ."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    first, second = np.meshgrid(nodes, nodes)
    root = np.linalg.cholesky(cov)
    h = np.stack([root[0, 0] * first, root[1, 0] * first + root[1, 1] * second])
    f = named_activation(name).values(h)
    return np.einsum("iab,jab,a,b->ij", f, f, weights, weights) / (2 * math.pi)


class TestCorrelationKernel:
    @pytest.mark.parametrize("alpha", [0.6, 1, 1.4, 2, 2.5, 3])
    def test_is_the_angular_integral(self, alpha):
        c = np.array([-0.999, -0.7, -0.1, 0.0, 0.4, 0.95])
        same, opposite = correlation_kernels(alpha, c)
        np.testing.assert_allclose(same, [float(integral(alpha, x)) for x in c], atol=1e-14)
        np.testing.assert_allclose(opposite, same_at(alpha, -c), atol=1e-15)

    @pytest.mark.parametrize("alpha", [0.6, 1, 1.4, 2, 2.5])
    def test_agrees_with_the_scalar_form_in_c_squared(self, alpha):
        c = np.linspace(-1, 1, 41)
        expected = [kernel(alpha, float(x)) for x in c]
        np.testing.assert_allclose(same_at(alpha, c), expected, atol=4e-15)

    def test_keeps_all_digits_near_minus_one_where_the_scalar_form_loses_them(self):
        c = -1 + 2.0**-20
        exact = float(integral(1.4, mp.mpf(c)))
        assert abs(same_at(1.4, np.array([c]))[0] / exact - 1) < 1e-14
        assert abs(kernel(1.4, c) / exact - 1) > 1e-6

    @pytest.mark.parametrize("alpha", [0.6, 1.4, 2.5])
    def test_known_values(self, alpha):
        gamma = math.gamma
        at_zero = gamma((alpha + 1) / 2) ** 2 / (2 * math.sqrt(math.pi) * gamma(alpha + 0.5))
        np.testing.assert_allclose(
            same_at(alpha, np.array([-1.0, 0.0, 1.0])), [0, at_zero, 1], atol=1e-14
        )

    @pytest.mark.parametrize("alpha", [1, 2])
    def test_elementary_forms_continue_the_series(self, alpha):
        """Between real and complex arguments, with a generic α next to the special one."""
        c = np.array([0.3 + 0.4j, -1.7 + 0.2j, 2.5 - 1j, 1 + 1e-9j])
        np.testing.assert_allclose(same_at(alpha, c), same_at(alpha + 1e-9, c), rtol=1e-7)


def same_at(alpha, c):
    return correlation_kernels(alpha, c)[0]


class TestErrata:
    def test_erratum_3_derivative_of_the_two_sided_kernel(self):
        """-c J_φ stands inside the bracket: 0.79721, and as printed 1.24079."""
        shape, c, alpha = Homogeneity(1.0, 1.0, 0.2), 0.37, 1.0
        outer = (2 * alpha + 1) / (1 - c * c)
        raised = 1.04 * kernel(alpha + 1, c) + 0.4 * kernel(alpha + 1, -c)
        inside = outer * (raised - c * kernel_of(shape, c))
        as_printed = outer * raised - c * kernel_of(shape, c)
        h = 1e-5
        measured = (kernel_of(shape, c + h) - kernel_of(shape, c - h)) / (2 * h)
        assert inside == pytest.approx(measured, abs=1e-9)
        assert inside == pytest.approx(kernel_of_slope(shape, c) / (2 * alpha - 1), abs=1e-14)
        assert (round(inside, 5), round(as_printed, 5)) == (0.79721, 1.24079)

    @pytest.mark.parametrize("alpha", [1.2, 1.4, 1.6, 2.0, 3.5])
    def test_erratum_4_recurrence_holds_by_continuation_below_three_halves(self, alpha):
        """Γ(α - 3/2) < 0 there, and J_(α-2) is no kernel of anything."""
        c = 0.37
        front = (alpha - 1) ** 2 / ((2 * alpha - 1) * (2 * alpha - 3)) * (1 - c * c)
        right = c * kernel(alpha - 1, c) + front * kernel(alpha - 2, c)
        assert kernel(alpha, c) == pytest.approx(right, abs=1e-14)
        flipped = c * kernel(alpha - 1, c) + abs(front) * kernel(alpha - 2, c)
        assert (kernel(alpha, c) == pytest.approx(flipped, abs=1e-3)) is (alpha > 1.5)


class TestKernels:
    @pytest.mark.parametrize("name", SMOOTH)
    @pytest.mark.parametrize("c", [-0.9, 0.0, 0.5])
    def test_smooth_activations_match_gauss_hermite(self, name, c):
        cov = np.array([[1.3, c], [c, 0.8]])
        np.testing.assert_allclose(kernel_for(name)(cov), hermite(name, cov), atol=2e-14)

    def test_gauss_hermite_with_few_nodes_does_not(self):
        cov = np.array([[1.3, 0.5], [0.5, 0.8]])
        assert np.abs(kernel_for("erf")(cov) - hermite("erf", cov, 4)).max() > 1e-4

    @pytest.mark.parametrize("name", SMOOTH + KINKED)
    def test_simulation(self, name):
        cov = np.array([[1.5, 0.6, -0.9], [0.6, 0.7, 0.1], [-0.9, 0.1, 2.0]])
        generator = np.random.default_rng(1)
        h = generator.standard_normal((200_000, 3)) @ np.linalg.cholesky(cov).T
        f = named_activation(name).values(h)
        products = f[:, :, None] * f[:, None, :]
        error = products.std(0) / math.sqrt(len(f))
        z = (products.mean(0) - kernel_for(name)(cov)) / error
        assert np.abs(z).max() < 4
        assert np.abs((products.mean(0) - 1.1 * kernel_for(name)(cov)) / error).max() > 4

    @pytest.mark.parametrize("name", SMOOTH + KINKED)
    def test_complex_arguments_continue_real_ones(self, name):
        """A function analytic in p is the mean of its values on a circle around p."""
        V = kernel_for(name)
        root = np.random.default_rng(3).standard_normal((4, 4))
        base = np.linalg.inv(root @ root.T + 0.1 * np.eye(4))

        def at(p):
            return V(np.linalg.inv(base + p * np.eye(4)))

        turn = np.exp(2j * np.pi * np.arange(128) / 128)
        for centre in (2.0, -1.0 + 2.0j):
            mean = np.mean([at(p) for p in centre + 1.5 * turn], 0)
            np.testing.assert_allclose(mean, at(centre), atol=1e-13)
        across = np.mean([at(p) for p in -1.0 + 1.0j + 1.5 * turn], 0)
        assert np.abs(across - at(-1.0 + 1.0j)).max() > 1e-3

    @pytest.mark.parametrize("name", ["relu", "erf", "sin"])
    def test_batches_of_matrices(self, name):
        covs = np.stack([np.eye(3), np.full((3, 3), 2.0), np.diag([1.0, 0.0, 2.0])])
        together = kernel_for(name)(covs)
        for cov, mapped in zip(covs, together, strict=True):
            np.testing.assert_array_equal(kernel_for(name)(cov), mapped)

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(seed=st.integers(0, 10**6), rank=st.integers(1, 5), name=st.sampled_from(KINKED))
    def test_is_positive_semidefinite_and_homogeneous(self, seed, rank, name):
        root = np.random.default_rng(seed).standard_normal((5, rank))
        V, cov = kernel_for(name), root @ root.T
        mapped = V(cov)
        assert np.linalg.eigvalsh(mapped)[0] > -1e-12 * np.trace(mapped)
        np.testing.assert_allclose(V(3 * cov), 3**V.degree * mapped, rtol=1e-9, atol=1e-12)

    def test_unknown_activations_have_none(self):
        assert closed_form_kernel(ACTIVATIONS["tanh"]) is None
        impostor = Activation("erf", ACTIVATIONS["tanh"].function)
        assert closed_form_kernel(impostor) is None
