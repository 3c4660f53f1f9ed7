"""What two tensors have in common: latents, positions, weights or draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.theory.propagation import draws, latent
from equipoise.theory.propagation.call import Pulled
from equipoise.theory.propagation.layout import UnpredictedError
from equipoise.theory.propagation.rules.arithmetic.alignment import copies_of_features, unaligned
from equipoise.theory.propagation.rules.pointwise import Derivative
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.known import Known
from equipoise.theory.propagation.values.moments import Moments

Array = NDArray[np.float64]

# A slope below this part of the largest is none.
_FLAT = 1e-6


def common_source(a: Moments, b: Moments) -> Moments | None:
    """The latest tensor whose positions both are made of, at different places."""
    if a.latent == b.latent:
        return None
    sources = {id(value) for value in b.moved_from()}
    return next((value for value in a.moved_from() if id(value) in sources), None)


def depend_on_a_third(a: Moments, b: Moments) -> bool:
    """Whether elements of both depend on the same ones of a third tensor."""
    return bool((a.latents & b.latents) - a.made_by - a.parameters)


def of_dependent(a: Moments, b: Moments, function: draws.Function) -> Moments | None:
    """A function of two tensors whose elements depend on the same ones of a third.

    None if they are independent, or if nothing but parameters that both were multiplied with makes
    them alike, and they are of too many positions to be drawn.
    """
    dependent = depend_on_a_third(a, b)
    if not dependent and not a.parameters & b.parameters:
        return None
    if draws.is_drawable(a, b):
        try:
            return draws.combined((a, b), function, a.layout, a.order)
        except UnpredictedError:
            if dependent:
                raise
    if dependent and not (function is torch.add and _are_of_other_signs(a, b)):
        raise UnpredictedError("a sum or product of two tensors that depend on a third")
    return None


def _are_of_other_signs(a: Moments, b: Moments) -> bool:
    """Whether products of the two average to zero, as the sign of one is that of its own weights.

    Such as outputs of two experts, each times a gate, where gates depend on each other.
    """
    for one, other in ((a, b), (b, a)):
        names = {maker.weights for maker in other.made_by}
        if any(maker.weights not in names for maker in one.signs):
            return True
    return False


def by_draws(
    originals: Sequence[Moments | Known],
    output: Moments,
    gradient: Gradient,
    factors: Sequence[float] = (),
) -> Pulled:
    """The gradients of what was multiplied with a number each, aligned, and then drawn."""
    inputs = []
    found = draws.pulled_back(output, gradient)
    for i, (original, (like, own)) in enumerate(zip(originals, found, strict=True)):
        if isinstance(original, Moments) and not original.is_constant:
            back = back_to(original, like, own, output)
            inputs.append((original, back.times(factors[i]) if factors else back))
    return Pulled(inputs)


def back_to(original: Moments, like: Moments, own: Gradient, output: Moments) -> Gradient:
    """The gradient of a tensor, from that of the same with the axes of another."""
    copies = copies_of_features(original, output)
    if copies > 1:
        return Gradient(unaligned(own.pairs * copies, like, original), own.weight)
    if like is original:
        return own
    assert own.draws is not None
    parts = own.draws @ like.matrix_from(original)
    return draws.of_parts(original, parts, own.pairs.samples)


def through_root(a: Moments, b: Moments, output: Moments, gradient: Gradient) -> Pulled | None:
    """The gradient of the tensor that both are functions of, whose ways add before squares.

    None if it is not known, or does not rise everywhere.
    """
    roots = [value.root or value for value in (a, b)]
    root = roots[0]
    if roots[1] is not root or root.order != a.order or root.order != output.order:
        return None
    rise = latent.derivative(root.table)
    if not (np.abs(rise) > _FLAT * np.abs(rise).max()).all():
        return None
    slope = latent.derivative(output.table) / rise
    return Pulled([(root, Derivative(root, slope).times(gradient))])


def law_of_independent(a: Moments, b: Moments, combine: Callable[[Array, Array], Array]) -> Array:
    """Table of the standardised result at a typical position."""
    table = combine(a.typical, b.typical)
    centred = table - latent.mean(table)
    return np.asarray(centred / np.sqrt(latent.mean(centred**2)))
