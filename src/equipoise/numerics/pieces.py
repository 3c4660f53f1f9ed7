"""Sums over all numbers of large tensors, in float64, without a copy of the whole in float64.

Tensors are converted piece by piece, and what is found of the pieces is added where they are: on
an accelerator, nothing waits for it before the end. Tensors of one piece are converted at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from equipoise.numerics.precision import widest

# Numbers in a piece: on a CPU to stay in its cache, elsewhere to bound the memory.
_ON_CPU, _ELSEWHERE = 2**16, 2**22


def longest_piece(device: torch.device) -> int:
    """Numbers that are converted at once."""
    return _ON_CPU if device.type == "cpu" else _ELSEWHERE


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same parts of tensors of one shape, flat and in float64.

    They may share memory with the tensors. Which numbers come together depends on how the first
    tensor lies in memory. Complex numbers are pairs of real ones.

    Examples:
        >>> [[part.tolist() for part in both] for both in pieces(torch.ones(2), torch.zeros(2))]
        [[[1.0, 1.0], [0.0, 0.0]]]
    """
    if any(tensor.is_complex() for tensor in tensors):
        tensors = tuple(torch.view_as_real((x + 0j).resolve_conj()) for x in tensors)
    first = tensors[0]
    order = [*range(first.ndim)]
    if not first.is_contiguous():
        order.sort(key=first.stride, reverse=True)
    yield from _cut([tensor.detach().permute(order) for tensor in tensors])


def slabs(x: Tensor, axis: int) -> Iterator[Tensor]:
    """Parts of a tensor in float64 or complex128, all of which have the whole of one axis.

    They may share memory with the tensor.

    Examples:
        >>> [slab.shape for slab in slabs(torch.ones(3, 2), 0)]
        [torch.Size([3, 2])]
    """
    x = x.detach()
    exact, longest = torch.promote_types(x.dtype, widest(x.device)), longest_piece(x.device)
    if x.ndim < 2 or x.numel() <= longest:
        yield x.to(exact)
        return
    others = [one for one in range(x.ndim) if one != axis % x.ndim]
    across = max(others, key=lambda one: x.shape[one])
    for part in torch.split(x, max(1, longest * x.shape[across] // x.numel()), across):
        yield part.to(exact)


def sums(terms: Callable[..., Sequence[Tensor]], *tensors: Tensor) -> list[float]:
    """Sums of what a function gives for the pieces of tensors of one shape.

    Args:
        terms: Takes a piece of each, and gives numbers to be added.
        tensors: Of one shape and on one device.

    Examples:
        >>> sums(lambda x, y: [x.sum(), x @ y], torch.arange(4), torch.ones(4))
        [6.0, 6.0]
    """
    total: Tensor | None = None
    for part in pieces(*tensors):
        found = torch.stack(list(terms(*part)))
        total = found if total is None else total + found
    return [] if total is None else list(map(float, total.tolist()))


def norm(x: Tensor) -> float:
    """Euclidean length, in float64; :func:`.vectors.length` is faster, and takes several tensors.

    Examples:
        >>> norm(torch.tensor([[3.0, 4.0]]))
        5.0
    """
    (square,) = sums(lambda x: [x @ x], x)
    return math.sqrt(square)


def cosine(a: Tensor, b: Tensor) -> float:
    """Of the angle between two tensors of one shape; 0 if one is zero.

    Examples:
        >>> cosine(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.0]))
        1.0
    """
    return _cosine(a, b, 0.0, 0.0)


def correlation(a: Tensor, b: Tensor) -> float:
    """Of the numbers of two tensors, one of which may be repeated; 0 if one is constant.

    Examples:
        >>> round(correlation(torch.tensor([1.0, 2.0]), torch.tensor([5.0, 3.0])), 12)
        -1.0
    """
    shape = torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
    a, b = a.detach().expand(shape), b.detach().expand(shape)
    return _cosine(a, b, mean(a), mean(b))


def _cosine(a: Tensor, b: Tensor, first: float, second: float) -> float:
    """Between what is left of two tensors less a number each."""

    def products(x: Tensor, y: Tensor) -> list[Tensor]:
        x, y = x - first, y - second
        return [x @ x, y @ y, x @ y]

    square, other, product = sums(products, a, b)
    size = math.sqrt(square) * math.sqrt(other)
    return product / size if size > 0 else 0.0


def mean(x: Tensor) -> float:
    """Average; nan of no numbers.

    Examples:
        >>> mean(torch.tensor([1.0, 2.0]))
        1.5
    """
    (total,) = sums(lambda x: [x.sum()], x)
    return total / x.numel() if x.numel() else math.nan


def deviation(x: Tensor) -> float:
    """Standard deviation, as ``Tensor.std`` has it; nan of fewer than two numbers.

    Examples:
        >>> deviation(torch.tensor([1.0, 3.0])) ** 2
        2.0000000000000004
    """
    if x.numel() < 2:
        return math.nan
    return distance(x, mean(x)) / math.sqrt(x.numel() - 1)


def distance(x: Tensor, number: float) -> float:
    """Length of the difference of a tensor and a number.

    Examples:
        >>> distance(torch.tensor([4.0, 1.0]), 1.0)
        3.0
    """

    def squared(x: Tensor) -> list[Tensor]:
        d = x - number
        return [d @ d]

    return math.sqrt(sums(squared, x)[0])


def largest(x: Tensor) -> float:
    """The largest absolute value, nan where there is one; without a temporary of x's size.

    Examples:
        >>> largest(torch.tensor([1.0, -2.0]))
        2.0
    """
    low, high = torch.aminmax(x.detach())
    return float(torch.maximum(high, -low))


def _cut(tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    first = tensors[0]
    exact, longest = widest(first.device), longest_piece(first.device)
    if not first.ndim or first.numel() <= longest:
        yield tuple(tensor.to(exact).reshape(-1) for tensor in tensors)
        return
    if all(tensor.is_contiguous() for tensor in tensors):
        tensors = [tensor.view(-1) for tensor in tensors]
    row = first.numel() // len(first) if tensors[0].ndim > 1 else 1
    if row > longest:
        for rows in zip(*(tensor.unbind() for tensor in tensors), strict=True):
            yield from _cut(rows)
        return
    for parts in zip(*(torch.split(tensor, longest // row) for tensor in tensors), strict=True):
        yield tuple(part.to(exact).reshape(-1) for part in parts)
