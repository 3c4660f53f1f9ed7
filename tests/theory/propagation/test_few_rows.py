"""Batch norm of Gaussian rows: exact averages, simulation and the limit of many rows."""

import numpy as np
import pytest

from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.few_rows import (
    ConstantRows,
    FewRows,
    ManyRows,
    of_two_draws,
    rows_of,
    tau_of,
)

# N, P, ε. One sample is instance norm; one position is batch norm of vectors.
CASES = [
    (8, 1, 0.0),
    (1, 9, 0.0),
    (3, 4, 0.0),
    (3, 4, 0.5),
    (1, 7, 0.2),
    (16, 1, 0.1),
    (2, 2, 1.0),
]


def drawn(samples, positions, seed=0):
    """A centred covariance of positions of unequal sizes."""
    generator = np.random.default_rng(seed)
    sizes = generator.uniform(0.5, 2, positions)[:, None]
    alone, together = sizes * generator.standard_normal((2, positions, 2 * positions))
    blocks = alone @ alone.T, together @ together.T
    return Exchangeable.of_blocks(*(b / (2 * positions) for b in blocks), samples).centred()


def independent(rows, samples):
    positions = rows // samples
    nothing = np.zeros((positions, positions))
    return Exchangeable(np.eye(positions), nothing, samples).centred()


def expanded(pairs):
    one, all_ = np.eye(pairs.samples), np.ones((pairs.samples,) * 2)
    return np.kron(one, pairs.same - pairs.diff) + np.kron(all_, pairs.diff)


def gaussian_rows(covariance, draws=20_000):
    values, vectors = np.linalg.eigh(expanded(covariance))
    z = np.random.default_rng(2).standard_normal((draws, len(values)))
    return z * np.sqrt(values.clip(0)) @ vectors.T


def errors(draws, exact):
    """Distance of an average in standard errors, where it is not the same in every draw."""
    return (draws.mean() - exact) / (draws.std() / len(draws) ** 0.5 + 1e-12 * abs(exact))


def forms(x, matrix):
    """xᵀAx for every draw."""
    return ((x @ matrix) * x).sum(1)


@pytest.mark.parametrize(("N", "P", "eps"), CASES)
class TestSimulation:
    """Averages over Gaussian rows, contracted with three matrices each."""

    def test_forward(self, N, P, eps):
        K = drawn(N, P)
        x, found = gaussian_rows(K), FewRows.of(K, eps).normalised()
        S = (x**2).sum(1) + K.rows * eps
        for seed in (3, 4, 5):
            B = drawn(N, P, seed)
            assert abs(errors(K.rows * forms(x, expanded(B)) / S, found.dot(B))) < 4

    def test_mean_jacobian(self, N, P, eps):
        """tr(B J) with J = √(M/S) (1 - xxᵀ/S)."""
        K = drawn(N, P)
        x, found = gaussian_rows(K), FewRows.of(K, eps).jacobian
        S = (x**2).sum(1) + K.rows * eps
        for seed in (3, 4, 5):
            B = drawn(N, P, seed)
            own = np.trace(expanded(B)) / S**0.5 - forms(x, expanded(B)) / S**1.5
            assert abs(errors(K.rows**0.5 * own, found.dot(B))) < 4

    def test_backward(self, N, P, eps):
        """tr(B J Π J) with J = √(M/S) (1 - xxᵀ/S)."""
        K, G = drawn(N, P), drawn(N, P, 1)
        x, found = gaussian_rows(K), FewRows.of(K, eps).pulled_back(G)
        S, Π = (x**2).sum(1) + K.rows * eps, expanded(G)
        for seed in (3, 4, 5):
            B = expanded(drawn(N, P, seed))
            along = forms(x, B @ Π + Π @ B) / S - forms(x, B) * forms(x, Π) / S**2
            draws = K.rows / S * ((B * Π).sum() - along)
            assert abs(errors(draws, found.dot(drawn(N, P, seed)))) < 4

    def test_what_is_along_the_rows(self, N, P, eps):
        """Of JJ = (M/S) (1 - xxᵀ/S)², what is lost at xxᵀ."""
        K = drawn(N, P)
        x = gaussian_rows(K)
        size, M = (x**2).sum(1), K.rows
        S = size + M * eps
        draws = M / S * (1 - (1 - size / S) ** 2)
        assert abs(errors(draws, FewRows.of(K, eps).radial_gain)) < 4


