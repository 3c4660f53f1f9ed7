"""Fixed points at eps > 0 that only rare samples keep alive."""

import numpy as np
import pytest
import torch

from equipoise.theory import Setting, backward_spectrum, bsb1_fixed_point
from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.disc import fixed_point, scan
from equipoise.theory.batch_norm.disc.place import place
from equipoise.theory.batch_norm.fixed_point.solve import solve


@pytest.mark.parametrize(
    ("batch_size", "beta", "eps", "kappa", "rate"),
    [
        # tests/reference/two_angles.py in long double, 40 and 60 nodes alike to 18 digits
        (64, -5.0, 1e-12, 2.7623867324954727e-10, 24.484972711105568),
        (64, -2.5, 5e-5, 4.7918904208944232e-4, 6.1491153459257528),
        (1000, -10.0, 3e-29, 6.4855736339088343e-27, 58.488395950494811),
    ],
)
def test_a_kink_in_the_tail_does_not_collapse_before_its_critical_eps(
    batch_size, beta, eps, kappa, rate
):
    """Steps of the scan were longer than the tail that carries the signal."""
    ours = bsb1_fixed_point("relu", batch_size, beta=beta, eps=eps).kappa
    assert ours.value == pytest.approx(kappa, abs=ours.error, rel=0)
    assert 0 < ours.error < 1e-10 * kappa
    ours = backward_spectrum("relu", batch_size, beta=beta, eps=eps).G
    assert ours.value == pytest.approx(rate, abs=ours.error, rel=0)
    assert ours.error < 2e-11 * rate


@pytest.mark.parametrize("eps", [6e-12, 1e-9])
def test_beyond_it_it_does(eps):
    """F(κ)/κ is at most 0.74 at ε = 6e-12, by the same reference over all κ."""
    assert bsb1_fixed_point("relu", 64, beta=-5.0, eps=eps).kappa.value == 0


@pytest.mark.parametrize(("power", "gamma", "beta"), [(0.53, 2.28888, 0.577745), (0.6, 1.0, -0.4)])
def test_circles_that_barely_touch_a_power_see_its_slopes_and_not_rounding(power, gamma, beta):
    """E[D²] over one sample, smooth in |x|^(2α - 1) on either side of the kink.

    It was 9e-4 and 2e-7 too large, by rounding of φ's argument nearest to the kink.
    """
    B, rise = 8, 2 * power - 1
    nodes, weights = np.polynomial.legendre.leggauss(400)
    wide, sums = gamma * np.sqrt(B - 1), []
    for sign in (1.0, -1.0):
        end = (wide + sign * beta) ** rise
        x = (end * (nodes + 1) / 2) ** (1 / rise)
        density = (1 - ((sign * x - beta) / wide) ** 2) ** ((B - 4) / 2)
        sums.append((weights * density).sum() * end / 2 / rise / wide)
    total = (weights * (1 - nodes**2) ** ((B - 4) / 2)).sum()
    true = (gamma * power) ** 2 * sum(sums) / total
    f = Response.of(Setting(lambda x: x.abs() ** power, B, gamma=gamma, beta=beta))
    for law in place(f, B, 0.0):
        assert law.mean_slope(np.zeros(1))[0] == pytest.approx(true, rel=5e-8)


@pytest.mark.parametrize(("phi", "B"), [("relu", 16), ("tanh", 200), ("abs", 32)])
def test_solutions_where_eps_moves_no_weight_are_those_that_a_scan_finds(monkeypatch, phi, B):
    f = Response.of(Setting(phi, B, gamma=0.7, beta=0.3))
    settings = [Setting(phi, B, gamma=0.7, beta=0.3, eps=eps) for eps in (1e-9, 1e-8, 0.01)]
    found = fixed_point._where_c_moves_no_weight(scan.Group(settings, f))
    assert sorted(found) == [0, 1]  # at 0.01 it does
    monkeypatch.setattr(fixed_point, "_where_c_moves_no_weight", lambda group: {})
    for i, scanned in enumerate(fixed_point.solve_on_disc(settings[:2], f)):
        for ours, theirs in zip(found[i].numbers, scanned.numbers, strict=True):
            assert abs(ours.value - theirs.value) <= min(ours.error, theirs.error)


@pytest.mark.parametrize(("batch_size", "beta"), [(8, -1.9), (8, -1.47), (32, -1.33)])
def test_a_fixed_point_that_surely_collapsed_needs_one_scan(monkeypatch, batch_size, beta):
    """Steps were shrunk twice, for rare samples at which F(κ)/κ is e^-20 or less."""
    steps, scan_of = [], scan.Scan.of

    def counted(settings, f, step=scan._STEP):
        steps.append(step)
        return scan_of(settings, f, step)

    monkeypatch.setattr(scan.Scan, "of", counted)
    f = Response.of(Setting("relu", batch_size, beta=beta))
    setting = Setting("relu", batch_size, beta=beta, eps=0.01)
    assert fixed_point.solve_on_disc([setting], f) == [None]
    assert steps == [scan._STEP]


def test_a_largest_kappa_that_is_not_above_where_c_moves_weights_is_searched_for():
    """The signal looked larger than it is, and no setting was left: an IndexError."""
    setting = Setting(steep_softplus, 4, beta=-2.9144655451981754, eps=5.02259147239446e-31)
    # tests/reference/two_angles.py agrees
    assert solve(setting).kappa.value == pytest.approx(4.2925e-17, rel=1e-4)


def steep_softplus(x):
    return torch.logaddexp(11.97 * x, torch.zeros_like(x)) / 11.97
