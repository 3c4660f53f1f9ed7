"""Validation that all the models share."""

from __future__ import annotations

import math
from collections.abc import Iterable


def check_positive(**sizes: int) -> None:
    """Refuse sizes that are not positive whole numbers."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {size!r}.")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a word that is not among the known ones."""
    known = list(choices)
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}.")


def check_positive_number(**numbers: float) -> None:
    """Refuse numbers that are not positive and finite."""
    for name, number in numbers.items():
        if not isinstance(number, int | float) or not 0 < number < math.inf:
            raise ValueError(f"{name} must be a finite number above 0, got {number!r}.")
