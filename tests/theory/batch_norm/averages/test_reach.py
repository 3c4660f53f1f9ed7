"""How far from the centre samples matter, down to those too rare for float64."""

import pytest
import torch

from equipoise.theory import explosion_rate
from equipoise.theory.batch_norm.setting import ConvergenceError

pytestmark = pytest.mark.filterwarnings("ignore:the BSB1 fixed point")


@pytest.mark.parametrize(
    ("options", "true"),
    [
        # E[(n − w²) 1{w > b}] / E[(w − b)₊²] / (B − 3) by mpmath, 40 digits; what two samples
        # share is below e^-400 of it.
        ({"batch_size": 1000, "gamma": 0.12, "beta": -3.0}, 840.565368698),
        ({"batch_size": 1000, "beta": -25.0}, 840.565368698),
        ({"batch_size": 10_000, "beta": -30.0}, 497.20188035),
        ({"batch_size": 1000, "beta": -20.0}, 337.380923849),
    ],
)
def test_a_kink_that_only_the_rarest_samples_pass(options, true):
    rate = explosion_rate("relu", **options)
    assert rate.value == pytest.approx(true, abs=rate.error + 1e-9 * true)
    assert rate.error < 1e-11 * true


@pytest.mark.parametrize(
    ("activation", "options"),
    [
        # f² times the density peaks at e^-12600 · e^12800 for s = 3.9: the true rate is 6400.46.
        (lambda x: torch.exp(x * x / 3.9), {}),
        (lambda x: torch.exp(x * x / 4), {}),
        (lambda x: torch.exp(x * x / 3.5), {"batch_size": 10_000}),  # 355.36 and not 269.76
        # Nothing of it is seen within 30 standard deviations.
        (lambda x: torch.tanh(x) + 1e-30 * torch.exp(x * x / 3.9), {}),
        ("relu", {"batch_size": 1000, "beta": -27.0}),  # density e^-657 and below
    ],
)
def test_where_samples_too_rare_for_float64_matter_it_says_so(activation, options):
    with pytest.raises(ConvergenceError, match="density below e"):
        explosion_rate(activation, **{"batch_size": 10**6, **options})


def test_growth_that_ends_in_time_is_no_reason():
    """f² times the density peaks within reach: e^x²/3 at B = 1000, by integration in w."""
    rate = explosion_rate(lambda x: torch.exp(x * x / 3), 1000)
    assert rate.value == pytest.approx(82.55548049471847, abs=rate.error + 2e-8)
    assert rate.error < 1e-10
