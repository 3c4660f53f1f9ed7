r"""Concatenation.

Of features, second moments are averages weighted by how many features each part brings. Of
positions, parts of one tensor are parts of it again, and others are independent but for means.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import combinations, pairwise
from math import prod
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.theory.propagation import draws, latent
from equipoise.theory.propagation.call import Call, Pulled, Result, Rule, chained, rule
from equipoise.theory.propagation.exchangeable import Average, Exchangeable
from equipoise.theory.propagation.layout import Atom, Axis, Layout, UnpredictedError, times
from equipoise.theory.propagation.rules.arithmetic.alignment import aligned, unaligned
from equipoise.theory.propagation.rules.arithmetic.dependence import (
    back_to,
    common_source,
    depend_on_a_third,
)
from equipoise.theory.propagation.rules.positions.matrices import mapped
from equipoise.theory.propagation.tensors import is_uniform
from equipoise.theory.propagation.values.covariances import from_covariance, measured
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.known import Known
from equipoise.theory.propagation.values.moments import Drawn, Moments

# By how much correlations of copies, and second moments of samples of one law, may be off.
_EQUAL, _ALIKE = 1e-9, 0.05


@rule("cat")
def concatenate(call: Call) -> Result:
    """``torch.cat``."""
    parts, axis = call.argument("tensors"), call.argument("dim")
    axis %= call.output.ndim
    # Caches of keys start from empty tensors; slices may be empty too.
    parts = [part for part in parts if not _is_empty(part)]
    lead = next(part for part in parts if isinstance(part, Moments))
    if len(parts) == 1:
        return Result(replace(lead), lambda gradient: Pulled([(lead, gradient)]))
    roles = {atom.role for atom in lead.layout.axes[axis]} or {"position"}
    if roles == {"feature"}:
        return _beside_shared_features(parts, axis, lead)
    if roles == {"position"}:
        return _positions(parts, axis, lead)
    if roles == {"sample"} and _have_one_law(parts, axis):
        return _samples([part for part in parts if isinstance(part, Moments)], axis)
    raise UnpredictedError(
        "a concatenation of unlike samples, or of an axis put together from several"
    )


def _is_empty(part: Moments | Known) -> bool:
    return isinstance(part, Known) and not part.value.numel()


def _beside_shared_features(parts: list[Moments | Known], axis: int, lead: Moments) -> Result:
    """Features of every head, beside some that all heads share, as of a rotated key."""
    own = [_of_every_head(part, lead) if isinstance(part, Moments) else None for part in parts]
    result = _features(
        [p if o is None else o.output for p, o in zip(parts, own, strict=True)], axis, lead
    )
    for one in own:
        result = result if one is None else chained(one, result)
    return result


def _of_every_head(part: Moments, lead: Moments) -> Result | None:
    """Features that were repeated for every head, as features of the heads.

    What the copies are multiplied with differs from head to head, as queries do, so that products
    of two heads have nothing in common, nor have gradients of two copies.

    Returns:
        None if nothing was repeated where the other tensor has features.
    """
    for i, (ours, theirs) in enumerate(zip(lead.layout.axes, part.layout.axes, strict=False)):
        roles = [{atom.role for atom in axis} for axis in (ours, theirs)]
        if roles != [{"feature"}, {"position"}] or len(theirs) > 1:
            continue
        left = [atom for atom in part.order if atom not in theirs]
        copies = part.places([*theirs, *left]).reshape(theirs[0].size, -1)
        if not np.allclose(part.correlation.same[copies, copies[0]], 1, atol=_EQUAL):
            continue
        axes = list(part.layout.axes)
        axes[i] = ours

        def pullback(gradient: Gradient, copies: NDArray[np.intp] = copies) -> Pulled:
            same = np.zeros((part.positions, part.positions))
            diff = same.copy()
            for places in copies:
                same[np.ix_(places, places)] = gradient.pairs.same
                diff[np.ix_(places, places)] = gradient.pairs.diff
            pairs = Exchangeable(same, diff, gradient.pairs.samples)
            return Pulled([(part, Gradient(pairs, gradient.weight, filters=gradient.filters))])

        return Result(part.at(copies[0], Layout(tuple(axes)), left), pullback)
    return None


def _have_one_law(parts: Sequence[Moments | Known], axis: int) -> bool:
    """Whether samples of several tensors are alike, as those of parts of one batch."""
    first = parts[0]
    if not isinstance(first, Moments) or len(first.layout.axes[axis]) != 1:
        return False
    for part in parts:
        if not isinstance(part, Moments):
            return False
        axes = [
            [[(a.role, a.size) for a in own] for i, own in enumerate(one.layout.axes) if i != axis]
            for one in (first, part)
        ]
        if axes[0] != axes[1] or part.positions != first.positions:
            return False
        if not np.allclose(part.covariance.same, first.covariance.same, rtol=_ALIKE):
            return False
    return True


def _samples(parts: Sequence[Moments], axis: int) -> Result:
    """Samples of one law beside each other; two of different parts have in common what others do.

    That is right to 1/N of parts of N samples that batch norm has centred one by one, as in ghost
    batch norm, and of what does not depend on the other samples.
    """
    first = parts[0]
    sizes = np.array([part.layout.axes[axis][0].size for part in parts], dtype=float)
    shares = sizes / sizes.sum()
    axes = list(first.layout.axes)
    axes[axis] = (Atom.new("sample", int(sizes.sum()), axes[axis][0].times),)
    layout = Layout(tuple(axes))
    pairs = [(share, part.covariance) for share, part in zip(shares, parts, strict=True)]
    covariance = Exchangeable(
        np.asarray(sum(share * one.same for share, one in pairs)),
        np.asarray(sum(share * one.diff for share, one in pairs)),
        layout.count("sample"),
    )
    centred = first.typical - latent.mean(first.typical)
    shape = centred / np.sqrt(latent.mean(centred**2))
    output = from_covariance(layout, first.order, covariance, first.mean, shape).made_of(*parts)

    def pullback(gradient: Gradient) -> Pulled:
        inputs = []
        for part in parts:
            own = Exchangeable(gradient.pairs.same, gradient.pairs.diff, part.correlation.samples)
            inputs.append((part, Gradient(own, gradient.weight, filters=gradient.filters)))
        return Pulled(inputs)

    return Result(output, pullback)


def _features(parts: list[Moments | Known], axis: int, lead: Moments) -> Result:
    """Keep every part; a part that is itself a concatenation brings its own."""
    found: list[tuple[Moments, ...]] = []
    originals: list[tuple[Moments | Known, ...]] = []
    for part in parts:
        if isinstance(part, Known):
            axes = list(lead.layout.axes)
            axes[axis] = (Atom.new("feature", part.value.shape[axis]),)
            model = lead.with_layout(Layout(tuple(axes)), {})
            found.append((aligned(part, model, part.value),))
            originals.append((part,))
        else:
            originals.append(part.parts or (part,))
            found.append(tuple(_like(lead, own) for own in part.parts or (part,)))
    axes = list(lead.layout.axes)
    joined = [part for group in found for part in group]
    axes[axis] = (_all_features([part.layout.axes[axis] for part in joined]),)
    output = _joined(joined, Layout(tuple(axes)))

    def pullback(gradient: Gradient) -> Pulled:
        own = list(gradient.parts) or [gradient] * sum(map(len, found))
        inputs = []
        for part, group, before in zip(parts, found, originals, strict=True):
            gradients, own = own[: len(group)], own[len(group) :]
            if not isinstance(part, Moments):
                continue
            back = [
                Gradient(unaligned(g.pairs, like, original), g.weight, filters=g.filters)
                for g, like, original in zip(gradients, group, before, strict=True)
                if isinstance(original, Moments)
            ]
            inputs.append((part, _average(back, group) if part.parts else back[0]))
        return Pulled(inputs)

    return Result(output, pullback)


def _all_features(parts: Sequence[Axis]) -> Atom:
    """One atom for several axes of features."""
    sizes = [prod(atom.size for atom in part) for part in parts]
    taken = sum(size * times(part) for size, part in zip(sizes, parts, strict=True))
    return Atom.new("feature", sum(sizes), Fraction(taken, sum(sizes)))


def _like(lead: Moments, part: Moments) -> Moments:
    """The part, with the positions of another."""
    if part is lead:
        return lead
    axes = tuple(
        own if any(atom.role == "feature" for atom in own) else ours
        for own, ours in zip(part.layout.axes, lead.layout.axes, strict=True)
    )
    if axes == part.layout.axes and part.order == lead.order:
        return part
    return aligned(part, lead.with_layout(Layout(axes), {}), None)


def _joined(parts: Sequence[Moments], layout: Layout) -> Moments:
    """Features of several laws, with the positions of the first."""
    first = parts[0]
    parts = [_like(first, part) for part in parts]
    sizes = np.array([part.layout.count("feature") for part in parts], dtype=float)
    shares = sizes / sizes.sum()
    mean = np.asarray(sum(s * part.mean for s, part in zip(shares, parts, strict=True)))
    table = latent.of_mixture([part.typical for part in parts], shares)
    centred = table - latent.mean(table)
    shape = centred / np.sqrt(latent.mean(centred**2))
    covariance = Average([part.covariance for part in parts], shares)
    output = from_covariance(layout, first.order, covariance, mean, shape).made_of(*parts)
    split = sum(any(a.role == "feature" for a in axis) for axis in layout.axes)
    return replace(output, parts=tuple(parts) if split == 1 else ())


def _average(gradients: Sequence[Gradient], parts: Sequence[Moments]) -> Gradient:
    """The gradient of a concatenation, with those of its parts."""
    sizes = np.array([part.layout.count("feature") for part in parts], dtype=float)
    shares = sizes / sizes.sum()
    pairs = Average([g.pairs for g in gradients], shares)
    return Gradient(pairs, parts=tuple(gradients))


@rule("stack")
def stack(call: Call) -> Result:
    """``torch.stack``: concatenation along a new axis."""
    parts, axis = call.arguments[0], call.argument("dim")
    axis %= call.output.ndim
    wide: list[Moments | Known] = []
    for part in parts:
        if isinstance(part, Known):
            wide.append(replace(part, value=part.value.unsqueeze(axis)))
        else:
            axes = part.layout.axes
            wide.append(part.with_layout(Layout((*axes[:axis], (), *axes[axis:])), {}))
    joined = _positions(wide, axis, next(part for part in wide if isinstance(part, Moments)))
    for part, same in zip(parts, wide, strict=True):
        if isinstance(part, Moments):
            joined = chained(Result(same, partial(_given_to, part)), joined)
    return joined


def _given_to(part: Moments, gradient: Gradient) -> Pulled:
    return Pulled([(part, gradient)])


def _positions(parts: Sequence[Moments | Known], axis: int, lead: Moments) -> Result:
    """Parts of one tensor are parts of it again; others have nothing but means in common."""
    others = [atom for atom in lead.order if atom not in lead.layout.axes[axis]]
    found = [_last_along(part, axis, lead, others) for part in parts]
    count = prod(atom.size for atom in others)
    ends = np.cumsum([0, *(part.positions // count for part in found)])
    place = Atom.new("position", int(ends[-1]))
    axes = list(lead.layout.axes)
    axes[axis] = (place,)
    layout, order = Layout(tuple(axes)), [*others, place]
    rows = np.arange(count * place.size).reshape(count, place.size)
    blocks = [rows[:, a:b].ravel() for a, b in pairwise(ends)]
    source = _source_of_all(found)
    dependent = source is None and _depend(found)

    def together(*parts: Tensor) -> Tensor:
        wide = [part.reshape(len(part), count, -1) for part in parts]
        return torch.cat(wide, 2).flatten(1)

    if dependent and draws.is_drawable(*found):
        joined = draws.combined(found, together, layout, order)
        return Result(joined, partial(_of_drawn_parts, parts, joined))
    if dependent and _have_a_source(found):
        raise UnpredictedError("functions of one tensor beside each other")
    if source is not None:
        matrix = np.empty((rows.size, source.positions))
        for block, part in zip(blocks, found, strict=True):
            matrix[block] = part.matrix_from(source)
        return mapped(source, source.order, matrix, layout, order)
    mean = np.empty(rows.size)
    for block, part in zip(blocks, found, strict=True):
        mean[block] = part.mean
    same = np.outer(mean, mean)
    diff = same.copy()
    for block, part in zip(blocks, found, strict=True):
        grid = np.ix_(block, block)
        same[grid], diff[grid] = part.covariance.same, part.covariance.diff
    covariance = Exchangeable(same, diff, lead.correlation.samples)
    output = from_covariance(layout, order, covariance, mean).made_of(*found)
    traces = [part.covariance.spread * part.positions for part in found]
    whole = max(covariance.spread * len(same), 1e-300)
    scatter = sum(p.scatter * (t / whole) ** 2 for p, t in zip(found, traces, strict=True))
    output = replace(output, scatter=float(scatter), drawn=Drawn(tuple(found), together))

    def pullback(gradient: Gradient) -> Pulled:
        if gradient.draws is not None:
            return _of_drawn_parts(parts, output, gradient)
        inputs, pairs = [], gradient.pairs
        for part, like, block in zip(parts, found, blocks, strict=True):
            if isinstance(part, Moments):
                grid = np.ix_(block, block)
                own = Exchangeable(pairs.same[grid], pairs.diff[grid], pairs.samples)
                inputs.append((part, Gradient(unaligned(own, like, part))))
        return Pulled(inputs)

    return Result(output, pullback)


def _last_along(part: Moments | Known, axis: int, lead: Moments, others: list[Atom]) -> Moments:
    """The part with the lead's positions, and then its own along one axis."""
    axes = list(lead.layout.axes)
    if isinstance(part, Known):
        size = part.value.shape[axis]
        axes[axis] = (Atom.new("position", size),) if size > 1 else ()
        value = measured(part.value.detach(), Layout(tuple(axes)))
        order = (*others, *axes[axis])
        return value.at(value.places(order), value.layout, order)
    axes[axis] = part.layout.axes[axis]
    model = replace(lead, layout=Layout(tuple(axes)), order=(*others, *axes[axis]))
    return aligned(part, model, None)


