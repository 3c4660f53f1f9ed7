r"""Rows of the batch that are chosen by number: tokens of one expert, ends of a graph's edges.

A row is a sample, or a sample's position. Chosen rows are samples of their own, with what rows
have on average: of N samples with T positions each,

.. math:: K_{same} = \overline{K(t, t)}, \qquad
          K_{diff} = \overline{K(r, r')} \text{ over pairs of two rows},

whoever chose them. A row that is chosen :math:`c_r` times gets :math:`c_r` gradients,

.. math:: \Pi_{in}(r, r) = \bar c\,\Pi_{same} + \overline{c(c - 1)}\,\Pi_{diff}, \qquad
          \Pi_{in}(r, r') = \bar c^2\,\Pi_{diff} .
"""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.theory.propagation import latent
from equipoise.theory.propagation.call import Call, Pulled, Result, rule
from equipoise.theory.propagation.exchangeable import Exchangeable, kron
from equipoise.theory.propagation.layout import Atom, Layout, UnpredictedError
from equipoise.theory.propagation.values import (
    Gradient,
    Known,
    Moments,
    arranged,
    from_covariance,
)

Array = NDArray[np.float64]


@rule("index")
def index(call: Call) -> Result:
    """``x[numbers]``, for numbers of rows."""
    x, given = call.arguments[0], call.argument("indices")
    chosen = [i for i, numbers in enumerate(given) if numbers is not None]
    if not isinstance(x, Moments) or len(chosen) != 1 or not isinstance(given[chosen[0]], Known):
        raise UnpredictedError("elements that are chosen along several axes, or by random numbers")
    axis, numbers = chosen[0], given[chosen[0]].value
    mask = numbers.dtype is torch.bool
    axes = list(x.layout.axes)
    taken = axes[axis : axis + (numbers.ndim if mask else 1)]  # a mask may have several
    atoms = [atom for own in taken for atom in own]
    roles = {atom.role for atom in atoms}
    plain = mask or numbers.ndim == 1
    if "sample" not in roles or "feature" in roles or not plain or numbers.is_meta:
        raise UnpredictedError("elements that are chosen by number, and are no rows of the batch")
    (sample,) = x.layout.with_role("sample")
    pooled = [atom for atom in x.order if atom in atoms]
    kept = [atom for atom in x.order if atom not in atoms]
    T = prod(atom.size for atom in pooled)
    rows = sample.size * T
    numbers = numbers.flatten().nonzero()[:, 0] if mask else numbers % rows
    axes[axis : axis + len(taken)] = [(Atom.new("sample", len(numbers), sample.times),)]
    layout = Layout(tuple(axes))
    ordered = arranged(x.covariance, x.order, [*pooled, *kept])
    covariance = _of_rows(ordered, T, layout.count("sample"))
    mean = x.mean[x.places([*pooled, *kept])].reshape(T, -1).mean(0)
    output = from_covariance(layout, kept, covariance, mean, _shape(x)).made_of(x)
    counts = torch.bincount(numbers, minlength=rows).double()
    once, again = float(counts.mean()), float((counts * (counts - 1)).mean())

    def pullback(gradient: Gradient) -> Pulled:
        pairs, eye, ones = gradient.pairs, np.eye(T), np.ones((T, T))
        others = pairs.diff * once**2
        own = pairs.same * once + pairs.diff * again
        same = kron(eye, own) + kron(ones - eye, others)
        whole = Exchangeable(same, kron(ones, others), x.correlation.samples)
        back = arranged(whole, [*pooled, *kept], x.order)
        return Pulled([(x, Gradient(back, gradient.weight))])

    return Result(output, pullback)


def _of_rows(pairs: Exchangeable, count: int, taken: int) -> Exchangeable:
    """Averages over one row, and over pairs of two, where T positions and samples are rows.

    Args:
        pairs: Positions that become rows come first.
        count: T.
        taken: How many rows are chosen.
    """
    N = pairs.samples
    same, diff = (
        block.reshape(count, -1, count, len(block) // count) for block in (pairs.same, pairs.diff)
    )
    own = np.einsum("tatb->ab", same) / count
    within, between = same.sum((0, 2)) - own * count, diff.sum((0, 2))
    total = count * (count - 1) + (N - 1) * count**2
    return Exchangeable(own, (within + (N - 1) * between) / max(1, total), taken)


def _shape(x: Moments) -> Array | None:
    """The law of standardised elements; None if it is Gaussian."""
    if x.gaussian:
        return None
    centred = x.typical - latent.mean(x.typical)
    return np.asarray(centred / np.sqrt(latent.mean(centred**2)))
