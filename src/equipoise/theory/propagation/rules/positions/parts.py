"""Parts of an axis: ranges, single places, and all of them one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise.theory.propagation.call import Call, Pulled, Result, rule
from equipoise.theory.propagation.layout import Atom, Layout, UnpredictedError, times
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
