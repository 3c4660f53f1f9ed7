"""Averages of functions of normal latents: closed forms, simulation and laws of sums."""

import math

import numpy as np
import pytest
from scipy.special import erf, ndtr, ndtri

from equipoise.numerics.quadrature import gegenbauer
from equipoise.theory.propagation import latent, pair_averages
from support.cases import each

G, WEIGHTS = latent.nodes()
RHO = np.linspace(-1, 1, 41)[None]
RELU, STEP = np.maximum(G, 0), (G > 0).astype(float)


def arc_cosine(rho):
    """E[relu(g₁) relu(g₂)]."""
    return (np.sqrt(1 - rho**2) + rho * (np.pi - np.arccos(rho))) / (2 * np.pi)


def arc_sine(rho):
    """E[erf(g₁) erf(g₂)]."""
    return 2 / np.pi * np.arcsin(2 * rho / 3)


def orthant(rho):
    """P(g₁ > 0, g₂ > 0)."""
    return 0.25 + np.arcsin(rho) / (2 * np.pi)


def variance(table):
    return float(latent.mean(table**2) - latent.mean(table) ** 2)


class TestNodes:
    @each(("power", "moment"), [(0, 1), (1, 0), (2, 1), (4, 3), (8, 105)])
    def test_moments(self, power, moment):
        assert latent.mean(G**power) == pytest.approx(moment, rel=1e-11, abs=1e-11)

    def test_kinks_are_edges_of_panels(self):
        """Gauss–Hermite of any number of nodes has an error of some per cent here."""
        assert latent.mean(STEP) == pytest.approx(0.5, abs=1e-15)
        assert latent.mean(RELU) == pytest.approx(1 / math.sqrt(2 * math.pi), abs=1e-14)

    def test_hermite_polynomials_are_orthonormal(self):
        """Those of higher degree reach beyond the nodes; functions of moderate growth do not."""
        h = latent.hermite()[:12]
        np.testing.assert_allclose((h * WEIGHTS) @ h.T, np.eye(12), atol=1e-5)


class TestPairs:
    """Errors are those of 48 terms; jumps converge slowest."""

    @each(
        ("table", "exact", "error"),
        [
            (RELU, arc_cosine, 1e-5),
            (erf(G), arc_sine, 1e-10),
            (STEP, orthant, 2e-3),
            (G, lambda rho: rho, 1e-12),
            (G**2, lambda rho: 1 + 2 * rho**2, 1e-10),
        ],
        ids=["relu", "erf", "step", "identity", "square"],
    )
    def test_closed_forms(self, table, exact, error):
        found = pair_averages.pairs(table[None], table[None], RHO)
        np.testing.assert_allclose(found, exact(RHO), rtol=0, atol=error)

    @pytest.mark.parametrize("table", [RELU, STEP, np.tanh(3 * G)], ids=["relu", "step", "tanh"])
    def test_equal_latents_are_exact(self, table):
        """Without the rest of the series a step has 0.47 instead of 0.5."""
        found = pair_averages.pairs(table[None], table[None], np.ones((1, 1)))
        assert found[0, 0] == pytest.approx(latent.mean(table**2), rel=1e-12)

    def test_simulation_of_two_functions(self):
        rho, generator = 0.6, np.random.default_rng(0)
        g, other = generator.standard_normal((2, 200_000))
        draws = np.maximum(g, 0) * np.tanh(rho * g + math.sqrt(1 - rho**2) * other)
        found = pair_averages.pairs(RELU[None], np.tanh(G)[None], np.array([[rho]]))[0, 0]
        assert abs(draws.mean() - found) < 4 * draws.std() / len(draws) ** 0.5

    def test_every_position_has_a_function_of_its_own(self):
        tables = np.stack([G, 2 * G + 1, RELU])
        rho = np.full((3, 3), 0.3)
        found = pair_averages.pairs(tables, tables, rho)
        for i in range(3):
            for j in range(3):
                alone = pair_averages.pairs(tables[i : i + 1], tables[j : j + 1], rho[:1, :1])
                assert found[i, j] == pytest.approx(alone[0, 0], abs=1e-12)

    def test_most_pairs_of_a_large_map_are_far_apart_and_need_few_terms(self):
        generator = np.random.default_rng(0)
        rho = np.where(generator.random((120, 120)) < 0.1, 0.9, 0.1)
        tables = np.linspace(0.5, 2, 120)[:, None] * RELU
        scale = np.outer(np.linspace(0.5, 2, 120), np.linspace(0.5, 2, 120))
        found = pair_averages.pairs(tables, tables, rho)
        np.testing.assert_allclose(found, scale * arc_cosine(rho), rtol=0, atol=1e-5)

    @pytest.mark.parametrize("reach", [0.01, 0.5, 1.0])
    def test_large_maps_are_summed_as_small_ones(self, reach):
        """Of many pairs the series is a polynomial in the range of their correlations."""
        rho = np.random.default_rng(0).uniform(-reach, reach, (150, 150))
        found = pair_averages.pairs(RELU[None], RELU[None], rho)
        alone = [
            pair_averages.pairs(RELU[None], RELU[None], rho[:1, i : i + 1]) for i in range(150)
        ]
        np.testing.assert_allclose(found[0], np.ravel(alone), rtol=0, atol=1e-12)

    @pytest.mark.parametrize("dimensions", [None, 3.0])
    def test_odd_functions_of_opposite_latents(self, dimensions):
        """Odd degrees change sign at ρ = -1, the rest of the series too: 0.93 otherwise."""
        sign = np.sign(G)[None]
        found = pair_averages.pairs(sign, sign, np.array([[-1.0]]), dimensions)
        assert found[0, 0] == pytest.approx(-1, rel=1e-12)


