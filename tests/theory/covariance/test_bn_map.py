"""The covariance map of batch norm: two integral forms, simulation and closed forms agree."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.theory import as_activation, bsb1_fixed_point
from equipoise.theory.covariance.bn_map import bn_map, centred_spectrum
from equipoise.theory.covariance.kernels import closed_form_kernel
from equipoise.theory.covariance.laplace_fourier import fourier_rule, laplace_rule

HOMOGENEOUS = ["identity", "relu", "leaky_relu(0.2)", "abs", "alpha_relu(1.5)", "square"]
WITH_KERNEL = [*HOMOGENEOUS, "erf", "sin"]


def covariance(B, rank=None, seed=0):
    root = np.random.default_rng(seed).standard_normal((B, rank or B))
    return root @ root.T


def centred(cov):
    G = np.eye(len(cov)) - 1 / len(cov)
    return G @ cov @ G


def bsb1(B, diagonal, off_diagonal):
    return (diagonal - off_diagonal) * np.eye(B) + off_diagonal


def assert_agree(first, second):
    assert (np.abs(first.value - second.value) <= first.error + second.error).all()


def z_scores(mapped, simulated):
    assert simulated.method == "monte carlo"
    return np.abs(mapped.value - simulated.value) / np.hypot(mapped.error, simulated.error)


class TestMethodsAgree:
    @pytest.mark.parametrize("name", HOMOGENEOUS)
    @pytest.mark.parametrize("B", [2, 3, 9])
    @pytest.mark.parametrize("eps", [0.0, 0.4])
    def test_laplace_and_fourier(self, name, B, eps):
        cov = covariance(B)
        laplace = bn_map(cov, name, "laplace", eps=eps, gamma=1.3)
        fourier = bn_map(cov, name, "fourier", eps=eps, gamma=1.3)
        assert_agree(laplace, fourier)
        size = np.abs(laplace.value).max()
        assert laplace.error.max() < 2e-13 * size
        assert fourier.error.max() < 1e-10 * size
        other = bn_map(cov, name, "laplace", eps=eps + 1e-6, gamma=1.3 + 1e-6)
        if B > 2:  # the form that is quicker tells the difference from either
            errors = laplace.error + fourier.error
            assert (np.abs(fourier.value - other.value) > errors).any()
            assert np.abs(laplace.value - other.value).max() > 1e3 * laplace.error.max()

    @pytest.mark.parametrize("name", WITH_KERNEL)
    @pytest.mark.parametrize(("B", "rank"), [(4, 4), (7, 2), (7, 7)])
    @pytest.mark.parametrize("eps", [0.0, 0.3])
    def test_simulation(self, name, B, rank, eps):
        cov = covariance(B, rank, seed=B)
        options = {"eps": eps, "gamma": 0.8}
        mapped = bn_map(cov, name, **options)
        simulated = bn_map(cov, name, "monte carlo", samples=2**17, **options)
        assert z_scores(mapped, simulated).max() < 4.5
        options["gamma"] = 0.83
        assert z_scores(bn_map(cov, name, **options), simulated).max() > 5

    @pytest.mark.parametrize("eps", [1e-14, 1e3, 1e8])
    def test_at_extreme_eps_too(self, eps):
        for name in ("relu", "alpha_relu(3)"):
            laplace, fourier = (
                bn_map(covariance(5), name, method, eps=eps) for method in ("laplace", "fourier")
            )
            assert_agree(laplace, fourier)
            assert max(laplace.error.max(), fourier.error.max()) < 1e-9 * laplace.value.max()

    def test_a_real_batch_norm_layer(self):
        """Independent neurons are channels; PyTorch takes the covariance's square root."""
        cov, pairs = covariance(6, seed=4), 40_000
        generator = torch.Generator().manual_seed(5)
        noise = torch.randn(6, pairs, generator=generator, dtype=torch.float64)
        layer = torch.nn.BatchNorm1d(pairs, eps=0.2, dtype=torch.float64)
        outputs = torch.relu(layer(torch.from_numpy(np.linalg.cholesky(cov)) @ noise))
        products = (outputs[:, None] * outputs[None]).detach().numpy()
        error = products.std(-1) / math.sqrt(pairs)
        mapped = bn_map(cov, "relu", eps=0.2)
        assert np.abs((products.mean(-1) - mapped.value) / error).max() < 4
        without = bn_map(cov, "relu")
        assert np.abs((products.mean(-1) - without.value) / error).max() > 4

    def test_auto_takes_the_first_that_applies(self):
        cov = covariance(5)
        for name, beta, method in (
            ("relu", 0.0, "laplace"),
            ("erf", 0.0, "fourier"),
            ("relu", 0.1, "monte carlo"),
            ("tanh", 0.0, "monte carlo"),
        ):
            assert bn_map(cov, name, beta=beta, samples=64).method == method

    def test_auto_drops_a_form_whose_error_is_too_large(self):
        """sin's kernel grows along the contour where few samples dominate a large batch."""
        cov = np.diag([40.0] + [0.02] * 23)
        assert bn_map(cov, "sin", "fourier").error.max() > 1e-3
        assert bn_map(cov, "sin", samples=64).method == "monte carlo"


