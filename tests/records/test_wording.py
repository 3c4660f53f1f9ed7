import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.records import Estimate, wording
from support.report_examples import hostile_checkup


@pytest.mark.parametrize("power", range(-300, 301, 50))
def test_numbers_keep_their_value_to_the_digits_shown(power):
    value = 3.14159 * 10.0**power
    text = wording.number(value).replace("×10", "e")
    plain = text.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    assert float(plain) == pytest.approx(value, rel=2e-3)


def test_rounding_up_to_the_next_power_of_ten():
    assert wording.number(9.999) == "10.0"
    assert wording.number(999999.0) == "1×10⁶"


finite = st.floats(-1e300, 1e300).filter(lambda x: x == 0 or abs(x) > 1e-290)


def shown(text):
    """The value and the error that a text shows, read back."""
    plain = text.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹−", "-0123456789-"))
    both, _, power = plain.removeprefix("(").partition(")×10")
    numbers = [float(part.replace("×10", "e")) for part in both.split(" ± ")]
    return [number * 10.0 ** int(power or 0) for number in numbers]


@given(finite, st.floats(1e-11, 1e3))
def test_a_spread_is_within_its_error_of_the_value(value, ratio):
    """No digit is lost that the error knows, and the error is right to one digit."""
    error = ratio * (abs(value) or 1.0)
    text = wording.spread(Estimate(value, error, "measured"))
    assert len(text) <= 32
    found, spread = shown(text)
    assert abs(found - value) <= max(error, 1e-3 * abs(value))
    assert error / 1.6 <= spread <= 1.6 * error


@given(finite)
def test_an_exact_value_keeps_five_digits(value):
    (found,) = shown(wording.spread(Estimate(value, 0.0, "exact")))
    assert found == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (math.nan, 0.1, "NaN"),
        (math.inf, math.nan, "∞"),
        (-math.inf, 1.0, "−∞"),
        (1.5, math.inf, "1.50 ± ?"),
    ],
)
def test_what_is_not_finite(value, error, text):
    estimate = Estimate(value, error, "measured")
    assert wording.spread(estimate) == text
    assert wording.factor(estimate) == f"×{text}"


def test_an_error_larger_than_its_value_sets_the_scale():
    assert wording.spread(Estimate(0.0003, 0.012, "measured")) == "0.000 ± 0.012"


def test_ordinary_text_stays_as_it_is():
    text = "κ ≈ 3 → “Größe” 漢字\nnext"
    assert wording.printable(text) == text


def test_nested_records_are_made_printable():
    clean = wording.printable(hostile_checkup())
    assert "\x1b" not in repr(clean)
    assert clean.growth.layers[8].layer == r"esc\x1b[31m\udcff"