@pytest.mark.parametrize("n", [2, 2.1, 3, 3.5, 4, 7, 29, 31, 200])
class TestSphere:
    """Pairs of coordinates of a point on the sphere of radius √n in R^n.

    Functions of degree k of a Gaussian vector are those of its direction times its length to the
    power k, so that Gaussian averages are known up to a factor.
    """

    @each(
        ("function", "exact", "error"),
        [
            (lambda z: np.maximum(z, 0), lambda rho, n: arc_cosine(rho), 1e-5),
            (lambda z: z**2, lambda rho, n: (1 + 2 * rho**2) * n / (n + 2), 2e-6),
            (lambda z: z > 0, lambda rho, n: orthant(rho), 6e-3),
        ],
        ids=["relu", "square", "step"],
    )
    def test_closed_forms(self, n, function, exact, error):
        table = function(latent.on_sphere(n)).astype(float)[None]
        found = pair_averages.pairs(table, table, RHO, n)
        np.testing.assert_allclose(found, exact(RHO, n), rtol=0, atol=error)

    def test_steps_of_centred_rows(self, n):
        """Of n + 1 rows, two have ρ = -1/n; the rest of the series would leave 3e-4 there."""
        rho, step = np.full((1, 1), -1 / n), (latent.on_sphere(n) > 0).astype(float)[None]
        found = pair_averages.pairs(step, step, rho, n)
        np.testing.assert_allclose(found, orthant(rho), rtol=0, atol=4e-5)

    def test_gaussian_pairs_are_others(self, n):
        table = latent.on_sphere(n)[None] ** 2
        found = pair_averages.pairs(table, table, RHO)
        assert abs(found - (1 + 2 * RHO**2) * n / (n + 2)).max() > 1.9 / (n + 2)


def test_nodes_follow_as_many_degrees_as_are_summed():
    """Closest on a circle: there 64 terms would make the square worse, by 1e-3."""
    z = latent.on_sphere(2)
    degrees = list(gegenbauer.polynomials(3, 64, z))
    overlaps = [latent.mean(psi * z**2) for psi in degrees]  # 1, none and 1/√2, then none
    assert np.abs(overlaps[3 : latent.TERMS]).max() < 1e-3
    assert np.abs(overlaps[3:]).max() > 1e-2


@pytest.mark.parametrize("dimensions", [None, 12.0], ids=["Gaussian", "sphere"])
@pytest.mark.parametrize("table", [RELU, STEP, np.tanh(3 * G)], ids=["relu", "step", "tanh"])
class TestManyPairs:
    """One function of the correlation is a polynomial, which few values determine."""

    @pytest.mark.parametrize("reach", [0.2, 0.95, 1.0])
    def test_are_summed_as_few_are(self, table, dimensions, reach):
        rho = reach * np.sin(np.linspace(-2, 2, 40_000)).reshape(200, 200)
        average = pair_averages.averages(table[None], table[None], dimensions)
        series = pair_averages._on_sphere if dimensions else pair_averages._pairs
        given = dimensions or latent.TERMS
        expected = series(table[None], table[None], rho, given)
        np.testing.assert_allclose(average(rho), expected, rtol=0, atol=1e-11)

    def test_fewer_values_do_not_determine_it(self, table, dimensions, monkeypatch):
        monkeypatch.setattr(pair_averages, "_POINTS", 12)
        caches = (
            pair_averages._of_one,
            pair_averages._chebyshev_points,
            pair_averages._chebyshev_transform,
        )
        for cached in caches:
            monkeypatch.setattr(pair_averages, cached.__name__, cached.__wrapped__)
        rho = np.array([[0.99]])
        found = pair_averages.averages(table[None], table[None], dimensions)(rho)
        series = pair_averages._on_sphere if dimensions else pair_averages._pairs
        expected = series(table[None], table[None], rho, dimensions or latent.TERMS)
        assert abs(found - expected).max() > 1e-9


