"""Γ(x + a) / (Γ(x) xᵃ) to rounding, where a difference of log-gammas has lost nine digits."""

import math

import mpmath as mp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.numerics.special import gamma_ratio


def exact(x, a):
    with mp.workdps(40):
        x, a = mp.mpf(x), mp.mpf(a)
        return float(mp.exp(mp.loggamma(x + a) - mp.loggamma(x) - a * mp.log(x)))


@given(x=st.floats(0.05, 1e9), a=st.floats(-0.04, 8.0))
def test_to_rounding(x, a):
    assert gamma_ratio(x, a) == pytest.approx(exact(x, a), rel=1e-14)


def test_a_difference_of_log_gammas_is_not():
    x, a = 5e5, 0.5
    naive = math.exp(math.lgamma(x + a) - math.lgamma(x) - a * math.log(x))
    assert abs(naive / exact(x, a) - 1) > 1e-12
    assert gamma_ratio(x, a) == pytest.approx(exact(x, a), rel=2e-15)


@pytest.mark.parametrize(("x", "a"), [(0.0, 1.0), (-1.0, 0.5), (1.0, -1.0), (math.nan, 1.0)])
def test_outside_its_range_it_refuses(x, a):
    with pytest.raises(ValueError, match="gamma_ratio needs"):
        gamma_ratio(x, a)
