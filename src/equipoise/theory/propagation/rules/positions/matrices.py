r"""Matrices that are applied to positions: :math:`x_{out} = R\,x`.

.. math:: K_{out} = R K R^\top, \qquad \Pi_{in} = R^\top \Pi_{out} R .

Exact, as R is fixed. Where every row of R has a single one, elements are copied and keep their
law; an average is taken as Gaussian around its mean, one of numbers that are never negative as
lognormal (Fenton 1960).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.propagation import draws, latent
from equipoise.theory.propagation.call import Pulled, Result
from equipoise.theory.propagation.exchangeable import Exchangeable, kron
from equipoise.theory.propagation.layout import Atom, Layout, UnpredictedError
from equipoise.theory.propagation.values.covariances import arranged, from_covariance
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.moments import Moments

Array = NDArray[np.float64]
# A matrix with fewer entries than this part is multiplied entry by entry.
_SPARSE = 0.1
# Squares of standard deviation over mean, of averages that are taken as lognormal.
_NARROWEST, _WIDEST = 1e-6, 2.0


def mapped(
    x: Moments, order: Sequence[Atom], matrix: Array, layout: Layout, places: Sequence[Atom]
) -> Result:
    """Apply a matrix to the positions of x, taken in the given order.

    Args:
        x: Moments.
        order: All positions of x, as the columns of the matrix run over them.
        matrix: R, of shape ``[P_out, P_in]``.
        layout: Of the output.
        places: Positions of the output, as the rows of the matrix run over them.
    """
    taken = matrix.sum(1)  # nothing is taken to places that become zero
    copied = bool(((matrix == 0) | (matrix == 1)).all() and (taken <= 1).all())
    if copied:
        output = x.at(x.places(order)[matrix.argmax(1)], layout, places)
        if (taken == 0).any():
            output = _with_zeros(output, taken)
    else:
        K = arranged(x.covariance, x.order, order)
        covariance = _sandwiched(matrix, K)
        mean = matrix @ x.mean[x.places(order)]
        shape = None
        if (matrix >= 0).all() and (x.table >= 0).all():
            shape = never_negative(mean, covariance)
        output = from_covariance(layout, places, covariance, mean, shape).made_of(x)

    output = replace(output, signs=x.signs)
    ordered = np.empty_like(matrix)
    ordered[:, x.places(order)] = matrix
    if not copied or (taken == 0).any():
        output = replace(output, moved=(x, ordered))

    def pullback(gradient: Gradient) -> Pulled:
        if gradient.draws is not None:
            parts = draws.draws_of(gradient, output) @ ordered
            return Pulled([(x, draws.of_parts(x, parts, gradient.pairs.samples))])
        pairs = _sandwiched(matrix.T, gradient.pairs)
        weight = gradient.weight if copied else np.ones_like(gradient.weight)
        return Pulled([(x, Gradient(arranged(pairs, order, x.order), weight))])

    return Result(output, pullback)


def never_negative(mean: Array, covariance: Exchangeable) -> Array | None:
    """Table of a standardised lognormal law, of a median ratio of mean and standard deviation.

    Roots of it have derivatives that are seldom large, as those of sums of many numbers have;
    those of a Gamma law may have no second moment. None where the tail would be too long.
    """
    variance = covariance.diagonal - mean**2
    relative = float(np.median(variance / np.maximum(mean**2, 1e-300)))
    if not _NARROWEST < relative < _WIDEST:
        return None
    table = np.exp(np.sqrt(np.log1p(relative)) * latent.nodes()[0])
    table -= latent.mean(table)
    return np.asarray(table / np.sqrt(latent.mean(table**2)))


def _sandwiched(matrix: Array, pairs: Exchangeable) -> Exchangeable:
    """R K Rᵀ, where most of R may be zero."""
    from scipy.sparse import csr_array

    R = matrix if np.count_nonzero(matrix) > _SPARSE * matrix.size else csr_array(matrix)
    same, diff = (np.asarray((R @ (R @ block).T).T) for block in (pairs.same, pairs.diff))
    return Exchangeable(same, diff, pairs.samples)


def _with_zeros(x: Moments, taken: Array) -> Moments:
    """The same with zeros at the positions that ``taken`` has zeros at."""
    same, diff = (
        block * np.outer(taken, taken) for block in (x.correlation.same, x.correlation.diff)
    )
    np.fill_diagonal(same, 1.0)
    return replace(
        x,
        correlation=Exchangeable(same, diff, x.correlation.samples),
        table=x.table * taken[:, None],
        latent=(x.latent, taken.tobytes()),
        known={},
    )


def along(x: Moments, axis: int, matrix: Array, length: int) -> Result:
    """Apply a matrix to one axis, which must be a single atom of positions."""
    atoms = x.layout.axes[axis]
    if len(atoms) != 1 or atoms[0].role != "position":
        raise UnpredictedError("parts of an axis that is not one of positions")
    atom, place = atoms[0], Atom.new("position", length)
    others = [a for a in x.order if a != atom]
    order = [*others, atom] if atom.size > 1 else others
    whole = kron(np.eye(prod(a.size for a in others)), matrix)
    axes = list(x.layout.axes)
    axes[axis] = (place,) if length > 1 else ()
    places = [*others, place] if length > 1 else others
    return mapped(x, order, whole, Layout(tuple(axes)), places)


def repeated(x: Moments, shape: Sequence[int]) -> Result:
    """Axes of length 1 repeated; where there are no features, the last one becomes that."""
    axes = [(), *x.layout.axes] if len(shape) > len(x.layout.axes) else list(x.layout.axes)
    if len(axes) != len(shape):
        raise UnpredictedError("an axis that is repeated")
    new = []
    for i, (axis, size) in enumerate(zip(axes, shape, strict=True)):
        if not axis and size > 1:
            common = x.is_constant and not x.layout.with_role("feature") and i == len(shape) - 1
            axes[i] = (Atom.new("feature" if common else "position", size),)
            new += [] if common else list(axes[i])
    matrix = kron(np.eye(x.positions), np.ones((prod(atom.size for atom in new), 1)))
    return mapped(x, x.order, matrix, Layout(tuple(axes)), [*x.order, *new])
