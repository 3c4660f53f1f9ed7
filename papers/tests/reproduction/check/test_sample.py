"""Samples hold some cells of every kind, and larger ones hold smaller ones."""

from __future__ import annotations

import pytest

from equipoise_papers.reproduction.check.sample import allocate, draw

SIZES = {"one": 1, "few": 5, "many": 2000}
NAMES = [f"cell {number}" for number in range(200)]


@pytest.mark.parametrize("cells", [3, 4, 10, 100, 2006])
def test_every_kind_is_drawn_and_the_sum_is_kept(cells):
    shares = allocate(SIZES, cells)
    assert sum(shares.values()) == cells
    assert all(1 <= shares[kind] <= size for kind, size in SIZES.items())


def test_more_cells_than_there_are_draws_all():
    assert allocate(SIZES, 9999) == SIZES


def test_a_larger_sample_holds_the_smaller_one():
    for cells in range(3, 300):
        less, more = allocate(SIZES, cells), allocate(SIZES, cells + 1)
        assert all(less[kind] <= more[kind] for kind in SIZES)
    assert draw(NAMES, 20, seed=1)[:10] == draw(NAMES, 10, seed=1)


def test_fewer_cells_than_kinds_are_refused():
    with pytest.raises(ValueError, match="--cells must be at least 3, one of each kind"):
        allocate(SIZES, 2)


def test_the_seed_alone_decides_which():
    assert draw(NAMES, 20, seed=1) == draw(reversed(NAMES), 20, seed=1)
    assert {*draw(NAMES, 20, seed=1)} != {*draw(NAMES, 20, seed=2)}


def test_each_cell_is_as_likely_as_any_other():
    """Of 10 cells 3, in 1,000 samples: each is drawn 300 ± 14.5 times."""
    counts = dict.fromkeys(NAMES[:10], 0)
    for seed in range(1000):
        for name in draw(counts, 3, seed):
            counts[name] += 1
    assert all(abs(count - 300) < 4 * 14.5 for count in counts.values())
