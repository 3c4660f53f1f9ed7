r"""Operations that choose, repeat, average or interpolate positions: :math:`x_{out} = R\,x`.

.. math:: K_{out} = R K R^\top, \qquad \Pi_{in} = R^\top \Pi_{out} R .

Exact, as R is fixed. Where every row of R has a single one, elements are copied and keep their
law; an average is taken as Gaussian around its mean, one of numbers that are never negative as
lognormal (Fenton 1960).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.instrument import trees
from equipoise.theory.propagation import draws, latent
from equipoise.theory.propagation.call import Call, Pulled, Result, chained, of_the_width, rule
from equipoise.theory.propagation.exchangeable import Exchangeable, kron
from equipoise.theory.propagation.layout import Atom, Axis, Layout, UnpredictedError, times
from equipoise.theory.propagation.values import Gradient, Known, Moments, arranged, from_covariance

Array = NDArray[np.float64]

# Of fewer features, an average is not what infinitely many would have, such as those of a head.
_FEWEST_FEATURES = 8
# The largest part of the squared variance of rows that layer norm may have balanced before sums.
_MOST_BALANCED = 0.01
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
            shape = _never_negative(mean, covariance)
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


def _never_negative(mean: Array, covariance: Exchangeable) -> Array | None:
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


@rule("split", "split_with_sizes", "chunk", "unsafe_split", "tensor_split")
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
        feature = Atom.new("feature", len(chosen), times(atoms))
        axes[axis] = (feature,) if len(chosen) > 1 else ()
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


@rule(
    *("flip", "roll", "cumsum", "repeat", "constant_pad_nd"),
    *(f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3)),
    *(
        f"{kind}{n}d"
        for kind in ("upsample_nearest", "_upsample_nearest_exact")
        for n in (1, 2, 3)
    ),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d"),
)
def linear(call: Call) -> Result:
    """What is linear in positions, and treats all samples and features alike.

    R is what the operation makes of maps that are 1 at one position and 0 at all others.
    """
    x = call.arguments[0]
    if not isinstance(x, Moments):
        raise UnpredictedError(f"{call.node.name} of no moments")
    if call.node.name in _BESIDE and (axis := _window_of_features(call, x)) is not None:
        return _of_neighbours(call, x, axis)
    axes = PositionAxes.of(x.layout)
    matrix = axes.applied(call, torch.eye(x.positions, dtype=torch.float64)[:, None])[:, 0].T
    generator = torch.Generator().manual_seed(0)
    features = 2 if axes.features else 1
    probe = torch.randn(3, features, x.positions, generator=generator, dtype=torch.float64)
    if not torch.allclose(axes.applied(call, probe), probe @ matrix.T):
        raise UnpredictedError(f"{call.node.name} of samples, of features or with a constant")
    found = list(x.layout.axes)
    for i in axes.positions:
        length = call.output.shape[i]
        found[i] = (Atom.new("position", length),) if length > 1 else ()
    order, places = (
        [atom for i in axes.positions for atom in some[i]] for some in (x.layout.axes, found)
    )
    return mapped(x, order, np.ascontiguousarray(matrix.numpy()), Layout(tuple(found)), places)


# What local response normalisation takes of the channels beside each.
_BESIDE = {"constant_pad_nd", "avg_pool2d", "avg_pool3d"}


def _window_of_features(call: Call, x: Moments) -> int | None:
    """The axis of features alone that is padded, or averaged over; None if there is none."""
    if call.node.name == "constant_pad_nd":
        if call.argument("value"):
            return None
        pads = call.argument("pad")
        lengths = [before or after for before, after in zip(pads[::2], pads[1::2], strict=True)]
        touched = [len(x.layout.axes) - 1 - i for i, length in enumerate(lengths) if length]
    else:
        sizes, maps = call.argument("kernel_size"), call.output.ndim - 2
        plain = {*call.argument("stride"), *call.argument("padding")} <= {0, 1}
        if len(sizes) != maps or not plain:
            return None
        touched = [i + 2 for i, size in enumerate(sizes) if size > 1]
    if len(touched) != 1 or {a.role for a in x.layout.axes[touched[0]]} != {"feature"}:
        return None
    return touched[0]


def _of_neighbours(call: Call, x: Moments, axis: int) -> Result:
    """Averages over windows of features, which are independent, and zeros beside these.

    The few zeros, at the first and the last features, count as features. What is averaged is
    taken for independent of each feature alone.
    """
    axes = list(x.layout.axes)
    axes[axis] = (Atom.new("feature", call.output.shape[axis], times(axes[axis])),)
    layout = Layout(tuple(axes))
    if call.node.name == "constant_pad_nd":
        return Result(x.with_other_features(layout), lambda g: Pulled([(x, Gradient(g.pairs))]))
    count, K, means = max(call.argument("kernel_size")), x.covariance, np.outer(x.mean, x.mean)
    same, diff = (means + (block - means) / count for block in (K.same, K.diff))
    covariance = Exchangeable(same, diff, K.samples)
    shape = _never_negative(x.mean, covariance) if (x.table >= 0).all() else None
    output = from_covariance(layout, x.order, covariance, x.mean, shape)
    return Result(output, lambda g: Pulled([(x, Gradient(g.pairs * (1 / count)))]))


@rule("im2col")
def unfold(call: Call) -> Result:
    """``F.unfold``: taps stand beside channels, which are followed as positions."""
    x = call.arguments[0]
    if not isinstance(x, Moments):
        raise UnpredictedError("unfolding of no moments")
    samples, channels, *maps = x.layout.axes
    order = [atom for axis in maps for atom in axis]
    if {atom.role for atom in channels} != {"feature"} or set(order) != set(x.order):
        raise UnpredictedError("unfolding of an axis that is not one of positions")
    one_hot = torch.eye(x.positions, dtype=torch.float64).reshape(-1, 1, *x.layout.shape[2:])
    taps = torch.as_tensor(call.node.operator(one_hot, *call.arguments[1:], **call.keywords))
    places = [Atom.new("position", size) for size in taps.shape[1:]]
    matrix = np.ascontiguousarray(taps.flatten(1).T.numpy())
    layout = Layout((samples, (*channels, places[0]), (places[1],)))
    return mapped(x, order, matrix, layout, places)


@rule("col2im")
def fold(call: Call) -> Result:
    """``F.fold``: sums over taps, which stand beside channels and are followed as positions."""
    x = call.argument("self")
    if not isinstance(x, Moments) or len(x.layout.axes) != 3:
        raise UnpredictedError("folding of no moments")
    samples = x.layout.axes[0]
    taps = prod(call.argument("kernel_size"))
    channels, places = x.layout.shape[1] // taps, x.layout.shape[2]
    # The same with an axis for channels and one for taps.
    layout, parts = x.layout.viewed((x.layout.shape[0], channels, taps, places))
    split = x.with_layout(layout, parts)
    of_taps = layout.axes[2]
    first = Result(split, lambda gradient: Pulled([(x, gradient)]))
    if of_taps and all(atom.role == "feature" for atom in of_taps):
        first = chained(first, features_as_positions(split, of_taps))
        layout = _moments(first).layout
        of_taps = layout.axes[2]
    given = _moments(first)
    order = [*of_taps, *layout.axes[3]]
    if set(order) != set(given.order):
        raise UnpredictedError("folding of an axis that is not one of positions")
    one_hot = torch.eye(given.positions, dtype=torch.float64).reshape(-1, taps, places)
    maps = torch.as_tensor(call.node.operator(one_hot, *call.arguments[1:], **call.keywords))
    found = [Atom.new("position", size) for size in maps.shape[2:]]
    matrix = np.ascontiguousarray(maps.flatten(1).T.numpy())
    axes = tuple((place,) if place.size > 1 else () for place in found)
    kept = [place for place in found if place.size > 1]
    output = Layout((samples, layout.axes[1], *axes))
    return chained(first, mapped(given, order, matrix, output, kept))


def _moments(result: Result) -> Moments:
    assert isinstance(result.output, Moments)
    return result.output


@rule("grid_sampler_2d", "grid_sampler_3d")
def sampled(call: Call) -> Result:
    """``F.grid_sample`` on a grid that is the same for all samples."""
    x, grid = call.arguments[:2]
    if not isinstance(x, Moments) or not isinstance(grid, Known) or grid.value.is_meta:
        raise UnpredictedError("a grid to sample that is random")
    places = grid.value.detach().double()
    if not bool((places == places[:1]).all()):
        raise UnpredictedError("a grid to sample that differs between samples")
    samples, channels, *maps = x.layout.axes
    order = [atom for axis in maps for atom in axis]
    if set(order) != set(x.order):
        raise UnpredictedError("a grid over an axis that is not one of positions")
    one_hot = torch.eye(x.positions, dtype=torch.float64).reshape(1, -1, *x.layout.shape[2:])
    found = torch.as_tensor(
        call.node.operator(one_hot, places[:1], *call.arguments[2:], **call.keywords)
    )[0]
    atoms = [Atom.new("position", size) for size in found.shape[1:]]
    matrix = np.ascontiguousarray(found.flatten(1).T.numpy())
    axes = tuple((place,) if place.size > 1 else () for place in atoms)
    layout = Layout((samples, channels, *axes))
    return mapped(x, order, matrix, layout, [atom for atom in atoms if atom.size > 1])


@dataclass(frozen=True, slots=True)
class PositionAxes:
    """Which axes of a tensor count samples, features and positions."""

    samples: int
    features: tuple[int, ...]
    positions: tuple[int, ...]
    sizes: tuple[int, ...]

    @staticmethod
    def of(layout: Layout) -> PositionAxes:
        """Those of a tensor none of whose axes is of two kinds."""
        roles = [{atom.role for atom in axis} or {"position"} for axis in layout.axes]
        if any(len(found) > 1 for found in roles) or roles.count({"sample"}) != 1:
            raise UnpredictedError("an axis with both positions and features or samples")
        features, positions = (
            tuple(i for i, found in enumerate(roles) if found == {role})
            for role in ("feature", "position")
        )
        sizes = tuple(layout.shape[i] for i in positions)
        return PositionAxes(roles.index({"sample"}), features, positions, sizes)

    def applied(self, call: Call, values: Tensor) -> Tensor:
        """What the operation makes of values ``[samples, features, P]``, in the same form."""
        order = (self.samples, *self.features, *self.positions)
        count = len(self.features)
        lengths = values.shape[:1] + values.shape[1:2] * min(count, 1) + (1,) * (count - 1)
        given = values.reshape(*lengths, *self.sizes).permute(*np.argsort(order))
        others, keywords = trees.replaced(
            Known, lambda known: known.value, (call.arguments[1:], call.keywords)
        )
        try:
            made = call.node.operator(given, *others, **keywords)
            found = torch.as_tensor(made[0] if isinstance(made, tuple) else made).permute(order)
        except (RuntimeError, IndexError) as error:
            raise UnpredictedError(f"{call.node.name} of an axis that has no positions") from error
        if found.shape[: len(lengths)] != lengths:
            raise UnpredictedError(f"{call.node.name} of samples or of features")
        return found.reshape(*values.shape[:2], -1)


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


def _axes(call: Call) -> set[int]:
    axes = call.argument("dim")
    if not axes:
        raise UnpredictedError("an average over all axes")
    return {axis % len(call.arguments[0].layout.axes) for axis in axes}
