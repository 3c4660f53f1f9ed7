"""Nodes over the radius of the disc."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from equipoise.theory import Setting, as_activation
from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.disc import circles as circles_module
from equipoise.theory.batch_norm.disc import place as module
from equipoise.theory.batch_norm.disc.circles import Circles, Radii
from equipoise.theory.batch_norm.disc.law import numbers
from equipoise.theory.batch_norm.disc.place import place
from equipoise.theory.batch_norm.fixed_point.solve import solve, solve_by_quadrature


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
    assert sum(law.u.size for law in few) < 0.9 * sum(law.u.size for law in many)
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

    mine = replace(known, function=counted, on_arrays=None)
    f = Response.of(Setting(mine, 64, beta=0.3))
    circles = Circles.of(f, 64, 0.6, 0.0)
    _ = f.at_zero  # cached
    calls.clear()
    rho = np.linspace(0.1, 0.6, 9)
    together = circles.averages(Radii(rho, fine=False), Radii(rho[:5], fine=True))
    assert len(calls) == 1
    alone = circles.averages(Radii(rho[:5], fine=True))
    np.testing.assert_allclose(together[1], alone[0], rtol=1e-12, atol=1e-300)


def test_singular_radii_that_nearly_coincide_cost_no_digits():
    """One kink leaves at u = 0.789, both at once within 0.0005 of that."""
    assert solve(Setting("hardtanh", 8, beta=0.7403, eps=0.01)).rate.relative_error < 1e-11


def test_both_rules_are_exact_where_no_circle_meets_the_kink():
    f = Response.of(Setting("relu", 4, beta=1.6))
    circles = Circles.of(f, 4, 0.9, 0.0)
    rho = np.linspace(0.01, 0.9, 12)

    def apart(circles):
        coarse, fine = circles.averages(Radii(rho, False), Radii(rho, True))
        return (np.abs(coarse - fine) / np.abs(fine).max(0)).max()

    assert apart(circles) < 1e-14
    assert apart(replace(circles, band=0)) > 1e-11


def oscillating(x):
    return torch.sin(60 * x)


def bump(x):
    return torch.tanh(x) + torch.exp(-(((x - 0.4) / 0.003) ** 2))


@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_what_oscillates_needs_fewer_nodes_on_whole_circles_than_between_cuts(monkeypatch, eps):
    setting = Setting(as_activation(oscillating), 8, beta=0.2, eps=eps)
    f = Response.of(setting).within(8)
    circles = Circles.of(f, 8, 0.99, 8 * eps)
    ours = solve(setting)
    monkeypatch.setattr(circles_module, "_FREQUENCIES", ())
    between_cuts = Circles.of(f, 8, 0.99, 8 * eps)
    assert 5 * circles.points(True) < between_cuts.points(True)
    solve_by_quadrature.cache_clear()
    for one, two in zip(ours.numbers, solve(setting).numbers, strict=True):
        assert abs(one.value - two.value) <= one.error + two.error


def test_a_narrow_place_is_cut_though_nodes_on_a_circle_may_miss_it(monkeypatch):
    f = Response.of(Setting(as_activation(bump), 8)).within(8)
    assert Circles.of(f, 8, 0.99, 0.0).cuts.size > 10
    # Where 128 nodes are trusted, they see a smooth function.
    monkeypatch.setattr(circles_module, "_FREQUENCIES", (128,))
    assert circles_module._band(f, np.sqrt(7) * 0.99) < 128


def test_cuts_alone_make_no_panels():
    """Softsign is cut at 13 places, none of which is narrow: both rules took 309 circles."""
    f = Response.of(Setting("softsign", 32))
    coarse, fine = place(f, 32, 0.5)
    assert coarse.u.size + fine.u.size < 200
    ours, theirs = (all_numbers(law, 0.3) for law in (coarse, fine))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-11 * abs(theirs).max())


def test_a_narrow_bump_has_panels_of_its_own():
    """Without them no node saw it: both rules agreed on a κ that was 4e-7 off."""
    at, width = 1.777846949196456, 0.005697155890095812

    def phi(x):
        return torch.tanh(x) + 1.1174932056835871 * torch.exp(-(((x - at) / width) ** 2))

    setting = Setting(phi, 15, gamma=6.305113982030789, beta=-1.296937297193444)
    kappa = solve(setting).kappa
    # tests/reference/two_angles.py in long double
    assert kappa.value == pytest.approx(0.9056874911099361, abs=kappa.error, rel=0)
    assert kappa.error < 1e-11


@pytest.mark.parametrize(
    ("phi", "B", "c"),
    [("silu", 4, 0.0), ("gelu", 300, 1e-3), ("tanh", 16, 0.5), ("mish", 7, 80.0)],
)
def test_even_panels_need_no_halving(monkeypatch, phi, B, c):
    """Fewer than on panels of a fixed length, and all of them placed at once."""
    f = Response.of(Setting(phi, B, gamma=1.2, beta=0.3))
    rounds = []
    on_panels = module._on_panels

    def counted(*args):
        rounds.append(args[1].size)
        return on_panels(*args)

    monkeypatch.setattr(module, "_on_panels", counted)
    few = place(f, B, c)
    assert len(rounds) == 1
    # The same circles on panels of a fixed length
    monkeypatch.setattr(module, "_even_panels", _of_fixed_length)
    many = place(f, B, c)
    assert sum(law.u.size for law in few) < 0.85 * sum(law.u.size for law in many)
    ours, theirs = (all_numbers(laws[1], 0.3) for laws in (few, many))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-14 * abs(theirs).max())


def _of_fixed_length(circles, batch_size, c, end):
    longest = min(1.2, 3.2 / np.sqrt(batch_size - 3 + c))
    count = int(np.ceil(end / longest))
    edges = np.linspace(0, end, count + 1)
    return edges[:-1], edges[1:], [20] * count


def test_products_may_share_memory():
    """What is kept between calls is never handed out."""
    f = Response.of(Setting("relu", 16, beta=0.4))
    circles = Circles.of(f, 16, 0.9, 0.1)
    (one,) = circles.averages(Radii(np.linspace(0.1, 0.9, 9), False))
    before = one.copy()
    circles.averages(Radii(np.linspace(0.2, 0.8, 9), False))
    assert (one == before).all()