def _source_of_all(parts: Sequence[Moments]) -> Moments | None:
    """The tensor that all parts are positions of; None if they have nothing in common."""
    first, *others = parts
    kept = [{id(value) for value in part.moved_from()} for part in others]
    for value in first.moved_from():
        if all(id(value) in known for known in kept):
            return value
    return None


def _depend(parts: Sequence[Moments]) -> bool:
    """Whether two parts are made of the same elements of another tensor."""
    return any(
        one.latent == other.latent
        or depend_on_a_third(one, other)
        or one.parameters & other.parameters
        for one, other in combinations(parts, 2)
    )


def _have_a_source(parts: Sequence[Moments]) -> bool:
    """Whether two parts are positions or functions of one tensor."""
    return any(
        one.latent == other.latent or common_source(one, other) is not None
        for one, other in combinations(parts, 2)
    )


def _of_drawn_parts(
    parts: Sequence[Moments | Known], joined: Moments, gradient: Gradient
) -> Pulled:
    found = draws.pulled_back(joined, gradient)
    return Pulled(
        [
            (part, back_to(part, like, own, joined))
            for part, (like, own) in zip(parts, found, strict=True)
            if isinstance(part, Moments) and not part.is_constant
        ]
    )


# What they do to a feature does not depend on the others.
FEATUREWISE = {"native_batch_norm", "max_pool2d_with_indices", "avg_pool2d", "mean"}


