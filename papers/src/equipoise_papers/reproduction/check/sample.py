"""Draw published cells at random, some of every kind, the same for the same seed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

Key = TypeVar("Key")


def allocate(sizes: Mapping[Key, int], cells: int) -> dict[Key, int]:
    """Say how many cells to draw of each kind.

    Every kind gets one, and the rest are shared in proportion to the square roots of the sizes:
    in proportion to sizes, two experiments of thousands of cells would take nearly all. They are
    given out one by one (Sainte-Laguë's method), so that a larger sample holds the smaller one.

    Args:
        sizes: Cells of each kind.
        cells: How many to draw; all, if there are fewer.

    Raises:
        ValueError: If there are more kinds than cells.

    Examples:
        >>> allocate({"small": 1, "medium": 100, "large": 2500}, 40)
        {'small': 1, 'medium': 7, 'large': 32}
    """
    if cells < len(sizes):
        raise ValueError(
            f"--cells must be at least {len(sizes)}, one of each kind of cells, got {cells}. "
            "Draw more, or name one experiment with --only."
        )
    shares = dict.fromkeys(sizes, 1)
    for _ in range(min(cells, sum(sizes.values())) - len(sizes)):
        unfinished = [key for key in sizes if shares[key] < sizes[key]]
        winner = max(unfinished, key=lambda key: math.sqrt(sizes[key]) / (2 * shares[key] + 1))
        shares[winner] += 1
    return shares


def draw(digests: Iterable[str], count: int, seed: int) -> list[str]:
    """Draw without replacement, by a hash: each set of this size is as likely as any other.

    Args:
        digests: Names of the cells.
        count: How many.
        seed: Other seeds draw other cells.

    Examples:
        >>> draw(["a", "b", "c", "d"], 2, seed=0) == draw(["d", "c", "b", "a"], 3, seed=0)[:2]
        True
    """

    def place(digest: str) -> str:
        return hashlib.sha256(f"{seed} {digest}".encode()).hexdigest()

    return sorted(digests, key=place)[:count]
