"""Checks of arguments that several rooms share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral


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
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}.")
    return int(value)


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
        if not isinstance(number, int | float) or not 0 < number < math.inf:
            raise ValueError(f"{name} must be a finite number above 0; got {number!r}.")
