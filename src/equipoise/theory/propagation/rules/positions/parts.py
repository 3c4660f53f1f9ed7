"""Parts of an axis: ranges, single places, and all of them one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from equipoise.theory.propagation.call import Call, Pulled, Result, rule
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.layout import Atom, Layout, UnpredictedError, times
from equipoise.theory.propagation.rules.gathered import rows_by_number
from equipoise.theory.propagation.rules.positions.matrices import along
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.moments import Moments


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
    """Consecutive ranges of an axis; those of samples are taken for used all alike."""
    x, axis = call.arguments[0], call.argument("dim")
    axis %= len(x.layout.axes)
    found, at = [], 0
    for output in call.node.outputs:
        size = output.shape[axis]
        own = part(x, axis, list(range(at, at + size)), drop=False)
        found.append(_of_a_part(own, x, size) if _is_of_samples(x, axis) else own)
        at += size
    return Result(found[0].output, found[0].pullback, [(r.output, r.pullback) for r in found[1:]])


def _is_of_samples(x: Moments, axis: int) -> bool:
    return [atom.role for atom in x.layout.axes[axis]] == ["sample"]


def _of_a_part(own: Result, x: Moments, size: int) -> Result:
    """With gradients of a share of the rows, where two of different parts are as two of one.

    All parts together then have what one has, as ghost batch norm has of each part of a batch.
    """
    share = size / x.layout.size("sample")

    def pullback(gradient: Gradient) -> Pulled:
        pairs = Exchangeable(
            gradient.pairs.same * share, gradient.pairs.diff * share, x.correlation.samples
        )
        return Pulled([(x, Gradient(pairs, gradient.weight))])

    return Result(own.output, pullback)


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
    if _is_of_samples(x, axis) and len(chosen) > 1 and not drop:
        return rows_by_number(x, axis, torch.tensor(chosen))
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
