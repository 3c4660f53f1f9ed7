r"""Sums and differences of two tensors.

Functions of the same latents are added point by point, which is exact; so are positions of one
tensor at different places, :math:`R_a x + R_b x = (R_a + R_b) x`. Others are taken as
independent but for their means over features:

.. math:: K_{a+b} = K_a + K_b + m_a m_b' + m_b m_a' .

That holds where one of the two ends in weights of its own; where both depend on the same elements
of a third tensor they are drawn, or refused. The law of the sum is that of two independent
elements; correlations of its latents follow from K.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.theory.propagation import latent
from equipoise.theory.propagation.call import Call, Pulled, Result, rule
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.rules.arithmetic.alignment import (
    both_aligned,
    copies_of_features,
    has_scalar,
    inputs_of,
    unaligned,
)
from equipoise.theory.propagation.rules.arithmetic.dependence import (
    by_draws,
    common_source,
    law_of_independent,
    of_dependent,
    through_root,
)
from equipoise.theory.propagation.rules.pointwise import pointwise
from equipoise.theory.propagation.rules.positions.matrices import mapped
from equipoise.theory.propagation.values.covariances import from_covariance
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.moments import Drawn, Moments

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

# A gradient whose average product with a latent is below this is taken not to depend on it.
_UNCOUPLED = 1e-6


@rule("add", "sub")
def add(call: Call) -> Result:
    """``a + alpha b``, and ``a - alpha b``."""
    if has_scalar(call):
        return pointwise(call)
    a, b = both_aligned(call)
    sign = float(call.argument("alpha", 1)) * (-1 if call.node.name == "sub" else 1)
    source = common_source(a, b)
    if source is not None:
        matrix = a.matrix_from(source) + sign * b.matrix_from(source)
        return mapped(source, source.order, matrix, a.layout, a.order)
    if sign != 1:
        b = b.with_table(sign * b.table, gaussian=b.gaussian)
    both = None
    if a.latent == b.latent or a.is_constant or b.is_constant:
        lead = b if a.is_constant else a
        output = lead.with_table(a.table + b.table, gaussian=a.gaussian and b.gaussian)
    elif (both := of_dependent(a, b, torch.add)) is not None:
        output = both
    else:
        K, L = a.covariance, b.covariance
        cross = np.outer(a.mean, b.mean) + np.outer(b.mean, a.mean)
        total = Exchangeable(K.same + L.same + cross, K.diff + L.diff + cross, K.samples)
        shape = None if a.gaussian and b.gaussian else law_of_independent(a, b, latent.of_sum)
        output = from_covariance(a.layout, a.order, total, a.mean + b.mean, shape)
        output = replace(
            output.made_of(a, b),
            scatter=_scatter_of_sum(a, b, total),
            steady=_part_of_sum(a, b, a.steady, b.steady),
            balanced=_part_of_sum(a, b, a.balanced, b.balanced),
            drawn=Drawn((a, b), torch.add),
        )

    def pullback(gradient: Gradient) -> Pulled:
        if output.drawn is not None and (gradient.draws is not None or both is not None):
            return by_draws(inputs_of(call), output, gradient, (1.0, sign))
        if a.latent == b.latent and (found := through_root(a, b, output, gradient)):
            return found
        inputs = []
        places = _places(output, a, b)
        for original, like, looks, factor in zip(
            inputs_of(call), (a, b), (places, _turned(places)), (1.0, sign), strict=True
        ):
            if isinstance(original, Moments) and not original.is_constant:
                seen = _seen_by_part(output, like, looks)
                weight = _weight_of_part(gradient.weight, seen)
                pairs = unaligned(gradient.pairs * factor**2, like, original)
                pairs = pairs * copies_of_features(original, output)
                share = _share_of_latent(gradient.weight, output, like, seen)
                excess = _excess_of_part(gradient, share, like, original)
                part = float((like.std**2).mean()) / max(float((output.std**2).mean()), 1e-300)
                orthogonal = gradient.orthogonal * min(part, 1.0)
                own = Gradient(pairs, weight, excess, orthogonal=orthogonal)
                inputs.append((original, own))
        return Pulled(inputs)

    return Result(output, pullback)


def _scatter_of_sum(a: Moments, b: Moments, total: Exchangeable) -> float:
    """Of two tensors that differ from the average sample alike, as x and a function of x do."""
    if not (a.scatter or b.scatter):
        return 0.0
    part = sum(
        value.covariance.spread * np.sign(value.scatter) * abs(value.scatter) ** 0.5
        for value in (a, b)
    )
    whole = total.spread
    return float(np.sign(part) * (part / whole) ** 2) if whole > 0 else 0.0


def _part_of_sum(a: Moments, b: Moments, of_a: float, of_b: float) -> float:
    """Part of the squared variance, from those of two independent tensors."""
    first, second = (float((value.std**2).mean()) for value in (a, b))
    whole = (first + second) ** 2
    return (of_a * first**2 + of_b * second**2) / whole if whole > 0 else 0.0


def _excess_of_part(
    gradient: Gradient, share: float, like: Moments, original: Moments
) -> Exchangeable | None:
    """What a part of a sum has in common with the gradient, a share of what the sum has."""
    if gradient.excess is None or like.positions != original.positions:
        return None
    return unaligned(gradient.excess * share, like, original)


# The average of a function of a sum's latent, given the latent of a part.
_Seen: TypeAlias = Callable[[Array], Array]
_Places: TypeAlias = Callable[[], tuple[Indices, Array]]


def _share_of_latent(weight: Array, output: Moments, like: Moments, seen: _Seen | None) -> float:
    r"""How much of the square of E[f z], z the latent of a sum, is E[f z] with that of a part.

    The part's share of the variance, if all are Gaussian. A stream that is never negative makes
    the sum narrow where a rectifier behind has its kink, and the share is larger. For f the root
    of the weight :math:`w(g)` is taken, as derivatives of activations are mostly positive.
    """
    z, weights = latent.nodes()
    f = np.sqrt(weight)
    whole = float((f * z) @ weights)
    if seen is None or abs(whole) < _UNCOUPLED:
        variance = max(float((output.std**2).mean()), 1e-300)
        return min(float((like.std**2).mean()) / variance, 1.0)
    return (float((seen(f) * z) @ weights) / whole) ** 2


def _weight_of_part(weight: Array, seen: _Seen | None) -> Array:
    """How a gradient depends on the latent of one of two independent parts of a sum."""
    if seen is None or np.ptp(weight) == 0:
        return weight
    found = seen(weight)
    return np.asarray(found / (found @ latent.nodes()[1]))


def _places(output: Moments, a: Moments, b: Moments) -> _Places:
    """Where on the sum's latent two parts add up to, found once for both.

    The nodes below and how far beyond, each of shape ``[M, M]``: a's nodes, b's nodes.
    """

    @cache
    def places() -> tuple[Indices, Array]:
        rising = np.maximum.accumulate(output.typical)
        found = np.interp(a.typical[:, None] + b.typical, rising, np.arange(len(rising)))
        below = found.astype(np.intp)
        return below, found - below

    return places


def _turned(places: _Places) -> _Places:
    """The same with the parts exchanged."""

    def turned() -> tuple[Indices, Array]:
        below, beyond = places()
        return below.T, beyond.T

    return turned


def _seen_by_part(output: Moments, part: Moments, places: _Places) -> _Seen | None:
    """How averages follow; ``None`` if the part has the sum's own latent."""
    if part.latent == output.latent:
        return None
    _, weights = latent.nodes()

    def seen(values: Array) -> Array:
        below, beyond = places()
        steps = np.append(np.diff(values), 0.0)
        return np.asarray((values[below] + beyond * steps[below]) @ weights)

    return seen