@pytest.mark.parametrize("dimensions", [None, 12.0], ids=["Gaussian", "sphere"])
class TestBlocks:
    """Blocks of rows, of which half are mirrored, give what all pairs at once do."""

    def rows(self, positions):
        sizes = np.linspace(0.5, 2, positions)[:, None]
        return np.maximum(sizes * G + sizes[::-1] - 1, 0)

    def symmetric(self, positions):
        drawn = np.random.default_rng(0).uniform(-1, 1, (positions, positions))
        return np.tril(drawn) + np.tril(drawn, -1).T

    def test_do_not_depend_on_their_size(self, dimensions, monkeypatch):
        table, rho = self.rows(30), self.symmetric(30)
        other = table.copy()  # so that nothing is mirrored
        expected = pair_averages.pairs(table, other, rho, dimensions)
        monkeypatch.setattr(pair_averages, "_BLOCK", 64)
        for second in (table, other):
            found = pair_averages.pairs(table, second, rho, dimensions)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)

    def test_what_is_not_symmetric_is_not_mirrored(self, dimensions, monkeypatch):
        monkeypatch.setattr(pair_averages, "_BLOCK", 64)
        table, rho = self.rows(30), self.symmetric(30)
        rho[3, 20] = -rho[3, 20]
        found = pair_averages.pairs(table, table, rho, dimensions)
        assert abs(found[3, 20] - found[20, 3]) > 0.01

    @each("kind", ["own", "multiples", "one"])
    def test_equal_positions_are_the_diagonal(self, dimensions, kind):
        rho = self.symmetric(30)
        table = self.rows(30)
        if kind != "own":
            table = table[:1] * (np.linspace(1, 2, 30)[:, None] if kind == "multiples" else 1)
        every = np.broadcast_to(table, (30, table.shape[1]))
        expected = np.diagonal(pair_averages.pairs(every, every, rho, dimensions))
        found = pair_averages.at_equal_positions(table, np.diagonal(rho), dimensions)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


class TestCorrelationOf:
    """A product as large as at ρ leads back to ρ."""

    @pytest.mark.parametrize(
        "table", [RELU, np.tanh(G), G**3, G * ndtr(G)], ids=["relu", "tanh", "cube", "gelu"]
    )
    def test_inverts_pairs(self, table):
        rho = np.array([-0.4, 0.0, 0.3, 0.8, 0.99, 1.0])
        product = pair_averages.pairs(table[None], table[None], rho[None])[0]
        np.testing.assert_allclose(pair_averages.correlation_of(table, product), rho, atol=2e-4)

    def test_products_out_of_reach_are_clipped(self):
        np.testing.assert_array_equal(
            pair_averages.correlation_of(G, np.array([-7.0, 7.0])), [-1, 1]
        )


class TestSums:
    def test_of_gaussians_are_gaussian(self):
        table, inner = latent.of_sum(3 * G, 4 * G + 1), abs(G) < 4
        np.testing.assert_allclose(table[inner], 5 * G[inner] + 1, atol=0.02)
        assert (latent.mean(table), variance(table)) == pytest.approx((1, 25), rel=1e-3)

    def test_of_rectified_ones_are_not(self):
        """Independent halves: means and variances add, and a quarter is 0."""
        table = latent.of_sum(RELU, RELU)
        assert latent.mean(table) == pytest.approx(2 * latent.mean(RELU), rel=1e-3)
        assert variance(table) == pytest.approx(2 * variance(RELU), rel=5e-3)
        assert table[ndtri(0.24) > G].max() < 1e-12
        assert table[ndtri(0.26) < G].min() > 0

    def test_of_one_latent_twice_would_be_wider(self):
        assert variance(2 * RELU) > 1.9 * variance(latent.of_sum(RELU, RELU))


class TestProducts:
    def test_moments_are_products(self):
        table = latent.of_product(G, ndtr(G))
        assert latent.mean(table) == pytest.approx(0, abs=1e-3)
        assert latent.mean(table**2) == pytest.approx(1 / 3, rel=1e-3)
        assert latent.mean(latent.of_product(G, G) ** 4) == pytest.approx(9, rel=1e-3)

    def test_rise_with_the_latent(self):
        assert (np.diff(latent.of_product(G, RELU)) >= 0).all()


class TestMixtures:
    @pytest.mark.parametrize("power", [2, 4])
    def test_moments_are_averages(self, power):
        table = latent.of_mixture([G, 3 * G], [0.25, 0.75])
        exact = (0.25 + 0.75 * 3**power) * latent.mean(G**power)
        assert latent.mean(table**power) == pytest.approx(exact, rel=5e-3)

    def test_of_constants_are_steps(self):
        table = latent.of_mixture([np.zeros_like(G), np.ones_like(G)], [0.25, 0.75])
        assert table[ndtri(0.2) > G].max() == 0
        assert table[ndtri(0.3) < G].min() == 1

    def test_of_one_law_is_that_law(self):
        inner = abs(G) < 4
        table = latent.of_mixture([RELU, RELU], [0.5, 0.5])
        np.testing.assert_allclose(table[inner], RELU[inner], atol=0.01)