@pytest.mark.parametrize("correlation", [0.2, 0.5, 0.9, 1.0])
class TestTwoDraws:
    """Two groups of 2 features on 9 positions, most of whose variance is one feature's mean."""

    def simulated(self, correlation):
        own = Exchangeable(np.eye(9) + 2.0, np.zeros((9, 9)), 2).centred()
        shared = own * correlation
        x, noise = gaussian_rows(own, 40_000), gaussian_rows(own, 80_000)[40_000:]
        y = correlation * x + (1 - correlation**2) ** 0.5 * noise
        x, y = (z / (z**2).mean(1, keepdims=True) ** 0.5 for z in (x, y))
        return own, shared, (x * y).mean(1)

    def test_agree_with_simulation(self, correlation):
        own, shared, products = self.simulated(correlation)
        found = of_two_draws(FewRows.of(own, 0.0), own, shared).mean_diagonal
        assert found == pytest.approx(products.mean(), abs=0.006)  # 0.0015 is a standard error

    def test_simulation_notices_one_size_for_both(self, correlation):
        own, shared, products = self.simulated(correlation)
        tau = own.dot(own) / (own.rows * own.mean_diagonal) ** 2
        naive = (1 + 1.5 * tau) * shared.mean_diagonal / own.mean_diagonal
        assert naive > 1.1 * products.mean()


def test_simulation_notices_the_law_of_many_rows():
    """Without corrections the covariance is K/s̄, and twelve rows are too few for that."""
    K = drawn(3, 4)
    x, B = gaussian_rows(K), drawn(3, 4, 3)
    draws = K.rows * forms(x, expanded(B)) / (x**2).sum(1)
    assert abs(errors(draws, (K * (1 / K.mean_diagonal)).dot(B))) > 10


@pytest.mark.parametrize("M", [4, 6, 12, 60])
class TestIndependentRows:
    """S has a χ² law with M - 1 degrees of freedom, so that E[1/S] = 1/(M - 3)."""

    @pytest.mark.parametrize("one_sample", [True, False])
    def test_gradients_grow_by_m_less_2_over_m_less_3(self, M, one_sample):
        """J keeps M - 2 directions: tr E[JJ] = M (M - 2)/(M - 3), against M - 1 before."""
        rows = independent(M, 1 if one_sample else M)
        pulled = FewRows.of(rows, 0.0).pulled_back(rows)
        assert pulled.mean_diagonal == pytest.approx((M - 2) / (M - 3), rel=1e-12)

    def test_forward_they_are_only_centred_and_rescaled(self, M):
        rows = independent(M, M)
        normal = FewRows.of(rows, 0.0).normalised()
        np.testing.assert_allclose(expanded(normal), expanded(rows) * M / (M - 1), atol=1e-12)


class TestShrinking:
    @pytest.mark.parametrize(("N", "P", "eps"), CASES)
    def test_output_has_unit_size_but_for_eps(self, N, P, eps):
        size = FewRows.of(drawn(N, P), eps).normalised().mean_diagonal
        assert size == pytest.approx(1, abs=1e-12) if eps == 0 else 0 < size < 0.95

    def test_rows_are_scaled_with_the_root_of_eps(self):
        K, G = drawn(3, 4), drawn(3, 4, 1)
        small, large = FewRows.of(K, 0.3), FewRows.of(K * 100.0, 30.0)
        np.testing.assert_allclose(small.normalised().same, large.normalised().same, rtol=1e-10)
        ratio = small.pulled_back(G).mean_diagonal / large.pulled_back(G).mean_diagonal
        assert ratio == pytest.approx(100, rel=1e-10)


def distance(found, exact):
    """Relative, over all pairs of rows."""
    rest = found + exact * -1.0
    return (rest.dot(rest) / exact.dot(exact)) ** 0.5


def forward(rows):
    return rows.normalised()


def backward(rows):
    return rows.pulled_back(drawn(rows.samples, 4, 1))


@pytest.mark.parametrize("eps", [0.0, 0.5])
@pytest.mark.parametrize("way", [forward, backward], ids=["forward", "backward"])
class TestManyRows:
    def test_error_falls_with_the_square_of_the_number_of_rows(self, way, eps):
        errors = []
        for N in (32, 64, 128):
            K = drawn(N, 4)
            exact = way(FewRows.of(K, eps))
            errors.append(distance(many(K, eps, way), exact))
        assert errors[0] < 3e-3
        assert errors[0] / errors[1] == pytest.approx(4, rel=0.15)
        assert errors[1] / errors[2] == pytest.approx(4, rel=0.1)

    def test_without_corrections_with_the_number_itself(self, way, eps):
        errors = []
        for N in (64, 128):
            K = drawn(N, 4)
            plain = K if way is forward else drawn(N, 4, 1)
            plain = plain * (1 / (K.mean_diagonal + eps))
            errors.append(distance(plain, way(FewRows.of(K, eps))))
        assert errors[0] / errors[1] == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_what_is_lost_along_many_rows(eps):
    errors = []
    for N in (64, 128):
        K = drawn(N, 4)
        errors.append(ManyRows.of(K, eps).radial_gain / FewRows.of(K, eps).radial_gain - 1)
    assert abs(errors[0]) < 1e-3
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize("eps", [0.0, 0.5])
@pytest.mark.parametrize("kind", [FewRows, ManyRows])
class TestDual:
    """The trace of a gradient pulled back is a sum over the entries of that before."""

    def test_trace(self, kind, eps):
        rows, gradient = kind.of(drawn(6, 4), eps), drawn(6, 4, 1)
        pulled = rows.pulled_back(gradient)
        found = rows.dual.dot(gradient)
        assert found == pytest.approx(pulled.mean_diagonal * pulled.rows, rel=1e-6)

    def test_not_that_of_the_gradient_alone(self, kind, eps):
        rows, gradient = kind.of(drawn(6, 4), eps), drawn(6, 4, 1)
        found, alone = rows.dual.dot(gradient), gradient.mean_diagonal * gradient.rows
        assert abs(found / alone - rows.dual.mean_diagonal) > 1e-3


