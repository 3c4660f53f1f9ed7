"""Checks of arguments: what passes, and what the errors name."""

import math

import numpy as np
import pytest

from equipoise.numerics.checks import check_choice, check_positive, check_size


def test_what_passes():
    check_size(width=1, depth=np.int64(3))
    check_positive(rate=1, scale=1e-300)
    check_choice("padding", "same", ("valid", "same"))


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "3", None])
def test_sizes(size):
    with pytest.raises(
        ValueError, match=rf"^depth must be a whole number of at least 1; got {size!r}"
    ):
        check_size(width=1, depth=size)


@pytest.mark.parametrize("number", [0, -0.1, math.inf, math.nan, "1"])
def test_numbers_above_0(number):
    with pytest.raises(
        ValueError, match=rf"^rate must be a finite number above 0; got {number!r}"
    ):
        check_positive(scale=1.0, rate=number)


@pytest.mark.parametrize("word", ["full", None, ["same"], 1])
def test_choices(word):
    with pytest.raises(ValueError, match=r"^padding must be one of valid, same; got "):
        check_choice("padding", word, ("valid", "same"))
