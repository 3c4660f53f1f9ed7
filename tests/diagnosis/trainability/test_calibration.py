"""The model of the benchmark's trainings, on numbers written by hand."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.diagnosis.trainability.calibration import (
    FAVOURABLE,
    calibration,
    interval,
    joined,
)
from equipoise.diagnosis.trainability.record import NAMES, Quantities
from support.trainability_examples import CALIBRATION, FIT, HEALTHY, risky

known = st.builds(Quantities, *[st.floats(0, 40)] * len(NAMES))


def test_log_odds_are_linear():
    assert FIT.log_odds(HEALTHY) == pytest.approx(3.0)
    assert FIT.log_odds(risky(explosion=4.0, silence=0.5)) == pytest.approx(3 - 0.5 * 4 - 2 * 0.5)


def test_terms_are_what_each_quantity_adds():
    found = FIT.terms(risky(collapse=2.0))
    assert found == {**dict.fromkeys(NAMES, 0.0), "collapse": -2.0, "samples": 1.0}


@pytest.mark.parametrize("fit", [FIT, *calibration().fits.values()])
@given(known=known, name=st.sampled_from(NAMES), more=st.floats(0, 10))
def test_more_of_a_risk_never_helps_and_more_samples_never_hurt(fit, known, name, more):
    other = dataclasses.replace(known, **{name: getattr(known, name) + more})
    gain = fit.log_odds(other) - fit.log_odds(known)
    assert (gain if name in FAVOURABLE else -gain) >= -1e-9


def test_the_error_is_that_of_a_quadratic_form():
    x = (1.0, *risky(explosion=3.0).values)
    assert FIT.error(risky(explosion=3.0)) == pytest.approx(0.1 * math.hypot(*x))


class TestIntervals:
    @given(st.floats(-900, 900), st.floats(0, 50), st.booleans())
    def test_contain_the_probability(self, odds, error, outside):
        value, low, high = interval(odds, error, outside=outside)
        assert 0 <= low <= value <= high <= 1

    def test_are_of_nine_in_ten_cases(self):
        value, low, high = interval(0.0, 1.0, outside=False)
        assert value == 0.5
        assert math.log(high / (1 - high)) == pytest.approx(1.645)
        assert low == pytest.approx(1 - high)

    def test_are_wider_outside(self):
        inside, outside = (interval(0.3, 0.2, outside=one) for one in (False, True))
        assert inside[0] == outside[0]
        assert outside[1] < inside[1] < inside[2] < outside[2]

    def test_without_error_are_points(self):
        assert len(set(interval(0.3, 0.0, outside=False))) == 1


class TestAlike:
    @pytest.mark.parametrize("probability", [0.0, 0.01, 0.4, 0.99, 1.0])
    def test_are_ten_to_a_hundred(self, probability):
        count, share = FIT.alike(probability)
        assert 10 <= count <= 100
        assert 0 <= share <= 1

    def test_have_about_the_same_odds(self):
        """Where few are as likely to train, few are counted, and not others beside them."""
        crowd = (0.001,) * 12 + tuple(0.5 + i / 1000 for i in range(400))
        fit = dataclasses.replace(FIT, held_out=crowd, trained=(0,) * 12 + (1,) * 400)
        assert fit.alike(0.001) == (12, 0.0)
        assert fit.alike(0.7) == (100, 1.0)

    def test_are_those_around_the_probability(self):
        """With probabilities below one half none trained, above one half all."""
        fit = dataclasses.replace(FIT, trained=tuple(int(p > 0.5) for p in FIT.held_out))
        assert fit.alike(0.1)[1] == 0
        assert fit.alike(0.5)[1] == pytest.approx(0.5)
        assert fit.alike(0.9)[1] == 1

    def test_of_equal_probability_are_all(self):
        fit = dataclasses.replace(FIT, held_out=(0.2,) * 150 + (0.7,) * 250)
        assert fit.alike(0.1)[0] == 150
        assert fit.alike(0.7)[0] == 250

    def test_of_fewer_than_a_hundred_are_all(self):
        fit = dataclasses.replace(FIT, held_out=(0.1, 0.2, 0.3), trained=(0, 0, 1))
        assert fit.alike(0.9) == (3, pytest.approx(1 / 3))


def test_ranges_name_what_is_beyond_them():
    assert CALIBRATION.outside(risky(explosion=9.0)) == ()
    assert CALIBRATION.outside(risky(explosion=9.1, collapse=-0.1)) == ("explosion", "collapse")


class TestJoined:
    """What is predicted and what is measured become one."""

    def test_means_of_each_quantity(self):
        both = joined(risky(collapse=1.0, samples=4.0), risky(collapse=2.0, samples=6.0))
        assert (both.collapse, both.samples) == (1.5, 5.0)
        assert joined(HEALTHY, HEALTHY) == HEALTHY

    def test_an_explosion_counts_as_far_as_both_see_it(self):
        assert joined(risky(explosion=9.0), risky(explosion=2.0)).explosion == 2.0
        assert joined(risky(explosion=0.0), risky(explosion=2.0)).explosion == 0.0

    def test_so_does_faintness(self):
        """Theory may not reach the one matrix that moves."""
        assert joined(risky(faintness=9.0), risky(faintness=2.0)).faintness == 2.0
        assert joined(risky(faintness=0.0), risky(faintness=2.0)).faintness == 0.0

    def test_without_theory_the_measurement_counts(self):
        assert joined(None, risky(size=3.0)) == risky(size=3.0)

    def test_what_is_silent_as_yet_is_not_measured(self):
        silent = risky(silence=1.0, vanishing=40.0)
        assert joined(HEALTHY, silent) == HEALTHY


class TestTheShippedOne:
    """Coarse facts, which every benchmark should teach."""

    def test_it_has_a_fit_of_every_basis(self):
        assert set(calibration().fits) == {"measured", "both"}
        assert set(calibration().ranges) == set(NAMES)

    @pytest.mark.parametrize("basis", ["measured", "both"])
    def test_its_form(self, basis):
        fit = calibration().fits[basis]
        assert set(fit.coefficients) == set(NAMES)
        assert all((c >= 0) == (n in FAVOURABLE) or c == 0 for n, c in fit.coefficients.items())
        assert list(fit.held_out) == sorted(fit.held_out)
        assert len(fit.held_out) == len(fit.trained) == calibration().networks
        assert set(fit.trained) == {0, 1}
        size = 1 + len(NAMES)
        assert [len(row) for row in fit.covariance] == [size] * size

    @pytest.mark.parametrize("basis", ["measured", "both"])
    def test_healthy_networks_train_and_hopeless_ones_do_not(self, basis):
        fit = calibration().fits[basis]
        worst = risky(explosion=40.0, collapse=8.0, size=12.0, imbalance=20.0, fluctuation=5.0)
        assert fit.log_odds(risky(samples=7.0)) > 1.5
        assert fit.log_odds(worst) < -1.5
