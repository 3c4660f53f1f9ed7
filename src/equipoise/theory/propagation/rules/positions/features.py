"""Features that are taken for positions, and positions for features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from equipoise.theory.propagation.call import Pulled, Result
from equipoise.theory.propagation.exchangeable import Exchangeable, kron
from equipoise.theory.propagation.layout import Atom
from equipoise.theory.propagation.values.covariances import arranged, from_covariance
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.moments import Moments


def features_as_positions(x: Moments, atoms: Sequence[Atom]) -> Result:
    """Take some features, which have nothing in common but their mean, for positions."""
    count = prod(atom.size for atom in atoms)
    eye, c = np.eye(count), x.correlation
    layout = x.layout.mapped(lambda a: replace(a, role="position") if a in atoms else a)
    output = replace(
        x.with_other_features(layout),
        order=(*x.order, *(replace(atom, role="position") for atom in atoms)),
        correlation=Exchangeable(kron(c.same, eye), kron(c.diff, eye), c.samples),
        table=x.table if len(x.table) == 1 else np.repeat(x.table, count, 0),
        known={},
    )

    def pullback(gradient: Gradient) -> Pulled:
        pairs = summed_over(gradient.pairs, count) * (1 / count)
        return Pulled([(x, Gradient(pairs, gradient.weight))])

    return Result(output, pullback)


def positions_as_features(x: Moments, atoms: Sequence[Atom]) -> Result:
    """Take some positions for features, which then are of several laws."""
    count, kept = prod(atom.size for atom in atoms), [a for a in x.order if a not in atoms]
    order = [*kept, *atoms]
    covariance = summed_over(arranged(x.covariance, x.order, order), count) * (1 / count)
    mean = x.mean[x.places(order)].reshape(-1, count).mean(1)
    layout = x.layout.mapped(lambda a: replace(a, role="feature") if a in atoms else a)
    output = from_covariance(layout, kept, covariance, mean)

    def pullback(gradient: Gradient) -> Pulled:
        pairs = arranged(spread_over(gradient.pairs, count), order, x.order)
        return Pulled([(x, Gradient(pairs, gradient.weight))])

    return Result(output, pullback)


def summed_over(pairs: Exchangeable, count: int) -> Exchangeable:
    """Add up pairs that agree in the last positions, ``count`` in number."""
    same, diff = (
        np.einsum("asbs->ab", block.reshape(len(block) // count, count, -1, count))
        for block in (pairs.same, pairs.diff)
    )
    return Exchangeable(same, diff, pairs.samples)


def spread_over(pairs: Exchangeable, count: int) -> Exchangeable:
    """The transpose of :func:`summed_over`."""
    eye = np.eye(count)
    return Exchangeable(kron(pairs.same, eye), kron(pairs.diff, eye), pairs.samples)
