"""Validation that the heads share."""

from __future__ import annotations

from collections.abc import Sequence


def check_size(**sizes: int) -> None:
    """Refuse sizes that are not whole numbers of at least 1.

    Raises:
        ValueError: Naming the size.
    """
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} must be a whole number of at least 1; got {size!r}.")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a word that is not among the known ones.

    Raises:
        ValueError: Naming the choices.
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}.")
