r"""Products and quotients of two tensors, and what is chosen between them.

Functions of the same latents are multiplied point by point, which is exact. Others are taken as
independent:

.. math:: K_{ab} = K_a \circ K_b .

Where both depend on the same elements of a third tensor they are drawn, or refused. The law of the
product is that of two independent elements; correlations of its latents follow from K.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.theory.propagation import draws, latent
from equipoise.theory.propagation.call import Call, Pulled, Result, chained, rule
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.layout import UnpredictedError
from equipoise.theory.propagation.rules.arithmetic.alignment import (
    both_aligned,
    copies_of_features,
    has_scalar,
    inputs_of,
    unaligned,
)
from equipoise.theory.propagation.rules.arithmetic.dependence import (
    by_draws,
    law_of_independent,
    of_dependent,
    through_root,
)
from equipoise.theory.propagation.rules.arithmetic.sums import add
from equipoise.theory.propagation.rules.pointwise import Derivative, elementwise, pointwise
from equipoise.theory.propagation.tensors import is_uniform
from equipoise.theory.propagation.values.covariances import from_covariance
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.known import Known
from equipoise.theory.propagation.values.moments import Drawn, MadeBy, Moments

Array = NDArray[np.float64]
# So far from 1 a squared size is that of a norm written in parts.
_UNIT = 0.05


def _signs_of_product(a: Moments, b: Moments) -> frozenset[MadeBy]:
    """The weights that one factor has its sign of, and that the other does not depend on."""
    names = [{maker.weights for maker in x.made_by} for x in (a, b)]
    found = {maker for maker in a.signs if maker.weights not in names[1]}
    return frozenset(found | {maker for maker in b.signs if maker.weights not in names[0]})


@rule("div")
def divide(call: Call) -> Result:
    """``a / b``, b a number or the same for all features."""
    b = call.arguments[1]
    if has_scalar(call):
        return pointwise(call)
    if isinstance(b, Known) and not call.argument("rounding_mode") and bool((b.value != 0).all()):
        numbers = replace(b, value=1 / b.value.double())
        return multiply(replace(call, arguments=(call.arguments[0], numbers)))
    if isinstance(b, Moments) and _keeps_from_zero(b) and not call.argument("rounding_mode"):
        inverse = elementwise(b, torch.reciprocal)
        rest = multiply(replace(call, arguments=(call.arguments[0], inverse.output)))
        return chained(inverse, rest)
    if isinstance(b, Moments) and not call.argument("rounding_mode"):
        return _quotient(call)
    raise UnpredictedError("a quotient of two random tensors, of which the second may be 0")


def _quotient(call: Call) -> Result:
    """Of draws, none of which divides by a number near 0."""
    a, b = both_aligned(call)
    divisor = draws.values(b)
    if (
        draws.of_the_loss.get()
        or np.ptp(np.sign(divisor))
        or np.abs(divisor).min() < 0.01 * b.second_moment**0.5
    ):
        raise UnpredictedError("a quotient of two random tensors, of which the second may be 0")
    output = draws.combined((a, b), torch.div, a.layout, a.order)
    return Result(output, partial(by_draws, inputs_of(call), output))


def _keeps_from_zero(b: Moments) -> bool:
    """Whether all elements have one sign, and none is a hundredth of what they usually are."""
    return bool(abs(b.table).min() > 0.01 * b.second_moment**0.5 and np.ptp(np.sign(b.table)) == 0)


@rule("mul")
def multiply(call: Call) -> Result:
    """``a * b``."""
    if has_scalar(call):
        return pointwise(call)
    a, b = both_aligned(call)
    together, both = a.latent == b.latent or a.is_constant or b.is_constant, None
    if together:
        lead = b if a.is_constant else a
        straight = (a.is_constant and b.gaussian) or (b.is_constant and a.gaussian)
        output = lead.with_table(a.table * b.table, gaussian=straight)
    elif (both := of_dependent(a, b, torch.mul)) is not None:
        output = both
    else:
        K, L = a.covariance, b.covariance
        total = Exchangeable(K.same * L.same, K.diff * L.diff, K.samples)
        output = from_covariance(
            a.layout, a.order, total, a.mean * b.mean, law_of_independent(a, b, latent.of_product)
        ).made_of(a, b)
        output = output.within(*_range_of_product(a, b))
        output = replace(output, signs=_signs_of_product(a, b))
        scatter = max(a.scatter, b.scatter, 0.0)
        output = replace(output, scatter=scatter, drawn=Drawn((a, b), torch.mul))

    def pullback(gradient: Gradient) -> Pulled:
        if output.drawn is not None and (gradient.draws is not None or both is not None):
            return by_draws(inputs_of(call), output, gradient)
        if a.latent == b.latent and (found := through_root(a, b, output, gradient)):
            return found
        inputs = []
        for original, aligned, other in zip(inputs_of(call), (a, b), (b, a), strict=True):
            if not isinstance(original, Moments) or original.is_constant:
                continue  # what features share gets a gradient of order 1/C
            if together:
                part = Derivative(lead, np.atleast_2d(other.table)).times(gradient)
            else:
                L = other.covariance
                pairs = gradient.pairs.times(L)
                if gradient.excess is not None and other.gaussian:
                    # The gradient knows the other factor, most of which is the product's sign.
                    pairs = pairs + gradient.excess.scaled(other.std)
                part = _of_factor(pairs, gradient.weight, output, aligned, other)
            pairs = unaligned(part.pairs, aligned, original)
            pairs = pairs * copies_of_features(original, output)
            orthogonal = float(_is_divided_by_size(aligned, other))
            kept = _kept(part, aligned, original)
            inputs.append(
                (original, Gradient(pairs, part.weight, draws=kept, orthogonal=orthogonal))
            )
        return Pulled(inputs)

    return Result(output, pullback)


def _is_divided_by_size(x: Moments, factor: Moments) -> bool:
    """Whether a factor makes the average of a row's squares, or their sum, 1."""
    if x.latent not in factor.sized_by:
        return False
    size = float(factor.mean.mean()) ** 2 * x.second_moment
    sizes = size, size * x.layout.count("feature")
    return any(abs(one - 1) < _UNIT for one in sizes)


