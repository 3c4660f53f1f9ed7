"""Operations that pad, shift, repeat, average or interpolate maps.

All are linear in positions: the matrix of :mod:`.matrices` is found by what they make of maps that
are 1 at one position.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from equipoise.instrument import trees
from equipoise.theory.propagation.call import Call, Pulled, Result, chained, rule
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.layout import Atom, Layout, UnpredictedError, times
from equipoise.theory.propagation.rules.positions.features import features_as_positions
from equipoise.theory.propagation.rules.positions.matrices import mapped, never_negative
from equipoise.theory.propagation.values.covariances import from_covariance, require_few
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.known import Known
from equipoise.theory.propagation.values.moments import Moments


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
    require_few(prod(call.output.shape[i] for i in axes.positions))  # before R is made
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
    shape = never_negative(x.mean, covariance) if (x.table >= 0).all() else None
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
