"""Softmax weights with random logits against simulation, and the way back as its transpose."""

import numpy as np
import pytest
from scipy.special import expit, softmax

from equipoise.theory.propagation.rules.attention.softmax import SoftmaxWeights, distances, shared

DRAWS, T, S = 20_000, 3, 8

NEAR = -0.4 * np.abs(np.arange(T)[:, None] - np.arange(S))
SEEN = np.where(np.arange(S) <= np.arange(T)[:, None] + 2, 0.0, -np.inf)
BIASES = {"none": np.zeros((T, S)), "near": NEAR, "seen": SEEN, "both": NEAR + SEEN}


def correlated(seed, rows):
    """A covariance whose entries are all different."""
    x = np.random.default_rng(seed).standard_normal((rows, 2 * rows))
    x += np.random.default_rng(seed + 1).standard_normal(2 * rows)
    return x @ x.T / (2 * rows)


CORRELATION = np.array([[1, 0.5, -0.3], [0.5, 1, 0.2], [-0.3, 0.2, 1]])


def drawn_weights(bias, variance, noise=0.0):
    """Softmax weights of draws, of shape ``[draws, T, S]``."""
    generator = np.random.default_rng(0)
    root = np.linalg.cholesky(CORRELATION)
    z = np.sqrt(variance) * np.einsum(
        "tu,nus->nts", root, generator.standard_normal((DRAWS, T, S))
    )
    a = softmax(bias + z, -1)
    keep = 1 / (1 + noise)
    return a * (generator.random(a.shape) < keep) / keep


def predicted(bias, variance, noise=0.0):
    return SoftmaxWeights.of(softmax(bias, -1), np.full(T, variance), CORRELATION, noise)


def derivatives(a):
    """∂a/∂z of every row."""
    return a[..., None] * (np.eye(S) - a[..., None, :])


def error(draws, exact):
    """Relative error beyond four standard errors."""
    noise = 4 * draws.std(0) / DRAWS**0.5
    return np.maximum(abs(draws.mean(0) - exact) - noise, 0) / np.maximum(abs(exact), 1e-3)


@pytest.mark.parametrize("name", BIASES)
class TestSimulation:
    """Averages of rows without a bias are exact, others first order in what logits change."""

    @pytest.mark.parametrize(("variance", "most"), [(0.1, 0.005), (1.0, 0.03)])
    def test_mean_weights(self, name, variance, most):
        bias = BIASES[name]
        found = predicted(bias, variance).mean
        assert error(drawn_weights(bias, variance), found).max() < most
        np.testing.assert_allclose(found.sum(1), 1, rtol=1e-12)

    @pytest.mark.parametrize("noise", [0.0, 0.5])
    @pytest.mark.parametrize(("variance", "most"), [(0.1, 0.005), (1.0, 0.08)])
    def test_averages_of_covariances(self, name, variance, most, noise):
        bias, K = BIASES[name], correlated(1, S)
        a = drawn_weights(bias, variance, noise)
        assert (
            error(a @ K @ a.swapaxes(1, 2), predicted(bias, variance, noise).averaged(K)).max()
            < most
        )

    @pytest.mark.parametrize(("variance", "most"), [(0.1, 0.01), (1.0, 0.2)])
    def test_products_of_derivatives(self, name, variance, most):
        bias, weights = BIASES[name], predicted(BIASES[name], variance)
        draws, A = derivatives(drawn_weights(bias, variance)), derivatives(weights.mean)
        products = np.einsum("nijk,nljk->nil", draws, draws)
        found = weights.sensitivity * np.einsum("ijk,ljk->il", A, A)
        assert error(products, found).max() < most

    def test_the_way_back_is_the_transpose(self, name):
        weights, K, P = predicted(BIASES[name], 1.0, 0.5), correlated(1, S), correlated(2, T)
        forth, back = (P * weights.averaged(K)).sum(), (weights.pulled_back(P) * K).sum()
        assert forth == pytest.approx(back, rel=1e-12)


class TestTwins:
    def test_equal_weights_forget_the_bias(self):
        flat = predicted(np.zeros((T, S)), 1.0).mean
        assert error(drawn_weights(NEAR, 1.0), flat).max() > 0.3

    def test_the_softmax_of_the_bias_forgets_that_logits_flatten(self):
        assert error(drawn_weights(NEAR, 1.0), softmax(NEAR, -1)).max() > 0.1

    def test_derivatives_at_the_mean_weights(self):
        """Large logits flatten what is left to change."""
        A = derivatives(predicted(SEEN, 1.0).mean)
        draws = derivatives(drawn_weights(SEEN, 1.0))
        products = np.einsum("nijk,nljk->nil", draws, draws)
        assert error(products, np.einsum("ijk,ljk->il", A, A)).max() > 0.2

    def test_mean_weights_forget_noise_and_logits(self):
        K, A = correlated(1, S), predicted(NEAR, 1.0).mean
        for noise, variance, least in ((0.5, 0.01, 0.05), (0.0, 1.0, 0.05)):
            a = drawn_weights(NEAR, variance, noise)
            assert error(a @ K @ a.swapaxes(1, 2), A @ K @ A.T).max() > least


def test_one_key_gets_all_the_weight():
    weights = SoftmaxWeights.of(np.eye(2), np.ones(2), np.eye(2), 0.0)
    np.testing.assert_allclose(weights.mean, np.eye(2))
    np.testing.assert_allclose(weights.averaged(np.diag([2.0, 3.0])), np.diag([2.0, 3.0]))


def test_sums_over_pairs_of_centred_keys():
    K, L, A = correlated(1, S), correlated(2, S), softmax(NEAR, -1)
    for i, a in enumerate(A):
        centring = np.eye(S) - np.outer(np.ones(S), a)
        K_c, L_c = centring @ K @ centring.T, centring @ L @ centring.T
        assert shared(K, L, A)[i] == pytest.approx(a @ (K_c * L_c) @ a, rel=1e-12)
        np.testing.assert_allclose(distances(K, A)[i], np.diagonal(K_c), rtol=1e-12)


@pytest.mark.parametrize("variance", [1.0, 4.0, 16.0])
def test_two_keys_are_a_logistic_function(variance):
    """The weight of one of two keys is that of the difference of their logits."""
    g = np.arange(-9, 9, 0.01)
    weights = np.exp(-(g**2) / 2)
    a = expit(np.sqrt(2 * variance) * g)
    second = weights @ (a**2 + (1 - a) ** 2) / weights.sum()
    found = SoftmaxWeights.of(np.full((1, 2), 0.5), np.array([variance]), np.eye(1), 0.0)
    assert found.concentration[0, 0] == pytest.approx(1 + (2 * second - 1) / 0.5, rel=1e-6)


@pytest.mark.parametrize("variance", [100.0, 900.0])
def test_large_logits_seldom_come_close(variance):
    """Derivatives are those of a logistic function, which is flat but where both are equal."""
    g = np.arange(-9, 9, 1e-3)
    weights = np.exp(-(g**2) / 2) / np.exp(-(g**2) / 2).sum()
    a = expit(np.sqrt(2 * variance) * g)
    found = SoftmaxWeights.of(np.full((1, 2), 0.5), np.array([variance]), np.eye(1), 0.0)
    assert found.contrast[0] == pytest.approx(weights @ (4 * a * (1 - a)), rel=0.01)
    assert found.sensitivity[0, 0] == pytest.approx(weights @ (4 * a * (1 - a)) ** 2, rel=0.01)
