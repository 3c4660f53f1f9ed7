"""The search for kinks sees what is narrow, and says what it cannot use."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from equipoise.theory import as_activation, backward_spectrum, explosion_rate
from equipoise.theory.activation.kinks import _search, find_kinks


def hat(at, half, slope):
    return lambda x: torch.tanh(x) + slope * torch.relu(half - (x - at).abs())


class TestNarrowHats:
    @pytest.mark.parametrize(
        ("at", "half", "slope", "true"),
        [
            # Theorem 7 by Gauss–Legendre between the kinks in long double, 60 polynomials
            (-1.4038456658657767, 5e-4, 40.0, 1.79585141016452),
            (1.7457682473680123, 2e-4, 50.0, 1.409495128308957),
            (1.7457682473680123, 5e-5, 60.0, 1.270467660356415),
        ],
    )
    def test_their_rate_is_true(self, at, half, slope, true):
        """The true value, not tanh's 1.19; the error is that of kinks known to their last bit."""
        rate = backward_spectrum(hat(at, half, slope), 64).G
        assert abs(rate.value - true) <= rate.error + 2e-15 < 1e-12
        assert "search" not in rate.method

    @pytest.mark.parametrize("half", [5e-4, 5e-5])
    def test_none_of_that_width_is_missed(self, half):
        for at in np.random.default_rng(5).uniform(-2, 2, 6).tolist():
            adapted = as_activation(hat(at, half, 40.0))
            found = sorted(kink.at for kink in adapted.kinks)
            assert found == pytest.approx([at - half, at, at + half], abs=1e-15)
            assert adapted.unsure == ()

    def test_a_place_that_made_a_panel_fail_is_followed_into_its_halves(self):
        """A hat narrower than all points are apart, seen by one of them."""
        at, half = 0.51234567, 2e-8

        def function(x):
            inside = abs(x - at) < half
            return np.maximum(half - abs(x - at), 0), -np.sign(x - at) * inside

        left, scale = np.array([0.4]), np.array([1.0, 1.0])
        arguments = (function, lambda x: function(x)[0], "hat", left)
        seen, _ = _search(*arguments, np.array([[at + half / 2, at]]), scale)
        assert min(abs(place - at) for place, _ in seen) < 3 * half
        lost, _ = _search(*arguments, np.array([[0.41, 0.42]]), scale)
        assert not lost

    def test_what_is_steep_is_followed_down_to_half_the_width_at_which_it_passes(self):
        """Narrow panels are cut into eighths: what fails at a half of one must not be lost."""

        def narrowest(steepness):
            def function(x):
                y = np.tanh(steepness * (x - 0.51234567))
                return y, steepness * (1 - y * y)

            left, scale = np.array([0.4]), np.array([1.0, steepness])
            search = _search(
                function, lambda x: function(x)[0], "steep", left, left[:, None], scale
            )
            return min(width for _, width in search[0]) * steepness

        widths = [narrowest(steepness) for steepness in 2e4 * 1.5 ** np.arange(6)]
        assert max(widths) < 2.5 * min(widths)


class TestJumps:
    @pytest.mark.parametrize("jump", [1e-2, 2e-5, 4e-7])
    @pytest.mark.parametrize("offset", [0.0, 100.0])
    def test_small_ones_are_refused(self, jump, offset):
        """Of 2e-7 of what tanh varies by, whatever is added to it."""
        with pytest.raises(ValueError, match=r"jumps by .* at x = 0\.3"):
            as_activation(lambda x: offset + torch.tanh(x) + jump / 2 * torch.sign(x - 0.3))

    @pytest.mark.parametrize(
        "function",
        [
            lambda x: F.hardsigmoid(x) * 1.0,  # 1/6 in float32: jumps by 1e-8
            lambda x: F.softplus(x, 3.0) * 1.0,  # a shortcut beyond 20: jumps by 7e-10
            lambda x: 1e6 + torch.relu(x - 0.3),
            lambda x: torch.relu(x - 0.37) ** 0.53,
            lambda x: (x - 0.37).abs() ** 0.75,
        ],
    )
    def test_slopes_and_rounding_are_none(self, function):
        assert as_activation(function).kinks


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x * torch.log(x.abs()), r"not finite at x = 0\. .* repair"),
        (lambda x: torch.asin(torch.sin(20 * x)), "too many kinks or steep places"),
        (lambda x: torch.tanh(x).detach(), r"gradient is 0 everywhere.*\.detach"),
        (lambda x: torch.from_numpy(np.tanh(x.detach().numpy())), "gradient is 0 .* NumPy"),
        (lambda x: sum(torch.sin(3.0**k * x) / 2.0**k for k in range(30)), "at every scale"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_reason(function, reason):
    with pytest.raises(ValueError, match=reason):
        as_activation(function)


def test_what_varies_at_every_scale_is_refused_by_a_few_of_its_panels():
    """On all of them it would be called at some ten million points."""
    seen = []

    def rough(x):
        seen.append(x.size)
        return np.sin(1e6 * x), 1e6 * np.cos(1e6 * x)

    with pytest.raises(ValueError, match="at every scale"):
        find_kinks(rough, "rough")
    assert sum(seen) < 1e6


def test_a_constant_has_no_gradient_to_lose():
    assert find_kinks(lambda x: (np.ones_like(x), np.zeros_like(x)), "constant").kinks == ()


@pytest.mark.parametrize("alpha", [0.6, 0.9, 1.3])
@pytest.mark.parametrize("outer", [torch.abs, torch.relu])
def test_kinks_of_powers_are_exact(alpha, outer):
    """Not the number before: slopes at the kink itself are nan. Nor a rounder one."""
    for at in (*np.random.default_rng(3).uniform(-2, 2, 8).tolist(), 1.0139354221803702):
        (kink,) = as_activation(lambda x, at=at: outer(x - at) ** alpha).kinks
        assert kink.at == at
        assert kink.power


def test_no_rate_of_a_power_is_refused_for_the_slope_at_its_kink():
    """It was called too steep. The true rate is that of tests/reference/two_angles.py."""
    at = -1.1007861243128056
    rate = explosion_rate(lambda x: (x - at).abs() ** 0.7573457568715466, 10)
    assert abs(rate.value - 2.219992965) <= rate.error < 1e-7