@pytest.mark.parametrize("B", [4, 5, 16])
@pytest.mark.parametrize("name", ["identity", "relu", "alpha_relu(1.5)", "erf", "sin", "tanh"])
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_every_bsb1_covariance_goes_to_the_fixed_point(name, B, eps):
    """V(BSB1) has q on the diagonal and qc off it; at ε > 0 if it starts at the right κ."""
    point = bsb1_fixed_point(name, B, eps=eps)
    start = bsb1(B, point.kappa.value + 0.7, 0.7)
    mapped = bn_map(start, name, eps=eps, samples=2**14)
    exact = bsb1(B, point.q.value, point.q.value * point.c.value)
    slack = 2 * point.q.error + point.c.error + point.kappa.error
    if mapped.method == "monte carlo":
        assert np.abs((mapped.value - exact) / mapped.error).max() < 4.5
    else:
        assert (np.abs(mapped.value - exact) <= mapped.error + slack).all()
    unequal = bn_map(
        start * np.linspace(1, 2, B) ** 0.5 * np.linspace(1, 2, B)[:, None] ** 0.5, name
    )
    assert np.abs((unequal.value - exact) / unequal.error).max() > 5


class TestIdentity:
    @pytest.mark.parametrize("method", ["laplace", "fourier", "monte carlo"])
    def test_trace_is_the_batch_size(self, method):
        mapped = bn_map(covariance(6), "identity", method, samples=2**12)
        assert np.trace(mapped.value) == pytest.approx(6, abs=1e-11)

    def test_erratum_2_without_the_inverse_it_is_not(self):
        """The paper's main text leaves Σ in place of the shrunk Σ(I + 2pΣ/B)^-1."""
        spectrum = centred_spectrum(covariance(6))
        rule = fourier_rule(spectrum.values, 6)
        t = spectrum.values / rule.shrunk  # t (1 + 2pλ/B)
        right = (rule.weight @ rule.shrunk).real.sum()
        # Linear in λ, so that two columns determine its value at λ = 0.
        first, second = spectrum.values[:2]
        at_zero = (t[:, 0] * second - t[:, 1] * first) / (second - first)
        wrong = (rule.weight @ (spectrum.values / at_zero[:, None])).real.sum()
        assert right == pytest.approx(6, abs=1e-11)
        assert abs(wrong - 6) > 1

    def test_weights_alone_integrate_to_one(self):
        """The density of S has mass 1; Laplace's form has no such normalisation."""
        rule = fourier_rule(centred_spectrum(covariance(7)).values, 7)
        assert rule.weight.sum().real == pytest.approx(1, abs=1e-12)
        assert rule.coarse.sum().real == pytest.approx(1, abs=1e-9)


class TestRankDeficient:
    def test_erratum_10_rank_2_with_alpha_2(self):
        """The paper asks for rank > 2α = 4; the integrand is bounded without it."""
        cov = covariance(6, 2, seed=3)
        laplace = bn_map(cov, "alpha_relu(2)", "laplace")
        assert_agree(laplace, bn_map(cov, "alpha_relu(2)", "fourier"))
        values, vectors = np.linalg.eigh(centred(cov))
        angle = 2 * np.pi * (np.arange(20_000) + 0.5) / 20_000
        circle = np.stack([np.cos(angle), np.sin(angle)], 1)
        y = circle * np.sqrt(values[-2:]) @ vectors[:, -2:].T
        f = np.maximum(math.sqrt(6) * y / np.linalg.norm(y, axis=1, keepdims=True), 0) ** 2
        np.testing.assert_allclose(laplace.value, f.T @ f / len(f), atol=1e-10)

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(
        seed=st.integers(0, 10**6),
        B=st.integers(2, 9),
        name=st.sampled_from([*WITH_KERNEL, "alpha_relu(0.6)", "alpha_relu(4)"]),
    )
    def test_rank_1_has_two_batches_only(self, seed, B, name):
        u = np.random.default_rng(seed).standard_normal(B)
        w = math.sqrt(B) * (u - u.mean()) / np.linalg.norm(u - u.mean())
        plus, minus = (as_activation(name).values(sign * w) for sign in (1, -1))
        exact = (np.outer(plus, plus) + np.outer(minus, minus)) / 2
        mapped = bn_map(np.outer(u, u), name)
        assert (np.abs(mapped.value - exact) <= mapped.error).all()

    def test_two_samples_are_always_normalised_to_one(self):
        mapped = bn_map([[3.0, 1.0], [1.0, 2.0]], "relu")
        np.testing.assert_allclose(mapped.value, np.eye(2) / 2, atol=1e-14)

    def test_equal_samples_need_eps(self):
        with pytest.raises(ValueError, match=r"eps > 0"):
            bn_map(np.ones((4, 4)), "relu")
        mapped = bn_map(np.ones((4, 4)), "sigmoid", eps=0.1)
        np.testing.assert_allclose(mapped.value, np.full((4, 4), 0.25))
        near = bn_map(np.ones((4, 4)) + 1e-9 * np.eye(4), "sigmoid", eps=0.1, samples=64)
        np.testing.assert_allclose(near.value, mapped.value, atol=1e-6)


