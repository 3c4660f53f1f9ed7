"""Averages, sums, variances and norms over whole axes, of positions or of features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.propagation import latent
from equipoise.theory.propagation.call import Call, Pulled, Result, of_the_width, rule
from equipoise.theory.propagation.exchangeable import Exchangeable, kron
from equipoise.theory.propagation.layout import Atom, Axis, Layout, UnpredictedError
from equipoise.theory.propagation.rules.positions.matrices import mapped
from equipoise.theory.propagation.values.covariances import from_covariance
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.moments import Moments

Array = NDArray[np.float64]
# Of fewer features, an average is not what infinitely many would have, such as those of a head.
_FEWEST_FEATURES = 8
# The largest part of the squared variance of rows that layer norm may have balanced before sums.
_MOST_BALANCED = 0.01


@rule("mean")
def mean(call: Call) -> Result:
    """Average over axes of positions, or of features."""
    x, chosen = call.arguments[0], _axes(call)
    if not isinstance(x, Moments):
        raise UnpredictedError("an average of no moments")
    keep = bool(call.argument("keepdim"))
    return averaged(x, chosen, keep=keep)


def averaged(x: Moments, chosen: set[int], *, keep: bool) -> Result:
    """Average over whole axes."""
    left: list[Axis] = []
    for i, axis in enumerate(x.layout.axes):
        if i not in chosen:
            left.append(axis)
        elif keep:
            left.append(())
    layout = Layout(tuple(left))
    pooled = [atom for i in sorted(chosen) for atom in x.layout.axes[i]]
    if any(atom.role == "sample" for atom in pooled):
        raise UnpredictedError("an average over samples")
    summed = [atom for atom in x.order if atom in pooled]
    kept = [atom for atom in x.order if atom not in pooled]
    count = prod(atom.size for atom in summed)
    matrix = kron(np.eye(x.positions // count), np.full((1, count), 1 / count))
    features = {atom for atom in pooled if atom.role == "feature"}
    if not features:
        return mapped(x, [*kept, *summed], matrix, layout, kept)
    if prod(atom.size for atom in features) < _FEWEST_FEATURES:
        raise UnpredictedError(f"an average over fewer than {_FEWEST_FEATURES} features")
    x.require_even(count * prod(atom.size for atom in features))
    means = matrix @ x.mean[x.places([*kept, *summed])]
    output = constant(layout, kept, means, x.correlation.samples)
    return Result(replace(output, sized_by=frozenset({x.latent})), of_the_width)


@rule("sum")
def total(call: Call) -> Result:
    """Sum over axes of positions, or of features."""
    x, chosen = call.arguments[0], _axes(call)
    if not isinstance(x, Moments):
        raise UnpredictedError("a sum of no moments")
    return of_sum(x, chosen, keep=bool(call.argument("keepdim")))


def of_sum(x: Moments, chosen: set[int], *, keep: bool) -> Result:
    """Sum over whole axes."""
    if (found := _of_signs(x, chosen, keep=keep)) is not None:
        return found
    result = averaged(x, chosen, keep=keep)
    count = Layout(tuple(x.layout.axes[i] for i in chosen)).elements
    if not isinstance(result.output, Moments) or result.pullback is None:
        raise UnpredictedError("a sum of no moments")
    average, pull = result.output, result.pullback
    output = average.with_table(count * average.table, gaussian=average.gaussian)
    output = replace(output, moved=(average, float(count)))
    if pull is of_the_width:
        return Result(output, pull)

    def pullback(gradient: Gradient) -> Pulled:
        return pull(gradient.times(count))

    return Result(output, pullback)


def _of_signs(x: Moments, chosen: set[int], *, keep: bool) -> Result | None:
    r"""A sum over features whose signs cancel, as of products with weights or of two tensors.

    It is as large as a product with a matrix: :math:`K_{out} = C K + C(C - 1)\,m m'`, of C
    features of means m. None where the means are most of it.

    Raises:
        UnpredictedError: If layer norm made features add up to a number that is known.
    """
    pooled = [atom for i in sorted(chosen) for atom in x.layout.axes[i]]
    if not pooled or any(atom.role != "feature" for atom in pooled):
        return None
    count = Layout((tuple(pooled),)).count("feature")
    if count < _FEWEST_FEATURES:
        return None
    if float((x.mean**2).mean()) * count > float((x.std**2).mean()):
        return None
    if x.balanced > _MOST_BALANCED:
        raise UnpredictedError("a sum over features that layer norm has centred")
    axes = [() if i in chosen else axis for i, axis in enumerate(x.layout.axes)]
    layout = Layout(tuple(axis for i, axis in enumerate(axes) if keep or i not in chosen))
    K, means = x.covariance, np.outer(x.mean, x.mean) * (count * (count - 1))
    whole = Exchangeable(K.same * count + means, K.diff * count + means, K.samples)
    output = from_covariance(layout, x.order, whole, x.mean * count)  # each is one of many
    return Result(output, lambda gradient: Pulled([(x, Gradient(gradient.pairs))]))


def variance(call: Call) -> Result:
    """Variance over features, and over positions if they are among the axes."""
    x, chosen = call.arguments[0], _axes(call)
    keep = bool(call.argument("keepdim"))
    if not isinstance(x, Moments):
        raise UnpredictedError("a variance of no moments")
    square = averaged(x.with_table(x.table**2, gaussian=False), chosen, keep=keep).output
    average = averaged(x, chosen, keep=keep).output
    if not (isinstance(square, Moments) and isinstance(average, Moments) and average.is_constant):
        raise UnpredictedError("a variance over positions alone")
    means = square.mean - average.mean**2
    output = constant(average.layout, average.order, means, x.correlation.samples)
    return Result(output, of_the_width)


def norm(call: Call) -> Result:
    """Euclidean norm over features."""
    x, order, axes = call.arguments[0], call.argument("ord"), call.argument("dim")
    if not isinstance(x, Moments) or order != 2 or not axes:
        raise UnpredictedError("a norm other than the Euclidean one")
    chosen = {axis % len(x.layout.axes) for axis in axes}
    count = Layout(tuple(x.layout.axes[i] for i in chosen)).elements
    keep = bool(call.argument("keepdim"))
    square = averaged(x.with_table(x.table**2, gaussian=False), chosen, keep=keep).output
    if not (isinstance(square, Moments) and square.is_constant):
        raise UnpredictedError("a norm over positions alone")
    means = np.sqrt(count * square.mean)
    output = constant(square.layout, square.order, means, x.correlation.samples)
    return Result(replace(output, sized_by=square.sized_by), of_the_width)


def constant(layout: Layout, order: Sequence[Atom], values: Array, samples: int) -> Moments:
    """What all features have in common: one number for each position."""
    table = np.broadcast_to(values[:, None], (len(values), len(latent.nodes()[0])))
    eye = Exchangeable(np.eye(len(values)), np.zeros((len(values),) * 2), samples)
    return Moments(layout, tuple(order), eye, table, gaussian=True)


def _axes(call: Call) -> set[int]:
    axes = call.argument("dim")
    if not axes:
        raise UnpredictedError("an average over all axes")
    return {axis % len(call.arguments[0].layout.axes) for axis in axes}