def many(K, eps, way):
    rows = ManyRows.of(K, eps)
    return rows.normalised() if way is forward else rows.pulled_back(drawn(K.samples, 4, 1))


def smooth(samples, positions, reach):
    """Centred rows whose positions are correlated over a distance."""
    at = np.arange(positions)
    same = np.exp(-((at[:, None] - at) ** 2) / (2 * reach**2))
    return Exchangeable(same, np.zeros_like(same), samples).centred()


class TestManyRowsOrFew:
    """Few positions, or few independent ones among many, are taken as they are."""

    @pytest.mark.parametrize(
        ("samples", "positions", "reach", "kind"),
        [
            (64, 32, 0.1, FewRows),
            (64, 33, 0.1, ManyRows),
            (4, 256, 8.0, FewRows),
            (64, 256, 8.0, ManyRows),
            (1, 257, 90.0, ManyRows),
        ],
    )
    def test_choice(self, samples, positions, reach, kind):
        assert isinstance(rows_of(smooth(samples, positions, reach), 0.0), kind)

    @pytest.mark.parametrize("eps", [0.0, 0.5])
    def test_where_there_is_a_choice_both_agree(self, eps):
        """To 12 τ² of 3e-3."""
        K, G = smooth(8, 64, 0.8), drawn(8, 64, 1)
        assert 2e-3 < tau_of(K) < 3e-3
        many, few = rows_of(K, eps), FewRows.of(K, eps)
        assert isinstance(many, ManyRows)
        for found, exact in (
            (many.inverse, few.inverse),
            (many.normalised().mean_diagonal, few.normalised().mean_diagonal),
            (many.pulled_back(G).mean_diagonal, few.pulled_back(G).mean_diagonal),
            (many.radial_gain, few.radial_gain),
        ):
            assert found == pytest.approx(exact, rel=1.5e-4)

    def test_with_fewer_rows_they_would_not(self):
        K = smooth(8, 64, 8.0)
        assert tau_of(K) > 1e-2
        many, few = ManyRows.of(K, 0.0), FewRows.of(K, 0.0)
        assert abs(many.inverse / few.inverse - 1) > 1.5e-4


class TestConstantRows:
    """Rows of a fixed sum of squares: uniform on a sphere."""

    def drawn(self, covariance, draws=10_000):
        x = gaussian_rows(covariance, draws)
        return x * np.sqrt(covariance.rows / (x**2).sum(1, keepdims=True))

    @pytest.mark.parametrize(("N", "P"), [(8, 1), (5, 1)])
    def test_backward(self, N, P):
        """tr(B J Π J) with J = 1 - xxᵀ/M, on a sphere of M - 1 dimensions."""
        K = independent(N * P, N)
        K = K * (1 / K.mean_diagonal)
        x, rows = self.drawn(K), ConstantRows(K, 0.0, 1.0)
        for seed in (3, 4):
            G, B = drawn(N, P, seed), drawn(N, P, seed + 5)
            Jx = np.eye(K.rows) - x[:, :, None] * x[:, None] / K.rows
            products = np.einsum("nij,jk,nkl,li->n", Jx, expanded(G), Jx, expanded(B))
            assert abs(errors(products, rows.pulled_back(G).dot(B))) < 4
            assert rows.dual.dot(G) == pytest.approx(rows.pulled_back(G).mean_diagonal * K.rows)

    def test_gaussian_rows_differ(self):
        K = independent(8, 8)
        G = drawn(8, 1, 3)
        gaussian = FewRows.of(K, 0.0).pulled_back(G).mean_diagonal * K.mean_diagonal
        constant = ConstantRows(K * (1 / K.mean_diagonal), 0.0, 1.0).pulled_back(G).mean_diagonal
        assert gaussian > 1.3 * constant
