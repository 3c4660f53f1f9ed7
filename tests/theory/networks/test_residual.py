"""Gradients along residual streams: closed forms and simulated networks."""

import math

import numpy as np
import pytest

from equipoise.theory import Architecture, explosion_rate, residual_growth, simulate_networks


@pytest.mark.parametrize("B", [4, 8, 64])
def test_growth_is_a_ratio_of_gamma_functions(B):
    """Π (1 + Λ/(l + a)) = Γ(L + a + Λ) Γ(a) / (Γ(a + Λ) Γ(L + a)), a = κ⁰/κ*.

    Exact for the identity, whose branches turn nothing of the shared gradient into others.
    """
    blocks, rate, a = 40, (B - 2) / (B - 3), 0.7 * (B - 1) / B
    growth = residual_growth("identity", B, blocks=blocks, start_variance=0.7)
    assert growth.exponent.value == pytest.approx(rate, rel=1e-14)
    exact = (
        math.lgamma(blocks + a + rate)
        + math.lgamma(a)
        - math.lgamma(a + rate)
        - math.lgamma(blocks + a)
    )
    assert np.log(growth.factors).sum() == pytest.approx(exact, rel=1e-12)
    # In a plain network every layer grows alike.
    assert exact < 0.7 * blocks * math.log(rate) or B > 8


def test_relu_adds_what_samples_share():
    """The shared part p enters g with u/(B-1) - v, here positive, as long as g is small."""
    growth = residual_growth("relu", 8, blocks=40, start_variance=0.7)
    a = 0.7 / np.diff(growth.variances)[0]
    alone = 1 + growth.exponent.value / (np.arange(40) + a)
    assert (growth.factors > alone).all()
    assert growth.factors[0] == pytest.approx(alone[0], rel=1e-3)  # where g outgrew p
    assert growth.factors[-1] > 1.0005 * alone[-1]


def test_the_exponent_is_the_plain_rate():
    assert residual_growth("tanh", 16, blocks=3).exponent.value == pytest.approx(
        explosion_rate("tanh", 16).value, rel=1e-13
    )
    double = residual_growth("tanh", 16, blocks=3, stages=2).exponent.value
    assert double == pytest.approx(explosion_rate("tanh", 16).value ** 2, rel=1e-9)


def test_variance_grows_linearly():
    variances = residual_growth("gelu", 8, blocks=10).variances
    assert np.diff(variances) == pytest.approx(np.diff(variances)[0])


@pytest.mark.parametrize(
    ("name", "B", "options"),
    [
        ("relu", 8, {"stages": 1}),
        ("relu", 8, {"stages": 1, "leading": True}),
        ("tanh", 6, {"stages": 2}),
        ("tanh", 16, {"stages": 1, "eps": 0.1, "gamma": 1.5}),
        ("gelu", 8, {"stages": 2, "leading": True, "eps": 1e-3}),
    ],
)
def test_networks_follow_the_recursion(name, B, options):
    stages, leading = options.pop("stages"), options.pop("leading", False)
    blocks, networks = 12 // stages, 24
    theory = residual_growth(name, B, blocks=blocks, stages=stages, leading=leading, **options)
    run = simulate_networks(
        name,
        B,
        width=400,
        depth=12,
        networks=networks,
        architecture=Architecture(stages=stages, leading=leading),
        **options,
    )
    expected = np.log(theory.normalisers.ravel())
    rise = run.log_gradients - run.log_gradients[:, -1:] - (expected - expected[-1])
    error = rise.std(0, ddof=1) / networks**0.5 + 6 / 400  # and the bias of finite width
    assert (np.abs(rise.mean(0)) < 4 * error).all()


def test_a_plain_network_does_not():
    plain = 12 * math.log(explosion_rate("relu", 8).value)
    stream = math.log(residual_growth("relu", 8, blocks=12).growth.value)
    assert stream < 0.7 * plain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blocks": 0}, "blocks must be a whole number of at least 1; got 0"),
        ({"stages": 0}, "stages must be a whole number of at least 1; got 0"),
        ({"start_variance": 0.0}, "start_variance must be a finite number above 0; got 0"),
        ({"batch_size": 3}, "batch_size must be at least 4"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        residual_growth("relu", **({"batch_size": 8, "blocks": 2} | options))


def test_slopes_within_rounding_of_a_power_are_in_the_error():
    """One block over tests/reference/two_angles.py's nodes, 100 and 140 to a panel."""
    growth = residual_growth(
        lambda x: (x - 0.5).abs() ** 0.6, 8, blocks=1, start_variance=2.85
    ).growth
    assert abs(growth.value - 1.58327599135030) <= growth.error + 4e-9 < 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {"beta": 14.0, "eps": 0.01, "stages": 2},  # divided by 0
        {"beta": 0.5, "eps": 0.1, "start_variance": 1e-40},  # growth was nan
        {"beta": 0.5, "eps": 0.1, "start_variance": 1e-32},  # noise
    ],
)
def test_signals_within_rounding_are_refused(options):
    with pytest.raises(
        ValueError, match=r"constant to float64 .* no signal passes\. Use a smaller"
    ):
        residual_growth("tanh", 64, blocks=3, **options)
    # Small signals alone are none.
    assert residual_growth("tanh", 64, blocks=3, eps=0.1, start_variance=1e-40).growth.error < 1e-7
