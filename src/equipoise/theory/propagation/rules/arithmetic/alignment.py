"""Give tensors the axes and the order of positions of another, and bring gradients back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.theory.propagation import draws
from equipoise.theory.propagation.call import Call
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.layout import Atom, Layout, LayoutError, UnpredictedError
from equipoise.theory.propagation.tensors import features_last, is_uniform
from equipoise.theory.propagation.values.covariances import arranged, measured
from equipoise.theory.propagation.values.known import Known
from equipoise.theory.propagation.values.moments import Drawn, Moments, OfParameter

Indices = NDArray[np.intp]


def copies_of_features(value: Moments, lead: Moments) -> float:
    """For how many features each of a tensor's stands, as a gate that all share."""
    return lead.layout.count("feature") / value.layout.count("feature")


def _back_in_order(pairs: Exchangeable, alike: Moments, original: Moments) -> Exchangeable:
    """Undo :func:`_split_or_merged`, which may have reordered positions."""
    index: Indices = np.arange(alike.positions)
    for value in alike.moved_from():
        if value is original:
            break
        move = None if value.moved is None else value.moved[1]
        if value.moved is None or isinstance(move, float) or (move is not None and move.ndim > 1):
            raise UnpredictedError("a sum of tensors whose positions are in different orders")
        index = index if move is None else move.astype(np.intp)[index]
    grid = np.ix_(np.argsort(index), np.argsort(index))
    return Exchangeable(pairs.same[grid], pairs.diff[grid], pairs.samples)


def has_scalar(call: Call) -> bool:
    """Whether one of the two is a number."""
    others = [v for v in call.arguments[:2] if not isinstance(v, Moments)]
    return len(others) == 1 and (not isinstance(others[0], Known) or is_uniform(others[0].value))


def inputs_of(call: Call) -> tuple[Moments | Known, Moments | Known]:
    """The two tensors of a sum or a product."""
    return call.arguments[0], call.arguments[1]


def both_aligned(call: Call) -> tuple[Moments, Moments]:
    """Both inputs as moments, with the axes of the one that has all of them."""
    first, second = inputs_of(call)
    a, b = all_aligned((first, second), call)
    return a, b


def all_aligned(values: Sequence[Moments | Known], call: Call) -> list[Moments]:
    """All inputs as moments, with the axes of the one that has all of them."""
    shape = tuple(call.output.shape)
    whole = [v for v in values if isinstance(v, Moments) and v.layout.shape == shape]
    if not whole:
        raise UnpredictedError("a sum or product that enlarges both of its inputs")
    # Where features are repeated, as of a gate that all share, the other tensor has them.
    lead = max(whole, key=lambda value: value.layout.size("feature"))
    return [aligned(value, lead, call.output) for value in values]


def aligned(value: Moments | Known, lead: Moments, output: Tensor | None) -> Moments:
    """The same tensor with the axes and the order of positions of another."""
    if value is lead:
        return lead
    if isinstance(value, Known):
        assert output is not None
        expanded = value.value.detach().expand(output.shape)
        found = _reordered(measured(expanded, lead.layout), lead)
        if value.parameter and not value.data and not found.is_constant:
            return _of_a_parameter(found, expanded, str(value.parameter))
        return replace(found, others=value.others)
    value = _split_or_merged(_without_copies(value, lead), lead)
    padded = Layout(((),) * (len(lead.layout.axes) - len(value.layout.axes)) + value.layout.axes)
    places: dict[Atom, Atom] = {}
    for ours, theirs in zip(lead.layout.axes, padded.axes, strict=True):
        if [(a.role, a.size) for a in ours] == [(a.role, a.size) for a in theirs]:
            places.update(zip(ours, theirs, strict=True))
        elif theirs or any(atom.role == "sample" for atom in ours):
            raise LayoutError("the axes of two tensors differ")
    index = _index(lead, value, places)
    return value.at(index, lead.layout, lead.order)


def _without_copies(value: Moments, lead: Moments) -> Moments:
    """What all features have in common, where it was repeated along an axis of features."""
    offset = len(lead.layout.axes) - len(value.layout.axes)
    for i, theirs in enumerate(value.layout.axes if value.is_constant else ()):
        roles = {atom.role for atom in lead.layout.axes[i + offset]}
        if roles == {"feature"} and theirs and {atom.role for atom in theirs} == {"position"}:
            left = tuple(atom for atom in value.order if atom not in theirs)
            first = value.places([*left, *theirs]).reshape(prod(a.size for a in left), -1)[:, 0]
            axes = list(value.layout.axes)
            axes[i] = ()
            value = value.at(first, Layout(tuple(axes)), left)
    return value


