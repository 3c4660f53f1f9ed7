"""Nodes over the radius of the disc."""

from dataclasses import replace

import numpy as np
import pytest

from equipoise.theory import Setting, as_activation
from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.disc import place as module
from equipoise.theory.batch_norm.disc.circles import Circles, Radii
from equipoise.theory.batch_norm.disc.law import numbers
from equipoise.theory.batch_norm.disc.place import place


def all_numbers(law, kappa):
    """Every number at one κ, with c = Bε/κ of the law."""
    one, c = np.ones(1), np.array([law.c])
    return numbers(law.batch_size, law.sums(c), kappa * one, one, 0 * one, 0.0)[:, 0]


@pytest.mark.parametrize(
    ("phi", "B", "c"), [("gelu", 6, 0.0), ("tanh", 64, 30.0), ("relu", 16, 1e-3)]
)
def test_rare_samples_need_fewer_nodes(monkeypatch, phi, B, c):
    f = Response.of(Setting(phi, B, gamma=1.3, beta=0.4))
    few = place(f, B, c)
    monkeypatch.setattr(module, "_PARTS", (1.0,) * len(module._PARTS))
    many = place(f, B, c)
    assert sum(law.u.size for law in few) < 0.85 * sum(law.u.size for law in many)
    for fewer, more in zip(few, many, strict=True):
        ours, theirs = all_numbers(fewer, 0.3), all_numbers(more, 0.3)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-15 * abs(theirs).max())


def test_nodes_placed_without_c_serve_where_it_moves_no_weight():
    """Up to s = c sinh² u = 1 at the rarest sample they give what nodes for that c give."""
    f = Response.of(Setting("relu", 16, beta=0.4))
    _, law = place(f, 16, 1e-12)
    most = 1 / np.sinh(law.u.max()) ** 2
    assert law.serves(np.array([most, 2 * most]), 0.3).tolist() == [True, False]
    other = place(f, 16, most)[1]
    for ours, theirs in zip(law.map(np.array([most])), other.map(np.array([most])), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-14)


@pytest.mark.parametrize("phi", ["tanh", "relu"])
def test_both_rules_call_the_activation_once(phi):
    """Autograd of a user's function costs more than its values at a few thousand nodes."""
    known, calls = as_activation(phi), []

    def counted(x):
        calls.append(x.shape)
        return known.function(x)

    f = Response.of(Setting(replace(known, function=counted), 64, beta=0.3))
    circles = Circles.of(f, 64, 0.6, 0.0)
    _ = f.at_zero  # cached
    calls.clear()
    rho = np.linspace(0.1, 0.6, 9)
    together = circles.averages(Radii(rho, fine=False), Radii(rho[:5], fine=True))
    assert len(calls) == 1
    alone = circles.averages(Radii(rho[:5], fine=True))
    np.testing.assert_allclose(together[1], alone[0], rtol=1e-12, atol=1e-300)
