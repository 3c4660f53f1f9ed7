r"""The linear maps Pᵀ, P and PPᵀ on the weight and bias of one layer.

With features :math:`h = \mu + \tilde\sigma z`, the parameters of the standardised features z are
:math:`W_z = W \mathrm{diag}(\tilde\sigma)`, :math:`b_z = b + W \mu`. A gradient with respect to
them is :math:`P^T g`, a change of them is the change :math:`P \Delta` of W and b.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

# G: gradient or change of the weight, g: of the bias, mu: mean, q: row scale
Pair: TypeAlias = tuple[Tensor, Tensor | None]


@dataclass(frozen=True, slots=True)
class Factors:
    """What a map multiplies by.

    Args:
        mean: μ of all groups, ``[channels * taps]``; None for a layer that is not centred.
        columns: 1/(q σ̃), or its square for PPᵀ, ``[channels * taps]``.
        bias: 1/q, or its square.
        groups: Independent sub-layers.
    """

    mean: Tensor | None
    columns: Tensor
    bias: Tensor
    groups: int = 1


def to_standardised(G: Tensor, g: Tensor | None, factors: Factors, *, inplace: bool) -> Pair:
    r"""Return :math:`P^T g / q`, the gradient that the standardised layer would have."""
    new = _weight(G, g, factors, inplace=inplace)
    if g is None:
        return new, None
    return new, g.mul_(factors.bias) if inplace else g * factors.bias


def from_standardised(G: Tensor, g: Tensor | None, factors: Factors, *, inplace: bool) -> Pair:
    r"""Return :math:`P \Delta / q`, the change that a change of the standardised layer means."""
    new = _weight(G, None, factors, inplace=inplace)
    return new, _bias(new, g, factors, inplace=inplace)


def precondition(G: Tensor, g: Tensor | None, factors: Factors, *, inplace: bool) -> Pair:
    r"""Return :math:`PP^T g / q^2`; the factors are the squared ones.

    The bias needs the *new* weight gradient: with the old one the result is not
    :math:`PP^T g` (the paper's step 5 says so, its text does not).
    """
    new = _weight(G, g, factors, inplace=inplace)
    return new, _bias(new, g, factors, inplace=inplace)


def _weight(G: Tensor, g: Tensor | None, factors: Factors, *, inplace: bool) -> Tensor:
    """(G − g μᵀ) · columns."""
    mean, columns, shape = factors.mean, factors.columns, G.shape
    if factors.groups == 1 and G.is_contiguous():
        rows = G if G.dim() == 2 else G.view(len(G), -1)
        if mean is None or g is None:
            new = rows.mul_(columns) if inplace else rows * columns
        elif inplace:
            new = rows.addr_(g, mean, alpha=-1).mul_(columns)
        else:
            new = torch.addr(rows, g, mean, alpha=-1).mul_(columns)
        return G if inplace else new.view(shape)
    spread = [factors.groups, 1, *shape[1:]]
    grouped = _by_group(G, factors.groups)
    if mean is not None and g is not None:
        each = g.view(factors.groups, -1, *[1] * (G.dim() - 1))
        out = grouped if inplace else None
        grouped = torch.addcmul(grouped, each, mean.view(spread), value=-1, out=out)
    columns = columns.view(spread)
    new = grouped.mul_(columns) if inplace else grouped * columns
    return G if inplace else new.flatten(0, 1)


def _bias(G: Tensor, g: Tensor | None, factors: Factors, *, inplace: bool) -> Tensor | None:
    """Return g · bias − G μ, with the G just made."""
    if g is None:
        return None
    g = g.mul_(factors.bias) if inplace else g * factors.bias
    mean = factors.mean
    if mean is None:
        return g
    if factors.groups == 1 and G.is_contiguous():
        return g.addmv_(G if G.dim() == 2 else G.view(len(G), -1), mean, alpha=-1)
    moved = _by_group(G, factors.groups) * mean.view(factors.groups, 1, *G.shape[1:])
    return g.sub_(moved.flatten(2).sum(2).view_as(g))


def _by_group(G: Tensor, groups: int) -> Tensor:
    apart: Tensor = G.unflatten(0, (groups, -1))  # type: ignore[no-untyped-call]
    return apart
