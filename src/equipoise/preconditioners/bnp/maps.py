r"""The linear maps Pᵀ, P and PPᵀ on gradients and steps of one layer.

With features :math:`h = \mu + \tilde\sigma z`, the parameters of the standardised features z are
:math:`W_z = W \mathrm{diag}(\tilde\sigma)`, :math:`b_z = b + W \mu`. A gradient with respect to
them is :math:`P^T g`, a change of them is the change :math:`P \Delta` of W and b.

Weights may be of any type, and split over processes: weight and bias are split alike by rows
(output units) and the maps act on columns, so each shard is mapped without communication.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

# G: gradient or change of the weight, g: of the bias, mu: mean, q: row scale
Pair: TypeAlias = tuple[Tensor, Tensor | None]
Map: TypeAlias = Callable[..., Pair]


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


def mapped(mapping: Map, weight: Tensor, bias: Tensor | None, factors: Factors) -> Pair:
    """Apply a map to copies of weight and bias."""
    if _directly(weight, factors):
        return mapping(weight, bias, factors, inplace=False)
    pair = torch.empty_like(weight), None if bias is None else torch.empty_like(bias)
    _map_converted(mapping, (weight, bias), factors, pair)
    return pair


def map_in_place(mapping: Map, weight: Tensor, bias: Tensor | None, factors: Factors) -> None:
    """Replace weight and bias by what the map makes of them."""
    if _directly(weight, factors):
        mapping(weight, bias, factors, inplace=True)
    else:
        _map_converted(mapping, (weight, bias), factors, (weight, bias))


def is_sharded(tensor: Tensor) -> bool:
    """Whether the tensor is a ``DTensor`` (FSDP2, tensor parallelism)."""
    # The type is looked at first because asking a tensor for an attribute it lacks is slow.
    return type(tensor) not in (Tensor, nn.Parameter) and hasattr(tensor, "_local_tensor")


def split_by_columns(tensor: Tensor) -> bool:
    """Whether a process lacks some columns of its rows."""
    if not is_sharded(tensor):
        return False
    return any(
        not (placement.is_replicate() or placement.is_shard(0))
        for placement in tensor.placements  # type: ignore[attr-defined]
    )


def clip_gradients(
    parameters: Iterable[Tensor], max_norm: float, scale: Tensor | None = None
) -> None:
    """Bound the norm of all gradients together, without waiting for the device.

    Args:
        parameters: Those without a gradient are passed over.
        max_norm: The bound.
        scale: Of a gradient scaler, if the gradients still carry it.
    """
    having = [(p, p.grad) for p in parameters if p.grad is not None]
    dense = [(p, g) for p, g in having if g.layout is torch.strided]
    sparse = [g for _, g in having if g.layout is not torch.strided]
    norm = get_total_norm([g for _, g in dense])
    if sparse:  # of embeddings; PyTorch's own functions refuse them
        values = [g.coalesce().values() for g in sparse]
        others = get_total_norm(values).to(norm.device)
        norm = torch.linalg.vector_norm(torch.stack([norm, others.to(norm.dtype)]))
    norm = norm if scale is None else norm / scale
    clip_grads_with_norm_([p for p, _ in dense], max_norm, norm)
    for gradient in sparse:
        gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0).to(gradient.device))


def _directly(weight: Tensor, factors: Factors) -> bool:
    return weight.dtype is factors.columns.dtype and not is_sharded(weight)


def _map_converted(mapping: Map, source: Pair, factors: Factors, target: Pair) -> None:
    """Map the rows held here in the type of the statistics, since G − g μᵀ cancels."""
    dtype = factors.columns.dtype
    weight, bias = (None if t is None else local(t).to(dtype) for t in source)
    assert weight is not None
    for kept, new in zip(target, mapping(weight, bias, factors, inplace=False), strict=True):
        if kept is not None and new is not None:
            local(kept).copy_(new)


def local(tensor: Tensor) -> Tensor:
    """The rows that this process holds, sharing memory."""
    # Only a DTensor gets here, and Tensor does not declare its attribute.
    here: Tensor = tensor._local_tensor if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return here


def _weight(G: Tensor, g: Tensor | None, factors: Factors, *, inplace: bool) -> Tensor:
    """(G − g μᵀ) · columns."""
    mean, columns = factors.mean, factors.columns
    if factors.groups == 1 and G.is_contiguous():
        rows = G if G.dim() == 2 else G.view(len(G), -1)
        if mean is None or g is None:
            new = rows.mul_(columns) if inplace else rows * columns
        elif inplace:
            new = rows.addr_(g, mean, alpha=-1).mul_(columns)
        else:
            new = torch.addr(rows, g, mean, alpha=-1).mul_(columns)
        return new if rows is G else new.view(G.shape)
    spread = [factors.groups, 1, *G.shape[1:]]
    grouped = _by_group(G, factors.groups)
    if mean is not None and g is not None:
        each = g.view(factors.groups, -1, *[1] * (G.dim() - 1))
        out = grouped if inplace else None
        grouped = torch.addcmul(grouped, each, mean.view(spread), value=-1, out=out)
    columns = columns.view(spread)
    new = grouped.mul_(columns) if inplace else grouped * columns
    return G if inplace else new.flatten(0, 1)


def _bias(G: Tensor, g: Tensor | None, factors: Factors, *, inplace: bool) -> Tensor | None:
    """Return g · bias − G μ, with the new G."""
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
