import math

import pytest

from equipoise.records import Estimate
from equipoise.report import wording


@pytest.mark.parametrize("power", range(-300, 301, 50))
def test_numbers_keep_their_value_to_the_digits_shown(power):
    value = 3.14159 * 10.0**power
    text = wording.number(value).replace("×10", "e")
    plain = text.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    assert float(plain) == pytest.approx(value, rel=2e-3)


def test_rounding_up_to_the_next_power_of_ten():
    assert wording.number(9.999) == "10.0"
    assert wording.number(999999.0) == "1×10⁶"


@pytest.mark.parametrize("value", [0.0, 1e-9, -0.3, 1.5, 2e300, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("error", [0.0, 1e-300, 0.01, 7.0, 1e300, math.inf, math.nan])
def test_every_estimate_has_short_words(value, error):
    estimate = Estimate(value, error, "measured")
    assert 0 < len(wording.spread(estimate)) < 400
    assert wording.factor(estimate).startswith("×")


def test_an_error_larger_than_its_value_sets_the_scale():
    assert wording.spread(Estimate(0.0003, 0.012, "measured")) == "0.000 ± 0.012"


def test_ordinary_text_stays_as_it_is():
    text = "κ ≈ 3 → “Größe” 漢字\nnext"
    assert wording.printable(text) == text


def test_nested_records_are_made_printable(hostile):
    clean = wording.printable(hostile)
    assert "\x1b" not in repr(clean)
    assert clean.growth.layers[8].layer == r"esc\x1b[31m\udcff"
