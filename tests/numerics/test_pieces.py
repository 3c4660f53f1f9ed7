"""Sums over pieces are those of the whole, however tensors lie in memory."""

import math

import pytest
import torch

from equipoise.numerics import pieces
from equipoise.numerics.pieces import (
    correlation,
    cosine,
    deviation,
    distance,
    largest,
    mean,
    norm,
    slabs,
    sums,
)
from support.cases import each

EXACT = 1e-13


def drawn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


TENSORS = {
    "of one piece": drawn(30, 7),
    "a number": drawn(1)[0],
    "of several pieces": drawn(300, 700),
    "transposed": drawn(300, 700).t(),
    "with gaps": drawn(300, 1400)[:, ::2],
    "of long rows": drawn(3, 200_000)[:, :150_000],
    "maps with channels last": drawn(8, 16, 40, 40).to(memory_format=torch.channels_last),
    "repeated": drawn(300, 1).expand(300, 700),
    "in half precision": drawn(300, 700, dtype=torch.bfloat16),
    "whole numbers": torch.arange(200_000).reshape(400, 500),
}


@each("x", TENSORS.values(), ids=TENSORS)
def test_the_whole_is_summed(x):
    whole = x.double()
    assert norm(x) == pytest.approx(float(whole.norm()), rel=EXACT)
    assert mean(x) == pytest.approx(float(whole.mean()), rel=1e-9, abs=1e-12)
    assert distance(x, 2.0) == pytest.approx(float((whole - 2).norm()), rel=EXACT)
    if x.numel() > 1:
        assert deviation(x) == pytest.approx(float(whole.std()), rel=EXACT)
    if x.is_floating_point():
        assert largest(x) == float(whole.abs().max())


@each("x", TENSORS.values(), ids=TENSORS)
def test_numbers_of_two_tensors_meet_at_the_same_place(x):
    y = drawn(*x.shape, seed=1)
    (product,) = sums(lambda a, b: [a @ b], x, y)
    expected = float((x.double() * y.double()).sum())
    assert product == pytest.approx(expected, rel=1e-10, abs=1e-9 * norm(x) * norm(y))
    size = norm(x) * norm(y)
    assert cosine(x, y) == pytest.approx(expected / size, rel=1e-9, abs=1e-12)


def test_correlations_of_what_is_repeated():
    x, y = drawn(400, 300), drawn(300, seed=1)
    both = torch.stack([x.double().flatten(), y.double().expand(400, 300).flatten()])
    assert correlation(x, y) == pytest.approx(float(torch.corrcoef(both)[0, 1]), rel=1e-9)
    assert correlation(x, torch.full((300,), 0.1)) == 0.0


@each("x", TENSORS.values(), ids=TENSORS)
@each("axis", [0, 1, -1])
def test_slabs_have_the_whole_of_an_axis(x, axis):
    if x.ndim < 2:
        assert [slab.tolist() for slab in slabs(x, -1)] == [x.tolist()]
        return
    found = list(slabs(x, axis))
    assert all(slab.shape[axis] == x.shape[axis] for slab in found)
    assert all(slab.dtype == torch.float64 for slab in found)
    total = sum(float(slab.sum()) for slab in found)
    assert total == pytest.approx(float(x.double().sum()), rel=1e-9, abs=1e-6)


def test_pieces_are_short(monkeypatch):
    monkeypatch.setattr(pieces, "_ON_CPU", 100)
    for x in TENSORS.values():
        for (part,) in pieces.pieces(x[:5] if x.ndim else x):
            assert part.numel() <= 100


def test_what_has_no_number():
    empty = torch.ones(0, 3)
    assert norm(empty) == 0.0
    assert math.isnan(mean(empty))
    assert math.isnan(deviation(torch.ones(1)))
    assert cosine(torch.zeros(3), torch.ones(3)) == 0.0
    assert math.isnan(largest(torch.tensor([1.0, math.nan])))


def test_numbers_too_small_for_squares_in_float32():
    assert norm(torch.full((4,), 1e-30)) == pytest.approx(2e-30, rel=1e-6)


@pytest.mark.parametrize("shape", [(3,), (300, 400)])
def test_complex_numbers_count_with_both_parts(shape):
    z = torch.randn(*shape, dtype=torch.complex64).t().conj()
    assert norm(z) == pytest.approx(float(z.abs().double().square().sum().sqrt()))
    both = torch.cat(list(slabs(z, 0)), -1)
    assert both.is_complex()
    assert float(both.abs().square().sum()) == pytest.approx(norm(z) ** 2)
