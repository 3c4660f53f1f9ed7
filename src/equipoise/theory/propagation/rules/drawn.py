r"""Functions of several elements of one feature, whose moments are averages over draws.

Softmax over positions or over a few features, as gates of experts have it, sums of exponentials,
cumulative products, and elementwise functions of several tensors: what they do to a feature is
run on draws of it, see :mod:`..draws`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

import torch
from torch import Tensor

from equipoise.theory.propagation import draws
from equipoise.theory.propagation.call import Call, Pulled, Result, chained, rule
from equipoise.theory.propagation.layout import Atom, Axis, Layout, UnpredictedError
from equipoise.theory.propagation.rules.arithmetic.alignment import all_aligned
from equipoise.theory.propagation.rules.arithmetic.dependence import by_draws
from equipoise.theory.propagation.rules.positions.averages import norm, variance
from equipoise.theory.propagation.rules.positions.features import features_as_positions
from equipoise.theory.propagation.rules.positions.resampling import PositionAxes
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.known import Known
from equipoise.theory.propagation.values.moments import Moments

# So many features of one row, at most, are drawn together.
_MOST_FEATURES = 64


@rule("topk", "sort")
def largest_of(call: Call) -> Result:
    """The largest elements of an axis, or all of them in order."""
    result = over_an_axis(call)
    chosen = Known(call.node.outputs[1], data=True, others=call.arguments[0].latents)
    return replace(result, others=[(chosen, None)])


@rule("_softmax", "_safe_softmax", "_log_softmax", "logsumexp", "logcumsumexp", "cumprod")
def over_an_axis(call: Call) -> Result:
    """What mixes the elements of one axis."""
    x, axes = call.arguments[0], call.argument("dim")
    if draws.of_the_loss.get():
        raise UnpredictedError(f"{call.node.name} that the loss takes")
    if not isinstance(x, Moments) or axes is None:
        raise UnpredictedError(f"{call.node.name} of no moments")
    chosen = [i % len(x.layout.axes) for i in ([axes] if isinstance(axes, int) else axes)]
    if len(chosen) == 1 and any(_is_of_two_kinds(axis) for axis in x.layout.axes):
        return _with_axes_apart(call, x, chosen[0])
    atoms = [atom for i in chosen for atom in x.layout.axes[i]]
    features = [atom for atom in atoms if atom.role == "feature"]
    if features:
        if prod(atom.size for atom in features) > _MOST_FEATURES:
            raise UnpredictedError(f"{call.node.name} over more than {_MOST_FEATURES} features")
        moved = features_as_positions(x, features)
        return chained(moved, over_an_axis(call.with_first(moved.output)))
    if not all(atom.role == "position" for atom in atoms):
        raise UnpredictedError(f"{call.node.name} over samples")
    return _over_positions(call, x, chosen)


def _is_of_two_kinds(axis: Axis) -> bool:
    return len({atom.role for atom in axis}) > 1


def _with_axes_apart(call: Call, x: Moments, chosen: int) -> Result:
    """The same where samples and positions stand in one axis, such as all tokens of a batch."""
    apart: list[Axis] = []
    lengths: list[int] = []
    for i, axis in enumerate(x.layout.axes):
        if i == chosen and _is_of_two_kinds(axis):
            raise UnpredictedError(f"{call.node.name} over samples")
        at = len(apart)
        apart += [(atom,) for atom in axis] if _is_of_two_kinds(axis) else [axis]
        if i == chosen:
            place = at
        lengths.append(len(apart) - at)
    split = x.with_layout(Layout(tuple(apart)), {})
    shape = list(split.layout.shape)
    shape[place] = call.output.shape[chosen]
    node = replace(call.node, outputs=(call.output.reshape(shape), *call.node.outputs[1:]))
    schema = call.node.operator._schema.arguments[1:]  # type: ignore[union-attr]
    keywords = {a.name: call.argument(a.name) for a in schema} | {"dim": place}
    result = over_an_axis(replace(call, node=node, arguments=(split,), keywords=keywords))
    found = result.output
    assert isinstance(found, Moments)
    left = list(found.layout.axes)
    axes = tuple(
        tuple(atom for axis in (left.pop(0) for _ in range(length)) for atom in axis)
        for length in lengths
    )
    whole = found.with_layout(Layout(axes), {})
    before = Result(split, lambda gradient: Pulled([(x, gradient)]))
    after = Result(whole, lambda gradient: Pulled([(found, gradient)]))
    return chained(chained(before, result), after)


@rule("linalg_vector_norm", "var")
def size_over_axes(call: Call) -> Result:
    """A norm or a variance."""
    x, axes = call.arguments[0], call.argument("dim")
    own = norm if call.node.name == "linalg_vector_norm" else variance
    if not isinstance(x, Moments) or not axes:
        return own(call)
    atoms = [atom for i in axes for atom in x.layout.axes[i]]
    return over_an_axis(call) if all(a.role == "position" for a in atoms) else own(call)


def _over_positions(call: Call, x: Moments, chosen: Sequence[int]) -> Result:
    shape = list(call.output.shape)
    keeps = call.argument("keepdim", True)
    if not keeps:
        for i in sorted(chosen):
            shape.insert(i, 1)
    if not keeps:
        schema = call.node.operator._schema.arguments[1:]  # type: ignore[union-attr]
        keywords = {a.name: call.argument(a.name) for a in schema} | {"keepdim": True}
        call = replace(call, arguments=(x,), keywords=keywords)
    result = _of_kept_axes(call, x, shape)
    output = result.output
    if keeps or not isinstance(output, Moments):
        return result
    left = [axis for i, axis in enumerate(output.layout.axes) if i not in chosen]
    flat = output.with_layout(Layout(tuple(left)), {})
    return chained(result, Result(flat, lambda gradient: Pulled([(output, gradient)])))


def _of_kept_axes(call: Call, x: Moments, shape: Sequence[int]) -> Result:
    axes = PositionAxes.of(x.layout)
    found = list(x.layout.axes)
    for i in axes.positions:
        if shape[i] != x.layout.shape[i]:
            found[i] = (Atom.new("position", shape[i]),) if shape[i] > 1 else ()
    order, places = (
        [atom for i in axes.positions for atom in some[i]] for some in (x.layout.axes, found)
    )
    into = torch.from_numpy(x.places(order))

    def function(rows: Tensor) -> Tensor:
        return axes.applied(call, rows[:, None, into])[:, 0]

    output = draws.combined((x,), function, Layout(tuple(found)), places)

    def pullback(gradient: Gradient) -> Pulled:
        return Pulled(draws.pulled_back(output, gradient))

    return Result(output, pullback)


def of_several(call: Call) -> Result:
    """An elementwise function of several tensors."""
    tensors = [a for a in call.arguments if isinstance(a, Moments | Known)]
    if any(isinstance(a, Moments | Known) for a in call.keywords.values()):
        raise UnpredictedError(f"{call.node.name} of several tensors")
    aligned = all_aligned(tensors, call)
    if not draws.is_drawable(*aligned):
        raise UnpredictedError(f"{call.node.name} of several tensors that depend on another")
    operator = call.node.operator.overloadpacket  # type: ignore[union-attr]
    if call.node.operator._schema.is_mutable:  # type: ignore[union-attr]
        raise UnpredictedError(f"{call.node.name} in place, of several tensors")

    def function(*rows: Tensor) -> Tensor:
        left = list(rows)
        arguments = [left.pop(0) if isinstance(a, Moments | Known) else a for a in call.arguments]
        return torch.as_tensor(operator(*arguments, **call.keywords))

    lead = aligned[0]
    output = draws.combined(aligned, function, lead.layout, lead.order)
    return Result(output, partial(by_draws, tensors, output))