class TestInvariance:
    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(
        seed=st.integers(0, 10**6),
        scale=st.floats(1e-6, 1e6),
        shared=st.floats(0, 10),
        name=st.sampled_from(["relu", "alpha_relu(1.5)", "erf"]),
    )
    def test_scale_and_shared_part_do_not_matter(self, seed, scale, shared, name):
        """V(aΣ + b11ᵀ) = V(Σ) at ε = 0."""
        cov = covariance(5, seed=seed)
        assert_close(bn_map(scale * (cov + shared), name), bn_map(cov, name))

    def test_at_positive_eps_only_the_shared_part_does_not(self):
        cov = covariance(5)
        plain = bn_map(cov, "relu", eps=0.2)
        assert_close(bn_map(cov + 3, "relu", eps=0.2), plain)
        assert_close(bn_map(7 * cov, "relu", eps=1.4), plain)
        assert np.abs(bn_map(7 * cov, "relu", eps=0.2).value - plain.value).max() > 1e-3

    def test_the_sign_of_gamma_does_not(self):
        assert_close(
            bn_map(covariance(4), "erf", gamma=-2.0), bn_map(covariance(4), "erf", gamma=2.0)
        )

    def test_permutations_commute(self):
        cov, order = covariance(6), np.random.default_rng(0).permutation(6)
        mapped = bn_map(cov, "relu")
        permuted = bn_map(cov[np.ix_(order, order)], "relu")
        np.testing.assert_allclose(permuted.value, mapped.value[np.ix_(order, order)], atol=1e-13)


def assert_close(first, second):
    np.testing.assert_allclose(first.value, second.value, atol=1e-12)


class TestErrors:
    def test_a_coarser_rule_is_worse_than_the_error_allows(self):
        spectrum = centred_spectrum(covariance(6))
        kernel = closed_form_kernel(as_activation("relu"))
        exact = bn_map(covariance(6), "relu")
        rule = laplace_rule(spectrum.values, 6, 1.0)
        thinned = np.zeros((6, 6))
        for weight, shrunk in zip(8 * rule.weight[::8], rule.shrunk[::8], strict=True):
            thinned += weight * kernel((spectrum.vectors * shrunk) @ spectrum.vectors.T)
        assert np.abs(thinned - exact.value).max() > 1e2 * exact.error.max()
        assert np.abs(thinned - exact.value).max() < 1e-3

    def test_standard_errors_hold(self):
        """z-scores of independent runs have a mean square of 1."""
        cov = covariance(4)
        exact, scores = bn_map(cov, "relu").value, []
        for seed in range(60):
            generator = torch.Generator().manual_seed(seed)
            run = bn_map(cov, "relu", "monte carlo", samples=2000, generator=generator)
            scores.append(((run.value - exact) / run.error)[0, 1])
        assert 0.6 < np.mean(np.square(scores)) < 1.5

    def test_seeded(self):
        runs = [bn_map(covariance(4), "tanh", samples=100).value for _ in range(2)]
        np.testing.assert_array_equal(*runs)
        other = bn_map(covariance(4), "tanh", samples=100, generator=torch.Generator())
        assert (other.value != runs[0]).any()


class TestInput:
    @pytest.mark.parametrize(
        ("cov", "message"),
        [
            (np.ones(3), "square"),
            (np.ones((2, 3)), "square"),
            ([[1.0]], "at least 2"),
            ([[1.0, 0.5], [0.4, 1.0]], "symmetric"),
            ([[1.0, 2.0], [2.0, 1.0]], "positive semidefinite"),
            ([[1.0, np.nan], [np.nan, 1.0]], "finite"),
        ],
    )
    def test_other_matrices_are_refused(self, cov, message):
        with pytest.raises(ValueError, match=message):
            bn_map(cov, "relu")

    @pytest.mark.parametrize(
        ("name", "options", "message"),
        [
            ("erf", {"method": "laplace"}, "homogeneous"),
            ("relu", {"method": "laplace", "beta": 1.0}, "beta = 0"),
            ("tanh", {"method": "fourier"}, "kernel is known"),
            ("relu", {"method": "guess"}, "method must be"),
            ("relu", {"eps": -1.0}, "eps"),
            ("relu", {"gamma": 0.0}, "gamma"),
            ("relu", {"beta": math.inf}, "beta"),
            ("relu", {"samples": 2}, "samples"),
        ],
    )
    def test_options(self, name, options, message):
        with pytest.raises(ValueError, match=message):
            bn_map(np.eye(4), name, **options)

    def test_tensors_and_single_precision(self):
        cov = torch.from_numpy(covariance(4)).requires_grad_()
        assert_close(bn_map(cov, "relu"), bn_map(covariance(4), "relu"))
        rounded = bn_map(cov.float(), "relu")
        np.testing.assert_allclose(rounded.value, bn_map(cov, "relu").value, atol=1e-5)
