"""Fixed points at eps > 0 that only rare samples keep alive."""

import pytest

from equipoise.theory import backward_spectrum, bsb1_fixed_point


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
