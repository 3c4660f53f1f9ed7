"""Averages over circles do not depend on the degree of the polynomials between cuts."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from equipoise.theory import Setting, as_activation
from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.disc import circles as module
from equipoise.theory.batch_norm.disc.circles import Circles, Radii
from equipoise.theory.batch_norm.disc.cuts import HIGH, LOW, resolving_cuts

KINKED = as_activation(lambda x: torch.tanh(x) + 0.3 * (x - 0.5).abs(), name="kinked")
STEEP = as_activation(lambda x: torch.tanh(20 * (x - 0.3)), name="steep")
RADII = np.linspace(0.05, 0.8, 7)


def response(phi, batch_size, **options):
    return Response.of(Setting(phi, batch_size, **options)).within(batch_size)


def averages(f, batch_size, polynomials, rules):
    """Both rules' averages between the cuts of a degree."""
    wide = f.gamma * math.sqrt(batch_size - 1) * RADII.max()
    cuts, _ = resolving_cuts(f, batch_size, wide, 0.1, polynomials)
    circles = Circles(f, batch_size, cuts, 0, rules, reach=RADII.max(), c=0.1)
    return circles.averages(Radii(RADII, False), Radii(RADII, True))


CASES = [
    ("softsign", 8, {"beta": 0.3}),
    ("softsign", 64, {}),
    (KINKED, 64, {}),
    ("sin", 8, {"gamma": 20.0, "beta": 0.1}),
]


@pytest.mark.parametrize(("phi", "batch_size", "options"), CASES)
def test_both_degrees_have_the_same_averages(phi, batch_size, options):
    f = response(phi, batch_size, **options)
    low, high = (
        averages(f, batch_size, polynomials, rules)[1]
        for polynomials, rules in ((LOW, module._BETWEEN), (HIGH, module._BETWEEN_HIGH))
    )
    np.testing.assert_allclose(high, low, rtol=0, atol=2e-12 * np.abs(low).max())


def test_few_nodes_between_the_few_cuts_of_a_high_degree_would_not():
    f = response("softsign", 64)
    right = averages(f, 64, HIGH, module._BETWEEN_HIGH)[1]
    wrong = averages(f, 64, HIGH, module._BETWEEN)[1]
    assert np.abs(wrong - right).max() > 1e-10 * np.abs(right).max()


def test_both_rules_integrate_products_of_what_oscillates():
    """Polynomials of degree 48 follow sin 20x on wider panels, but not rules its square."""
    f = response("sin", 8, gamma=20.0, beta=0.1)
    coarse, fine = averages(f, 8, HIGH, module._BETWEEN_HIGH)
    assert np.abs(coarse - fine).max() < 1e-12 * np.abs(fine).max()
    careless = replace(HIGH, last=np.zeros((1, HIGH.nodes)))
    coarse, fine = averages(f, 8, careless, module._BETWEEN_HIGH)
    assert np.abs(coarse - fine).max() > 1e-4 * np.abs(fine).max()


@pytest.mark.parametrize(
    ("phi", "batch_size", "rules"),
    [
        ("softsign", 64, module._BETWEEN_HIGH),
        (KINKED, 64, module._BETWEEN_HIGH),
        (STEEP, 8, module._BETWEEN),
        ("hardtanh", 8, module._BETWEEN_FEW),
    ],
)
def test_the_degree_with_fewer_nodes_is_taken(phi, batch_size, rules):
    assert Circles.of(response(phi, batch_size), batch_size, 0.9, 0.1).rules == rules
