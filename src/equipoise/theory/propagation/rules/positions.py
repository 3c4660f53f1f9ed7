r"""Operations that choose, repeat or average positions: :math:`x_{out} = R\,x`, R a fixed matrix.

.. math:: K_{out} = R K R^\top, \qquad \Pi_{in} = R^\top \Pi_{out} R .

Exact. Where every row of R has a single one, elements are copied and keep their law; an average is
taken as Gaussian around its mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.propagation import latent
from equipoise.theory.propagation.call import Call, Pulled, Result, rule
from equipoise.theory.propagation.exchangeable import Exchangeable, kron
from equipoise.theory.propagation.layout import Atom, Axis, Layout
from equipoise.theory.propagation.rules.windows import Window
from equipoise.theory.propagation.values import (
    Gradient,
    Moments,
    UnpredictedError,
    arranged,
    from_covariance,
)

Array = NDArray[np.float64]


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
        index = x.places(order)[matrix.argmax(1)]
        grid = np.ix_(index, index)
        both = np.outer(taken, taken)
        same, diff = x.correlation.same[grid] * both, x.correlation.diff[grid] * both
        np.fill_diagonal(same, 1.0)
        whole = bool((taken == 1).all())
        rows = np.zeros_like(index) if len(x.table) == 1 else index
        output = replace(
            x,
            layout=layout,
            order=tuple(places),
            correlation=Exchangeable(same, diff, x.correlation.samples),
            table=x.table if whole and len(x.table) == 1 else x.table[rows] * taken[:, None],
            parts=(),
            root=None,
        )
    else:
        K = arranged(x.covariance, x.order, order)
        covariance = Exchangeable(
            matrix @ K.same @ matrix.T, matrix @ K.diff @ matrix.T, K.samples
        )
        output = from_covariance(layout, places, covariance, matrix @ x.mean[x.places(order)])

    def pullback(gradient: Gradient) -> Pulled:
        pairs = Exchangeable(
            matrix.T @ gradient.pairs.same @ matrix,
            matrix.T @ gradient.pairs.diff @ matrix,
            gradient.pairs.samples,
        )
        weight = gradient.weight if copied else np.ones_like(gradient.weight)
        return Pulled([(x, Gradient(arranged(pairs, order, x.order), weight))])

    return Result(output, pullback)


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
    if features < set(x.layout.with_role("feature")):
        raise UnpredictedError("an average over some of the features")
    means = matrix @ x.mean[x.places([*kept, *summed])]
    return Result(constant(layout, kept, means, x.correlation.samples), lambda _: Pulled())


@rule("sum")
def total(call: Call) -> Result:
    """Sum over axes of positions."""
    x, chosen = call.arguments[0], _axes(call)
    if not isinstance(x, Moments):
        raise UnpredictedError("a sum of no moments")
    result = averaged(x, chosen, keep=bool(call.argument("keepdim")))
    count = prod(x.layout.shape[i] for i in chosen)
    if not isinstance(result.output, Moments) or result.pullback is None:
        raise UnpredictedError("a sum of no moments")
    average, pull = result.output, result.pullback
    output = average.with_table(count * average.table, gaussian=average.gaussian)

    def pullback(gradient: Gradient) -> Pulled:
        return pull(Gradient(gradient.pairs * count**2, gradient.weight))

    return Result(output, pullback)


@rule("var")
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
    return Result(output, lambda _: Pulled())


@rule("linalg_vector_norm")
def norm(call: Call) -> Result:
    """Euclidean norm over features."""
    x, order, axes = call.arguments[0], call.argument("ord"), call.argument("dim")
    if not isinstance(x, Moments) or order != 2 or not axes:
        raise UnpredictedError("a norm other than the Euclidean one")
    chosen = {axis % len(x.layout.axes) for axis in axes}
    count = prod(x.layout.shape[i] for i in chosen)
    keep = bool(call.argument("keepdim"))
    square = averaged(x.with_table(x.table**2, gaussian=False), chosen, keep=keep).output
    if not (isinstance(square, Moments) and square.is_constant):
        raise UnpredictedError("a norm over positions alone")
    means = np.sqrt(count * square.mean)
    output = constant(square.layout, square.order, means, x.correlation.samples)
    return Result(output, lambda _: Pulled())


def constant(layout: Layout, order: Sequence[Atom], values: Array, samples: int) -> Moments:
    """What all features have in common: one number for each position."""
    table = np.broadcast_to(values[:, None], (len(values), len(latent.nodes()[0])))
    eye = Exchangeable(np.eye(len(values)), np.zeros((len(values),) * 2), samples)
    return Moments(layout, tuple(order), eye, table, gaussian=True)


@rule("slice")
def slice_(call: Call) -> Result:
    """A range of an axis."""
    x, axis = call.arguments[0], call.argument("dim")
    chosen = slice(*(call.argument(name) for name in ("start", "end", "step")))
    axis %= len(x.layout.axes)
    size = x.layout.shape[axis]
    return part(x, axis, list(range(size))[chosen], drop=False)


@rule("select")
def select(call: Call) -> Result:
    """One place of an axis."""
    x, axis, at = call.arguments[0], call.argument("dim"), call.argument("index")
    axis %= len(x.layout.axes)
    return part(x, axis, [at % x.layout.shape[axis]], drop=True)


@rule("unbind")
def unbind(call: Call) -> Result:
    """All places of an axis, one by one."""
    x, axis = call.arguments[0], call.argument("dim")
    axis %= len(x.layout.axes)
    found = [part(x, axis, [at], drop=True) for at in range(x.layout.shape[axis])]
    return Result(found[0].output, found[0].pullback, [(r.output, r.pullback) for r in found[1:]])


@rule("split", "split_with_sizes", "chunk")
def split(call: Call) -> Result:
    """Consecutive ranges of an axis."""
    x, axis = call.arguments[0], call.argument("dim")
    axis %= len(x.layout.axes)
    found, at = [], 0
    for output in call.node.outputs:
        size = output.shape[axis]
        found.append(part(x, axis, list(range(at, at + size)), drop=False))
        at += size
    return Result(found[0].output, found[0].pullback, [(r.output, r.pullback) for r in found[1:]])


def part(x: Moments, axis: int, chosen: Sequence[int], *, drop: bool) -> Result:
    """Some places of one axis."""
    if not isinstance(x, Moments):
        raise UnpredictedError("a part of no moments")
    atoms, size = x.layout.axes[axis], x.layout.shape[axis]
    axes = list(x.layout.axes)
    if len(chosen) == size and not drop:
        return Result(x.with_layout(x.layout, {}), lambda g: Pulled([(x, g)]))
    if atoms and all(atom.role == "feature" for atom in atoms):
        # Other features are other draws: what holds on average holds for a part of them.
        axes[axis] = (Atom.new("feature", len(chosen)),) if len(chosen) > 1 else ()
        if drop:
            del axes[axis]
        share = len(chosen) / size
        output = x.with_other_features(Layout(tuple(axes)))
        return Result(output, lambda g: Pulled([(x, Gradient(g.pairs * share, g.weight))]))
    matrix = np.eye(size)[list(chosen)]
    result = (
        along(x, axis, matrix, len(chosen)) if atoms else Result(x, lambda g: Pulled([(x, g)]))
    )
    if drop and isinstance(result.output, Moments):
        layout = result.output.layout
        axes = [a for i, a in enumerate(layout.axes) if i != axis]
        output = result.output.with_layout(Layout(tuple(axes)), {})
        return Result(output, result.pullback)
    return result


@rule("constant_pad_nd")
def pad(call: Call) -> Result:
    """Zeros around positions."""
    x, widths = call.arguments[0], call.argument("pad")
    if call.argument("value") != 0 or not isinstance(x, Moments):
        raise UnpredictedError("padding with another number than zero")
    if min(widths) < 0:
        raise UnpredictedError("padding by less than nothing")
    matrices = {}
    for axis, size in enumerate(call.output.shape):
        place = 2 * (call.output.ndim - 1 - axis)  # widths of the last axis come first
        before, after = widths[place : place + 2] or (0, 0)
        if before or after:
            matrices[axis] = np.eye(size, size - before - after, -before)
    return along_each(x, matrices)


@rule("upsample_nearest2d", "upsample_nearest1d")
def upsample(call: Call) -> Result:
    """Every position repeated."""
    x = call.arguments[0]
    if not isinstance(x, Moments):
        raise UnpredictedError("upsampling of values that are no moments")
    matrices = {}
    for axis in range(2, call.output.ndim):
        size, length = x.layout.shape[axis], call.output.shape[axis]
        matrices[axis] = np.eye(size)[np.arange(length) * size // length]
    return along_each(x, matrices)


def along_each(x: Moments, matrices: dict[int, Array]) -> Result:
    """Apply a matrix to each of several axes."""
    value, pulls = x, []
    for axis, matrix in matrices.items():
        result = along(value, axis, matrix, len(matrix))
        assert isinstance(result.output, Moments)
        assert result.pullback is not None
        value = result.output
        pulls.append(result.pullback)

    def pullback(gradient: Gradient) -> Pulled:
        for pull in reversed(pulls):
            ((_, gradient),) = pull(gradient).inputs
        return Pulled([(x, gradient)])

    return Result(value, pullback)


@rule("_adaptive_avg_pool2d", "avg_pool2d", "avg_pool1d", "_adaptive_avg_pool3d", "avg_pool3d")
def average_pool(call: Call) -> Result:
    """Averages over windows."""
    x = call.arguments[0]
    if not isinstance(x, Moments):
        raise UnpredictedError("pooling of values that are no moments")
    if all(size == 1 for size in call.output.shape[2:]):
        return averaged(x, set(range(2, call.output.ndim)), keep=True)
    if "adaptive" in call.node.name:
        raise UnpredictedError("adaptive pooling to more than one position")
    window = Window.of_pooling(call, x)
    if any(window.padding) and not call.argument("count_include_pad"):
        raise UnpredictedError("average pooling that leaves out padding")
    if call.argument("divisor_override") is not None:
        raise UnpredictedError("average pooling with a divisor of its own")
    if call.argument("ceil_mode"):
        raise UnpredictedError("average pooling with windows that stand out (ceil_mode)")
    order, layout, places = window.maps(call, x)
    return mapped(x, order, window.members() / prod(window.kernel), layout, places)


def _axes(call: Call) -> set[int]:
    axes = call.argument("dim")
    if not axes:
        raise UnpredictedError("an average over all axes")
    return {axis % len(call.arguments[0].layout.axes) for axis in axes}