# What was done to parts of concatenations, by their identity and what it is.
Done: TypeAlias = dict[tuple[int, Hashable], Result]


def each_part(call: Call, act: Rule, done: Done) -> Result:
    """Treat the parts of a concatenation one by one.

    Args:
        call: An operation with a concatenation for its only random input.
        act: The rule for it.
        done: Results for parts, which are not computed again; new ones are added.
    """
    place = next(i for i, v in enumerate(call.arguments) if isinstance(v, Moments))
    x: Moments = call.arguments[place]
    what, results = _what(call), []
    for part in x.parts:
        if (id(part), what) not in done:
            arguments = list(call.arguments)
            arguments[place] = part
            done[id(part), what] = act(replace(call, arguments=tuple(arguments)))
        results.append(done[id(part), what])
    outputs = [result.output for result in results if isinstance(result.output, Moments)]
    features = [part.layout.with_role("feature") for part in outputs]
    total = (_all_features(features),)
    axes = [
        total if any(atom.role == "feature" for atom in axis) else axis
        for axis in outputs[0].layout.axes
    ]
    output = _joined(outputs, Layout(tuple(axes)))

    def pullback(gradient: Gradient) -> Pulled:
        own = gradient.parts or [gradient] * len(results)
        pulled = []
        for result, g in zip(results, own, strict=True):
            back = result.deferred or result.pullback
            if back is None:
                return Pulled()
            ((_, share),) = back(g).inputs
            pulled.append(share)
        return Pulled([(x, _average(pulled, x.parts))])

    return Result(output, pullback, [(Known(o), None) for o in call.node.outputs[1:]])


def _what(call: Call) -> Hashable:
    """Equal for calls that do the same to every feature."""
    operator = call.node.operator
    if isinstance(operator, type):  # of users, who may do anything
        return call.node.number
    unread = ("running_mean", "running_var") if call.argument("training") else ()
    constants = [
        (argument.name, _constant(call.argument(argument.name)))
        for argument in operator._schema.arguments
        if argument.name not in unread
    ]
    return operator, repr(constants)


def _constant(value: object) -> object:
    """What stands for an argument; of tensors one number, if all elements are equal."""
    if isinstance(value, Moments):
        return None
    if isinstance(value, Known):
        uniform = not value.value.is_meta and is_uniform(value.value)
        return float(value.value.detach().flatten()[0]) if uniform else id(value)
    return value