def _of_factor(
    pairs: Exchangeable, weight: Array, output: Moments, factor: Moments, other: Moments
) -> Gradient:
    """The gradient of one of two independent factors, where that of the product knows its latent.

    Such as that of positive numbers that a maximum selected: the other factor is large there.
    """
    if np.ptp(weight) == 0:
        return Gradient(pairs, weight)
    _, weights = latent.nodes()
    rising = np.maximum.accumulate(output.typical)
    products = factor.typical[:, None] * other.typical
    # Where many latents have one value, as zeros of a rectifier, their average.
    levels, which = np.unique(rising, return_inverse=True)
    chance = np.bincount(which, weights)
    known = np.bincount(which, weight * weights) / np.maximum(chance, 1e-300)
    found = (np.interp(products, levels, known) * other.typical**2) @ weights
    size, plain = float(found @ weights), float(other.typical**2 @ weights)
    if size <= 0:
        return Gradient(pairs)
    same = pairs.same.copy()
    same[np.diag_indices_from(same)] *= size / plain
    return Gradient(Exchangeable(same, pairs.diff, pairs.samples), found / size)


def _range_of_product(a: Moments, b: Moments) -> tuple[Array, Array]:
    """The least and the largest product at each position, of the ends of both laws."""
    ends = [(x.table.min(1), x.table.max(1)) for x in (a, b)]
    products = [np.broadcast_to(one * other, a.positions) for one in ends[0] for other in ends[1]]
    return np.min(products, 0), np.max(products, 0)


def _kept(gradient: Gradient, aligned: Moments, original: Moments) -> Array | None:
    """Draws of a gradient, if those of the aligned tensor are those of the original."""
    return gradient.draws if aligned is original else None


@rule("where")
def where(call: Call) -> Result:
    """``a`` where a condition holds and ``b`` elsewhere: ``c a + (1 - c) b``."""
    condition, a, b = call.arguments[:3]
    if isinstance(condition, Moments):
        opposite: Moments | Known = condition.with_table(1 - condition.table, gaussian=False)
    else:
        condition = replace(condition, value=condition.value.double())
        opposite = replace(condition, value=1 - condition.value)
    first, second = _product(call, condition, a), _product(call, opposite, b)
    if isinstance(first.output, Moments) and isinstance(second.output, Moments):
        total = add(replace(call, arguments=(first.output, second.output)))
        return chained(first, chained(second, total))
    found, rest = (first, second) if isinstance(first.output, Moments) else (second, first)
    if not isinstance(rest.output, Known) or rest.output.value.any():
        raise UnpredictedError("a constant other than zero beside random numbers")
    return found


def _product(call: Call, condition: Moments | Known, value: Moments | Known) -> Result:
    """The product of zeros and ones with a tensor, in place of what was called."""
    for number, tensor in ((condition, value), (value, condition)):
        if isinstance(tensor, Moments) and isinstance(number, Known) and is_uniform(number.value):
            size = float(number.value.flatten()[0])
            return elementwise(tensor, partial(torch.mul, size), affine=True)
    if isinstance(condition, Known) and isinstance(value, Known):
        return Result(replace(condition, value=condition.value * value.value))
    return multiply(replace(call, arguments=(condition, value)))
