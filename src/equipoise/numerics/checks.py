"""Checks of arguments that several rooms share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import TypeGuard


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a real number of any type, NumPy's included; a bool is none.

    Examples:
        >>> is_number(0.5), is_number(True), is_number("0.5")
        (True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is an integer of any type, NumPy's included; neither a bool nor 2.0 is one."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_size(**sizes: int) -> None:
    """Refuse sizes that are not whole numbers of at least 1.

    Raises:
        ValueError: Naming the size and its value.

    Examples:
        >>> check_size(depth=3, width=0)
        Traceback (most recent call last):
        ValueError: width must be a whole number of at least 1; got 0.
    """
    for name, size in sizes.items():
        check_whole(name, size, 1)


def check_whole(name: str, value: object, least: int) -> int:
    """Return a count as an int, whatever integer type it has.

    Raises:
        ValueError: If it is no whole number of at least ``least``.

    Examples:
        >>> check_whole("groups", 1.5, 2)
        Traceback (most recent call last):
        ValueError: groups must be a whole number of at least 2; got 1.5.
    """
    if not is_whole(value) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}.")
    return int(value)


def check_seed(seed: object) -> int:
    """Return a seed as an int, whatever integer type it has.

    Raises:
        ValueError: If PyTorch's generators cannot be seeded with it, and with those that follow.

    Examples:
        >>> check_seed(0.5)
        Traceback (most recent call last):
        ValueError: seed must be a whole number from 0 to 2⁶³ - 1; got 0.5.
    """
    if not is_whole(seed) or not -(2**63) <= seed < 2**63:  # negative ones stand for larger ones
        raise ValueError(f"seed must be a whole number from 0 to 2⁶³ - 1; got {seed!r}.")
    return int(seed)


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a word that is not among the choices.

    Raises:
        ValueError: Naming the choices.
    """
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}; got {value!r}.")


def check_positive(**numbers: float) -> None:
    """Refuse numbers that are not finite and above 0.

    Raises:
        ValueError: Naming the number and its value.
    """
    for name, number in numbers.items():
        if not is_number(number) or not 0 < number < math.inf:
            raise ValueError(f"{name} must be a finite number above 0; got {number!r}.")


def check_within(name: str, value: object, interval: str, remedy: str = "") -> None:
    """Refuse what is no number of an interval.

    Args:
        name: Of the argument.
        value: What was given.
        interval: Such as ``"[0, 1)"``: a square bracket belongs to it, a round one does not.
        remedy: Ends the message.

    Raises:
        ValueError: Naming the interval and the value.

    Examples:
        >>> check_within("rho", 1, "[0, 1)")
        Traceback (most recent call last):
        ValueError: rho must be a number in [0, 1); got 1.
    """
    low, high = map(float, interval[1:-1].split(","))
    outside = not is_number(value) or not low <= value <= high
    if outside or (interval[0] == "(" and value == low) or (interval[-1] == ")" and value == high):
        end = f" {remedy}" if remedy else ""
        raise ValueError(f"{name} must be a number in {interval}; got {value!r}.{end}")


def check_flag(**flags: object) -> None:
    """Refuse what is neither true nor false, such as the word "no", which Python takes for true.

    Raises:
        ValueError: Naming the flag and its value.
    """
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ValueError(f"{name} must be True or False; got {flag!r}.")
