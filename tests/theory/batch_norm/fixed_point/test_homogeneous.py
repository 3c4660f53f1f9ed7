"""Powers at ε > 0: closed forms over directions, one integral over the radius."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.theory import Setting, as_activation, critical_eps, explosion_rate
from equipoise.theory.batch_norm.averages import compute
from equipoise.theory.batch_norm.averages.homogeneous import homogeneous_averages
from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.fixed_point.closed_form import closed_form
from equipoise.theory.batch_norm.fixed_point.homogeneous import serves, solve_homogeneous
from equipoise.theory.batch_norm.fixed_point.solve import solve, solve_by_quadrature

POWERS = ["identity", "relu", "abs", "leaky_relu(0.3)", "leaky_relu(-1.7)", "alpha_relu(1.5)"]


def numbers(solution):
    rest = (solution.cross_covariance, solution.cross_rate)
    first = (solution.q, solution.c, solution.kappa)
    return (*first, *solution.backward, *solution.forward, *rest)


def assert_agree(one, two):
    for ours, theirs in zip(numbers(one), numbers(two), strict=True):
        assert abs(ours.value - theirs.value) <= ours.error + theirs.error


@pytest.mark.parametrize("name", [*POWERS, "alpha_relu(0.8)"])
@pytest.mark.parametrize("batch_size", [4, 5, 12, 300])
def test_averages_are_those_of_quadrature(name, batch_size):
    phi, gamma = as_activation(name), 0.7
    ours = homogeneous_averages(phi.homogeneity, gamma, batch_size)
    theirs = compute.averages(Response(phi, gamma, 0.0), batch_size, np.ones(1), 2)
    for part in ("mean", "first", "squares", "pairs"):
        known = np.isfinite(getattr(ours, part))
        assert known.any()
        np.testing.assert_allclose(
            getattr(ours, part)[known], getattr(theirs, part)[known], rtol=1e-12, atol=1e-13
        )


@given(
    name=st.sampled_from(POWERS),
    batch_size=st.integers(4, 24) | st.integers(25, 10**6),
    eps=st.floats(-12, 0).map(lambda power: 10**power),
    gamma=st.floats(0.2, 5),
    variances=st.tuples(st.floats(0.3, 3), st.sampled_from([0.0, 0.4])),
)
@settings(max_examples=40, deadline=None)
def test_numbers_are_those_of_an_integral_over_the_disc(name, batch_size, eps, gamma, variances):
    weights, biases = variances
    setting = Setting(
        name, batch_size, eps=eps, gamma=gamma, weight_variance=weights, bias_variance=biases
    )
    found = solve_homogeneous(setting)
    if found is not None:
        assert_agree(found, solve_by_quadrature(setting))
        assert found.rate.relative_error < 1e-8


@pytest.mark.parametrize("beta", [-2.0, 0.7])
def test_a_straight_line_may_have_any_beta(beta):
    setting = Setting("identity", 6, beta=beta, eps=0.1, bias_variance=0.2)
    assert serves(setting)
    assert_agree(solve(setting), solve_by_quadrature(setting))
    without = solve(Setting("identity", 6, eps=0.1, bias_variance=0.2))
    assert solve(setting).rate.value == pytest.approx(without.rate.value, rel=1e-14)
    assert solve(setting).q.value == pytest.approx(without.q.value + beta**2, rel=1e-14)


@pytest.mark.parametrize("name", POWERS)
def test_as_eps_falls_numbers_approach_the_closed_form(name):
    limit = closed_form(Setting(name, 16))
    near = solve_homogeneous(Setting(name, 16, eps=1e-13))
    for exact, ours in zip(numbers(limit), numbers(near), strict=True):
        assert ours.value == pytest.approx(exact.value, abs=1e-10 * max(1, abs(exact.value)))
    far = solve_homogeneous(Setting(name, 16, eps=1e-3))
    assert abs(far.rate.value - limit.rate.value) > 1e-5


@pytest.mark.parametrize("name", ["relu", "leaky_relu(0.3)", "identity", "abs"])
@pytest.mark.parametrize("part", [0.5, 0.9999, 1.0001, 2.0])
def test_barely_below_the_critical_eps_the_general_method_takes_over(name, part):
    setting = Setting(name, 8, eps=part * critical_eps(name, batch_size=8))
    assert (solve_homogeneous(setting) is None) == (0.9 < part < 1)
    assert_agree(solve(setting), solve_by_quadrature(setting))
    assert (solve(setting).kappa.value == 0) == (part > 1)


@pytest.mark.parametrize(
    "setting",
    [
        Setting("relu", 8),
        Setting("relu", 8, beta=0.1, eps=0.1),
        Setting("tanh", 8, eps=0.1),
        Setting("alpha_relu(0.8)", 8, eps=0.1),
    ],
    ids=str,
)
def test_others_are_not_served(setting):
    assert not serves(setting)


def test_pytorchs_defaults_take_this_way():
    rate = explosion_rate("relu", 32, eps=1e-5)
    assert rate.method == "closed form over directions, quadrature over the radius"
    assert rate.relative_error < 1e-12
    by_quadrature = explosion_rate(Setting("relu", 32, eps=1e-5), method="quadrature")
    assert "disc" in by_quadrature.method
    assert abs(rate.value - by_quadrature.value) <= rate.error + by_quadrature.error
