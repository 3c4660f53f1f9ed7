"""Checks of arguments: what passes, and what the errors name."""

import math

import numpy as np
import pytest

from equipoise.numerics.checks import (
    check_choice,
    check_flag,
    check_positive,
    check_size,
    check_within,
)


def test_what_passes():
    check_size(width=1, depth=np.int64(3))
    check_positive(rate=1, scale=1e-300, single=np.float32(1), whole=np.int64(3))
    check_within("rho", 0, "[0, 1)")
    check_within("p", math.inf, "[1, inf]")
    check_flag(centered=False)
    check_choice("padding", "same", ("valid", "same"))


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "3", None])
def test_sizes(size):
    with pytest.raises(
        ValueError, match=rf"^depth must be a whole number of at least 1; got {size!r}"
    ):
        check_size(width=1, depth=size)


@pytest.mark.parametrize("number", [0, -0.1, math.inf, math.nan, "1", True])
def test_numbers_above_0(number):
    with pytest.raises(
        ValueError, match=rf"^rate must be a finite number above 0; got {number!r}"
    ):
        check_positive(scale=1.0, rate=number)


@pytest.mark.parametrize("number", [-0.1, 1, math.nan, "0", True, None])
def test_numbers_of_an_interval(number):
    with pytest.raises(ValueError, match=rf"^rho must be a number in \[0, 1\); got {number!r}\."):
        check_within("rho", number, "[0, 1)")


def test_round_brackets_leave_an_end_out():
    with pytest.raises(ValueError, match=r"^step must be a number in \(0, inf\); got 0\. Try 1\."):
        check_within("step", 0, "(0, inf)", "Try 1.")
    with pytest.raises(ValueError, match=r"^step must be a number in \(0, inf\); got inf\."):
        check_within("step", math.inf, "(0, inf)")


@pytest.mark.parametrize("flag", ["yes", 1, None])
def test_flags(flag):
    with pytest.raises(ValueError, match=rf"^centered must be True or False; got {flag!r}\."):
        check_flag(centered=flag)


@pytest.mark.parametrize("word", ["full", None, ["same"], 1])
def test_choices(word):
    with pytest.raises(ValueError, match=r"^padding must be one of valid, same; got "):
        check_choice("padding", word, ("valid", "same"))
