"""Powers at ε > 0: closed forms over directions, one integral over the radius."""

from dataclasses import replace

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
from equipoise.theory.batch_norm.fixed_point.sweep import solve_all

POWERS = ["identity", "relu", "abs", "leaky_relu(0.3)", "leaky_relu(-1.7)", "alpha_relu(1.5)"]


def assert_agree(one, two):
    for ours, theirs in zip(one.numbers, two.numbers, strict=True):
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
        assert found.kappa.value == 0 or found.rate.relative_error < 1e-6


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
    for exact, ours in zip(limit.numbers, near.numbers, strict=True):
        assert ours.value == pytest.approx(exact.value, abs=1e-10 * max(1, abs(exact.value)))
    far = solve_homogeneous(Setting(name, 16, eps=1e-3))
    assert abs(far.rate.value - limit.rate.value) > 1e-5


@pytest.mark.parametrize("name", ["relu", "leaky_relu(0.3)", "identity", "abs"])
@pytest.mark.parametrize("part", [0.5, 0.9999, 1 - 1e-7, 1.0001, 2.0])
def test_around_the_critical_eps(name, part):
    setting = Setting(name, 8, eps=part * critical_eps(name, batch_size=8))
    found = solve_homogeneous(setting)
    assert found is not None
    assert (found.kappa.value == 0) == (part > 1)
    assert_agree(found, solve_by_quadrature(setting))


@pytest.mark.parametrize("gamma", [0.002, 0.01])
@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_barely_below_it_the_general_method_finds_the_solution_too(name, gamma):
    """Its scan is coarser than the distance to the critical ε."""
    plain = Setting(name, 8, gamma=gamma)
    for distance in (1e-10, 1e-8, 1e-6):
        setting = replace(plain, eps=critical_eps(plain) * (1 - distance))
        solution = solve_by_quadrature(setting)
        assert 0 <= solution.kappa.value < gamma**2


@pytest.mark.parametrize(
    ("name", "batch_size", "fold"),
    [("alpha_relu(2)", 32, 0.284568313223115), ("alpha_relu(1.05)", 8, 0.278579561267134)],
)
@pytest.mark.parametrize("distance", [1e-3, 1e-6, 1e-9])
def test_powers_keep_their_solution_up_to_the_fold(name, batch_size, fold, distance):
    """Folds by mpmath with 25 digits: there F(κ) touches κ from below."""
    below = solve(Setting(name, batch_size, eps=fold * (1 - distance)))
    beyond = solve(Setting(name, batch_size, eps=fold * (1 + distance)))
    assert below.kappa.value > 0.005
    assert beyond.kappa.value == 0


@pytest.mark.parametrize("power", [-258, 324])
@pytest.mark.parametrize("name", ["relu", "identity"])
def test_scales_of_variances_only_scale_kappa(name, power):
    plain = Setting(name, 32, eps=0.1704)
    scaled = replace(plain, eps=0.1704 * 2.0**power, weight_variance=2.0**power)
    one, two = solve(plain).kappa, solve(scaled).kappa
    assert abs(one.value - two.value / 2.0**power) <= one.error + two.error / 2.0**power


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("alpha_relu(2)", {"gamma": 1e-90, "eps": 1e-5}),
        ("alpha_relu(100)", {"gamma": 1e-20, "eps": 1.0}),
        ("alpha_relu(2)", {"gamma": 1e80, "eps": 1e-5}),
        ("leaky_relu(1e100)", {"gamma": 1e100, "eps": 1.0}),
        ("leaky_relu(1e100)", {"gamma": 1e100}),
        ("alpha_relu(2)", {"gamma": 1e80}),
    ],
)
def test_beyond_float64_there_is_a_reason_or_a_collapse(name, options):
    setting = Setting(name, 8, **options)
    for solver in (solve, lambda one: solve_all([one, one])[1]):
        if options["gamma"] == 1e-90:
            assert solver(setting).kappa.value == 0
        else:
            with pytest.raises(ValueError, match=r"overflows|no signal"):
                solver(setting)


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
