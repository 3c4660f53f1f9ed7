"""Shards split a grid: every cell in exactly one, equally many in each, the same everywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise_papers.sweeps.shard import Shard
from equipoise_papers.sweeps.store import digest as digest_of

GRID = tuple(range(100))


def digest(cell):
    return digest_of({"experiment": "toy.numbers", "revision": 1, "cell": cell})


def shards(count, cells=GRID):
    return [Shard(index, count).select(cells, digest) for index in range(1, count + 1)]


@given(st.integers(1, 12), st.integers(0, 40))
def test_every_cell_is_in_exactly_one_and_sizes_differ_by_one_at_most(count, size):
    parts = shards(count, GRID[:size])
    assert sorted(cell for part in parts for cell in part) == list(range(size))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_the_grids_order_is_kept_but_does_not_decide():
    (part, reordered) = (Shard(1, 4).select(cells, digest) for cells in (GRID, GRID[::-1]))
    assert list(part) == sorted(part)
    assert reordered == part[::-1]


def test_shards_of_a_periodic_grid_are_balanced():
    """The twin: every fourth cell in the grid's order, such as all deep networks."""
    assert all(len({cell % 4 for cell in part}) == 4 for part in shards(4))
    assert all(len({cell % 4 for cell in GRID[k::4]}) == 1 for k in range(4))


@pytest.mark.parametrize(("index", "count"), [(0, 2), (3, 2), (1, 0), (-1, 2)])
def test_a_shard_that_does_not_exist(index, count):
    with pytest.raises(ValueError, match=rf"such as 1/4 to 4/4, got {index}/{count}"):
        Shard(index, count)
