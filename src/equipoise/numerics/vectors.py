"""Lengths of gradients and angles between them: lists of tensors taken as one long vector.

Entries are multiplied and then added by ``torch.sum``, which adds in pairs and so errs by 2·10⁻⁷
in float32 at any length; pieces are added in float64. ``torch.dot`` is off by 5·10⁻⁴ at 10⁶ equal
entries, ``torch.linalg.vector_norm`` by 2·10⁻³ at 3·10⁷ random ones, and in float64 it takes
five times as long. Squares that leave float32's range are computed again in float64, so that
gradients that vanish or explode still have a length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.numerics.pieces import longest_piece

Vector = Sequence[Tensor]

# Of a sum of squares in float32: below, squares of entries may have vanished; above, sums may
# have overflowed.
_SAFE = (1e-20, 1e30)
# Shorter tensors are joined: one call takes as long as summing this many entries.
_SMALL = 2**13


def length(vector: Vector) -> float:
    """Euclidean length, to 2·10⁻⁷; that of one tensor in float64 is :func:`.pieces.norm`.

    Examples:
        >>> length([torch.full((4,), 3e-30), torch.full((4,), 4e-30)])  # squares vanish in float32
        1.0000000...e-29
    """
    squared = _squared(vector, exact=False)
    return math.sqrt(squared if _is_safe(squared) else _squared(vector, exact=True))


@dataclass(frozen=True, slots=True)
class Comparison:
    """A vector compared with a reference.

    Args:
        distance: Length of their difference.
        cosine: Of the angle between them; ``nan`` if one is zero or not finite.
        length: Of the vector.
    """

    distance: float
    cosine: float
    length: float


class Reference:
    """A vector that others are compared with.

    Args:
        vector: Its entries.

    Examples:
        >>> reference = Reference([torch.tensor([3.0, 4.0])])
        >>> reference.compare([torch.tensor([3.0, 0.0])])
        Comparison(distance=4.0, cosine=0.6, length=3.0)
    """

    def __init__(self, vector: Vector) -> None:
        self.vector = tuple(vector)
        self.length = length(self.vector)
        self._pieces = _pieces(self.vector)
        # Reused by all comparisons: allocating it each time would cost as much as the sums.
        self._buffers: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def compare(self, other: Vector) -> Comparison:
        """Distance and angle of another vector."""
        pieces = _pieces(other)
        sums = self._sums(pieces, exact=False)
        if not all(map(_is_safe, (*sums[:2], self.length**2))):
            sums = self._sums(pieces, exact=True)
        distance, own = math.sqrt(sums[0]), math.sqrt(sums[1])
        return Comparison(distance, _cosine(sums[2], own, self.length), own)

    def _sums(self, pieces: list[Tensor], *, exact: bool) -> tuple[float, float, float]:
        r""":math:`\|a - b\|^2, \|a\|^2, \langle a, b \rangle` with a the other vector."""
        products = []
        for a, b in zip(pieces, self._pieces, strict=True):
            x, y = _wide(a, exact), _wide(b, exact)
            buffer = self._buffer(x)
            d = torch.sub(x, y, out=buffer)
            products.append(d.mul_(d).sum())
            products.append(torch.mul(x, x, out=buffer).sum())
            products.append(torch.mul(x, y, out=buffer).sum())
        numbers = _numbers(products)
        return sum(numbers[0::3]), sum(numbers[1::3]), sum(numbers[2::3])

    def _buffer(self, like: Tensor) -> Tensor:
        key = like.dtype, like.device
        if key not in self._buffers:
            pairs = max(2 if piece.is_complex() else 1 for piece in self._pieces)
            longest = max(piece.numel() for piece in self._pieces)
            self._buffers[key] = like.new_empty(pairs * longest)
        return self._buffers[key][: like.numel()]


def _cosine(product: float, a: float, b: float) -> float:
    if a == 0 or b == 0:
        return math.nan
    # Divide twice: the product of both lengths may overflow.
    cosine = product / a / b
    return max(-1.0, min(1.0, cosine)) if math.isfinite(cosine) else math.nan


def _squared(vector: Vector, *, exact: bool) -> float:
    wide = [_wide(piece, exact) for piece in _pieces(vector)]
    return sum(_numbers([(x * x).sum() for x in wide]))


def _is_safe(squared: float) -> bool:
    return _SAFE[0] < squared < _SAFE[1]


def _numbers(scalars: list[Tensor]) -> list[float]:
    """Fetch all with one transfer; parameters may be on several devices."""
    found: list[float] = torch.stack([s.to(scalars[0].device) for s in scalars]).tolist()
    return found


def _pieces(vector: Vector) -> list[Tensor]:
    """All entries as flat tensors of moderate length, in an order set by shapes and types."""
    pieces: list[Tensor] = []
    small: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in vector:
        flat = tensor.reshape(-1)
        if flat.numel() <= _SMALL:
            small.setdefault((flat.dtype, flat.device), []).append(flat)
        else:
            pieces += _cut(flat)
    for group in small.values():
        pieces += _cut(torch.cat(group))
    return pieces


def _cut(flat: Tensor) -> tuple[Tensor, ...]:
    most = longest_piece(flat.device)
    return torch.split(flat, most) if flat.numel() > most else (flat,)


def _wide(piece: Tensor, exact: bool) -> Tensor:
    """In float32 or wider, complex numbers as pairs."""
    if piece.dtype in (torch.float32, torch.float64) and not exact:
        return piece
    if piece.is_complex():
        piece = torch.view_as_real(piece.resolve_conj()).reshape(-1)
    if exact:  # Apple's devices have no float64
        return (piece.cpu() if piece.device.type == "mps" else piece).double()
    return piece.float() if piece.dtype in (torch.float16, torch.bfloat16) else piece
