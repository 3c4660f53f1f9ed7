"""Checks of arguments that several experiments need."""

from __future__ import annotations

from numbers import Integral


def whole_number(name: str, value: object, least: int) -> int:
    """Check a count, of any integer type.

    Raises:
        ValueError: If it is not a whole number of at least ``least``.

    Examples:
        >>> whole_number("draws", 1, 2)
        Traceback (most recent call last):
        ValueError: draws must be a whole number of at least 2, got 1.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    return int(value)
