"""Another file of a user's, whose variables the models of :mod:`support.hiding_models` change."""

from __future__ import annotations

passes = 0
LENGTHS: list[int] = []


def noted(length: int) -> int:
    """Note the length of a batch, and return how many there were."""
    LENGTHS.append(length)
    return len(LENGTHS)
