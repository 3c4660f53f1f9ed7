"""Each panel rule integrates one class of end singularities, and no more."""

import numpy as np
import pytest
from scipy.special import beta

from equipoise.numerics.quadrature import panels

RULES = {
    "analytic": panels.analytic(24),
    "half_powers": panels.half_powers(24),
    "positive_powers": panels.positive_powers(48),
    "any_powers": panels.any_powers(140),
}


def error(rule, p, q):
    """Relative error of ∫ s^p (1 - s)^q ds, from the exact distances to both ends."""
    return abs(rule.weights @ (rule.left**p * rule.right**q) / beta(p + 1, q + 1) - 1)


@pytest.mark.parametrize(
    ("name", "powers"),
    [
        ("analytic", [0, 1, 2, 7]),
        ("half_powers", [0, 0.5, 1, 1.5, 2.5, -0.5, 7]),
        ("positive_powers", [0, 0.4, 0.5, 1.3, 2.9, 7]),
        ("any_powers", [0, 0.5, 0.1, 2.9, 7, -0.5, -0.6, -0.88]),
    ],
)
def test_integrates_its_powers_at_both_ends(name, powers):
    for p in powers:
        for q in powers:
            assert error(RULES[name], p, q) < 3e-12, (p, q)


@pytest.mark.parametrize(
    ("name", "power"),
    [
        ("analytic", 0.5),  # half powers are not analytic
        ("half_powers", 0.4),  # sin^1.8 is not analytic either
        ("positive_powers", -0.7),  # u^(5·(-0.7) + 4) has an infinite slope
        ("any_powers", -0.985),  # cut off at distances of 1e-130
    ],
)
def test_and_no_others(name, power):
    assert error(RULES[name], power, 0) > 1e-9


@pytest.mark.parametrize("count", [1, 4, 9])
def test_analytic_is_exact_up_to_degree_2n_minus_1_and_no_further(count):
    rule = panels.analytic(count)
    assert max(error(rule, degree, 0) for degree in range(2 * count)) < 1e-14
    assert error(rule, 2 * count, 0) > 1e-14


@pytest.mark.parametrize("name", RULES)
def test_distances_and_weights_are_symmetric(name):
    rule = RULES[name]
    np.testing.assert_allclose(rule.left + rule.right, 1, rtol=1e-15)
    np.testing.assert_allclose(rule.left, rule.right[::-1], rtol=1e-9)
    np.testing.assert_allclose(rule.weights, rule.weights[::-1], rtol=1e-9)
    assert rule.weights.sum() == pytest.approx(1, abs=1e-13)
    assert (rule.left > 0).all()
    assert (rule.right > 0).all()


class TestPlace:
    edges = np.array([-1.0, 0.3, 0.3, 2.0])

    def test_a_kink_on_an_edge_costs_nothing(self):
        x, weights = panels.place(panels.analytic(4), self.edges).on(self.edges)
        assert weights @ np.abs(x - 0.3) == pytest.approx((1.3**2 + 1.7**2) / 2, abs=1e-14)

    def test_a_kink_inside_a_panel_does(self):
        edges = np.array([-1.0, 2.0])
        x, weights = panels.place(panels.analytic(4), edges).on(edges)
        assert abs(weights @ np.abs(x - 0.3) - (1.3**2 + 1.7**2) / 2) > 1e-3

    def test_repeated_edges_make_panels_without_weight(self):
        nodes = panels.place(panels.analytic(4), self.edges)
        assert nodes.weights.shape == (12,)
        assert (nodes.weights[4:8] == 0).all()
        assert (nodes.weights[:4] > 0).all()

    def test_offsets_keep_digits_that_positions_lose(self):
        """∫ (x - 1)^-0.6 from 1 to 2: positions cannot tell 1 + 1e-40 from 1."""
        edges = np.array([1.0, 2.0])
        nodes = panels.place(panels.any_powers(140), edges)
        distance = np.where(nodes.edge == 0, nodes.offset, 1 + nodes.offset)
        assert nodes.weights @ distance**-0.6 == pytest.approx(2.5, abs=1e-11)
        x, _ = nodes.on(edges)
        assert (x - 1 == 0).any()

    def test_edges_may_differ_between_rows(self):
        edges = np.array([[0.0, 1.0, 4.0], [0.0, 2.0, 4.0]])
        nodes = panels.place(panels.half_powers(12), edges)
        x = nodes.of_edges(edges) + nodes.offset
        np.testing.assert_allclose((nodes.weights * x**2).sum(1), 64 / 3, rtol=1e-13)
