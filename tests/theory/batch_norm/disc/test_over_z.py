"""Averages over χ²: polynomials in log b are as exact as sums over z."""

import numpy as np
import pytest
from scipy.special import exp1, gamma, gammaincc

from equipoise.theory.batch_norm.disc import over_z as module
from equipoise.theory.batch_norm.disc.over_z import averages_over_z


def many(c):
    """b and s of several c and many radii."""
    s = c * np.sinh(np.linspace(0, 6, 900)).reshape(2, -1) ** 2
    return c + s, s


@pytest.mark.parametrize("nu", [1, 2, 3, 29, 10**6])
@pytest.mark.parametrize("c", [1e-20, 1e-3, 2.0, 1e9])
def test_polynomials_give_what_sums_give(monkeypatch, nu, c):
    b, s = many(c)
    monkeypatch.setattr(module, "_FEW", 0)
    ours = averages_over_z(nu, b, s)
    monkeypatch.setattr(module, "_FEW", np.inf)
    for one, two in zip(ours, averages_over_z(nu, b, s), strict=True):
        np.testing.assert_allclose(one, two, rtol=3e-15)


def test_fewer_nodes_would_not(monkeypatch):
    b, s = many(1.0)
    exact = averages_over_z(1, b, s)
    for name, value in (("_FEW", 0), ("_LENGTH", 6.0)):
        monkeypatch.setattr(module, name, value)
    module._coefficients.cache_clear()
    try:
        far = abs(averages_over_z(1, b, s)[0] / exact[0] - 1).max()
    finally:
        module._coefficients.cache_clear()
    assert far > 1e-13


@pytest.mark.parametrize("few", [0, np.inf])
def test_closed_forms(monkeypatch, few):
    """Integrals of e^(-z/2) z^a from b on, for two degrees of freedom."""
    monkeypatch.setattr(module, "_FEW", few)
    b = np.geomspace(0.05, 30, 40)
    c = 0.05  # b − s
    squared, amplitude = averages_over_z(2, b, b - c)
    np.testing.assert_allclose(1 - squared, c * np.exp(b / 2) * exp1(b / 2) / 2, rtol=1e-12)
    root = 2**1.5 * np.exp(b / 2) * gamma(2.5) * gammaincc(2.5, b / 2)
    np.testing.assert_allclose(amplitude, root, rtol=1e-13)