def _of_a_parameter(x: Moments, value: Tensor, name: str) -> Moments:
    """A parameter that differs between features: the same feature is drawn of all of them."""
    layout = x.layout.without_short_axes()
    array = features_last(value, layout)[0]  # [P, C]
    order = [atom for atom in layout.with_role("position") if atom.size > 1]
    places = np.arange(len(array)).reshape([atom.size for atom in order])
    places = places.transpose([order.index(atom) for atom in x.order]).ravel()
    chosen = array[places][:, np.arange(2 * draws.DRAWS) // 2 % array.shape[1]].T
    rows = torch.from_numpy(np.ascontiguousarray(chosen))
    if array.min() > 0 or array.max() < 0:  # a root or a logarithm may come behind
        std = np.where(x.std > 0, x.std, 1.0)
        law = draws.shape_of((array[places] - x.mean[:, None]) / std[:, None])
        x = replace(x, table=x.mean[:, None] + x.std[:, None] * law, gaussian=False)
        x = x.within(array.min(1)[places], array.max(1)[places])
    return replace(x, others=frozenset({OfParameter(name)}), drawn=Drawn((), lambda: rows))


def _split_or_merged(value: Moments, lead: Moments) -> Moments:
    """The value, with axes of positions made up as the lead's are."""
    offset = len(lead.layout.axes) - len(value.layout.axes)
    for i, theirs in enumerate(value.layout.axes):
        ours = lead.layout.axes[i + offset]
        sizes = [[atom.size for atom in axis] for axis in (ours, theirs)]
        roles = {atom.role for atom in (*ours, *theirs)}
        if len(roles) > 1 or sizes[0] == sizes[1] or prod(sizes[0]) != prod(sizes[1]):
            continue
        axes = list(value.layout.axes)
        if roles == {"feature"}:  # such as those of several heads, and of all of them
            axes[i] = ours
            value = value.with_layout(Layout(tuple(axes)), {})
            continue
        if roles != {"position"}:
            continue
        if len(theirs) > 1:
            value = _merged(value, i)
            axes = list(value.layout.axes)
        (whole,) = axes[i]
        pieces = tuple(Atom.new("position", atom.size) for atom in ours)
        axes[i] = pieces
        value = value.with_layout(Layout(tuple(axes)), {whole: pieces})
    return value


def _merged(value: Moments, axis: int) -> Moments:
    """The value, with one atom for all positions of an axis."""
    atoms = value.layout.axes[axis]
    order = (*(atom for atom in value.order if atom not in atoms), *atoms)
    whole = Atom.new("position", prod(atom.size for atom in atoms))
    axes = list(value.layout.axes)
    axes[axis] = (whole,)
    left = order[: len(order) - len(atoms)]
    return value.at(value.places(order), Layout(tuple(axes)), (*left, whole))


def _index(lead: Moments, value: Moments, places: dict[Atom, Atom]) -> NDArray[np.intp]:
    """Which position of the value stands at each of the lead's."""
    sizes = [atom.size for atom in lead.order]
    grid = np.indices(sizes).reshape(len(sizes), -1) if sizes else np.zeros((0, 1), int)
    index = np.zeros(grid.shape[1], int)
    for atom in value.order:
        (ours,) = (a for a, theirs in places.items() if theirs == atom)
        if ours not in lead.order:
            raise LayoutError("the positions of two tensors differ")
        index = index * atom.size + grid[lead.order.index(ours)]
    return index


def _reordered(value: Moments, lead: Moments) -> Moments:
    pairs = arranged(value.correlation, value.order, lead.order)
    table = value.table
    if len(table) > 1 and value.order != lead.order:
        table = table[value.places(lead.order)]
    return replace(value, order=lead.order, correlation=pairs, table=table, known={})


def unaligned(pairs: Exchangeable, aligned: Moments, original: Moments) -> Exchangeable:
    """Bring a gradient back to the positions of the original; add up what was repeated."""
    if aligned is original or aligned.order == original.order:
        return pairs
    if [a.size for a in aligned.order] != [a.size for a in original.order]:
        alike = _split_or_merged(original, aligned)
        if alike is not original:
            return _back_in_order(unaligned(pairs, aligned, alike), alike, original)
    if original.positions == pairs.positions:
        places: dict[Atom, Atom] = {}
        padded = ((),) * (len(aligned.layout.axes) - len(original.layout.axes))
        for ours, theirs in zip(aligned.layout.axes, padded + original.layout.axes, strict=True):
            places.update(zip(ours, theirs, strict=False))
        index = np.argsort(_index(aligned, original, places))
        grid = np.ix_(index, index)
        return Exchangeable(pairs.same[grid], pairs.diff[grid], pairs.samples)
    if original.positions == 1:
        return Exchangeable(
            pairs.same.sum(keepdims=True), pairs.diff.sum(keepdims=True), pairs.samples
        )
    raise UnpredictedError("a gradient through a tensor that was repeated over some positions")
