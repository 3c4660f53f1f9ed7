"""One machine's share of a grid; every machine that asks computes the same partition."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``index`` of ``count`` parts of equal size.

    Args:
        index: Which part, from 1 to ``count``.
        count: How many parts there are.

    Raises:
        ValueError: If there is no such part.

    Examples:
        >>> [Shard(index, 2).select((3, 1, 2), str) for index in (1, 2)]
        [(3, 1), (2,)]
    """

    index: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise ValueError(
                "a shard is i/n with 1 ≤ i ≤ n, such as 1/4 to 4/4, got "
                f"{self.index}/{self.count}."
            )

    def select(self, cells: Sequence[Item], digest: Callable[[Item], str]) -> tuple[Item, ...]:
        """Return this part's cells, in the grid's order.

        Args:
            cells: The whole grid.
            digest: A cell's hash. Cells are dealt out in its order: in the grid's own, all deep
                networks of a grid over depth might go to one machine.
        """
        if self.count == 1:
            return tuple(cells)
        mine = set(sorted(cells, key=digest)[self.index - 1 :: self.count])
        return tuple(cell for cell in cells if cell in mine)
