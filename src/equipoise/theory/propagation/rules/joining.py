r"""Concatenation.

Of features, second moments are averages weighted by how many features each part brings; of
positions, parts are independent but for their means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import prod

import numpy as np

from equipoise.theory.propagation import latent
from equipoise.theory.propagation.call import Call, Pulled, Result, Rule, rule
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.layout import Atom, Axis, Layout, times
from equipoise.theory.propagation.rules.sums import aligned, unaligned
from equipoise.theory.propagation.values import (
    Gradient,
    Known,
    Moments,
    UnpredictedError,
    from_covariance,
    measured,
)


@rule("cat")
def concatenate(call: Call) -> Result:
    """``torch.cat``."""
    parts, axis = call.argument("tensors"), call.argument("dim")
    axis %= call.output.ndim
    lead = next(part for part in parts if isinstance(part, Moments))
    roles = {atom.role for atom in lead.layout.axes[axis]}
    if roles == {"feature"}:
        return _features(call, parts, axis, lead)
    if roles == {"position"}:
        return _positions(call, parts, axis, lead)
    raise UnpredictedError("a concatenation of samples, or of an axis put together from several")


def _features(call: Call, parts: list[Moments | Known], axis: int, lead: Moments) -> Result:
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
                Gradient(unaligned(g.pairs, like, original), g.weight)
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
    axes = [
        own if any(atom.role == "feature" for atom in own) else ours
        for own, ours in zip(part.layout.axes, lead.layout.axes, strict=True)
    ]
    return aligned(part, lead.with_layout(Layout(tuple(axes)), {}), None)


def _joined(parts: Sequence[Moments], layout: Layout) -> Moments:
    """Features of several laws, with the positions of the first."""
    first = parts[0]
    parts = [_like(first, part) for part in parts]
    sizes = np.array([part.layout.count("feature") for part in parts], dtype=float)
    shares = sizes / sizes.sum()
    same, diff = (
        np.asarray(sum(s * block for s, block in zip(shares, blocks, strict=True)))
        for blocks in zip(*((p.covariance.same, p.covariance.diff) for p in parts), strict=True)
    )
    mean = np.asarray(sum(s * part.mean for s, part in zip(shares, parts, strict=True)))
    table = latent.of_mixture([part.typical for part in parts], shares)
    centred = table - latent.mean(table)
    shape = centred / np.sqrt(latent.mean(centred**2))
    covariance = Exchangeable(same, diff, parts[0].correlation.samples)
    output = from_covariance(layout, first.order, covariance, mean, shape)
    split = sum(any(a.role == "feature" for a in axis) for axis in layout.axes)
    return replace(output, parts=tuple(parts) if split == 1 else ())


def _average(gradients: Sequence[Gradient], parts: Sequence[Moments]) -> Gradient:
    """The gradient of a concatenation, with those of its parts."""
    sizes = np.array([part.layout.count("feature") for part in parts], dtype=float)
    shares = sizes / sizes.sum()
    same, diff = (
        np.asarray(sum(s * block for s, block in zip(shares, blocks, strict=True)))
        for blocks in zip(*((g.pairs.same, g.pairs.diff) for g in gradients), strict=True)
    )
    pairs = Exchangeable(same, diff, gradients[0].pairs.samples)
    return Gradient(pairs, parts=tuple(gradients))


def _positions(call: Call, parts: list[Moments | Known], axis: int, lead: Moments) -> Result:
    if set(lead.order) != set(lead.layout.axes[axis]):
        raise UnpredictedError("a concatenation of maps along one of their axes")
    found = []
    for part in parts:
        if isinstance(part, Moments) and part.order != part.layout.axes[axis]:
            raise UnpredictedError("a concatenation of positions in another order")
        if isinstance(part, Known):
            axes = list(lead.layout.axes)
            size = part.value.shape[axis]
            axes[axis] = (Atom.new("position", size),) if size > 1 else ()
            part = measured(part.value.detach(), Layout(tuple(axes)))
        found.append(part)
    sizes = [part.positions for part in found]
    ends = np.cumsum([0, *sizes])
    mean = np.concatenate([part.mean for part in found])
    same = np.outer(mean, mean)
    diff = same.copy()
    blocks = [slice(a, b) for a, b in pairwise(ends)]
    for block, part in zip(blocks, found, strict=True):
        same[block, block], diff[block, block] = part.covariance.same, part.covariance.diff
    place = Atom.new("position", int(ends[-1]))
    axes = list(lead.layout.axes)
    axes[axis] = (place,)
    covariance = Exchangeable(same, diff, lead.correlation.samples)
    output = from_covariance(Layout(tuple(axes)), [place], covariance, mean)

    def pullback(gradient: Gradient) -> Pulled:
        pairs = gradient.pairs
        return Pulled(
            [
                (
                    part,
                    Gradient(Exchangeable(pairs.same[b, b], pairs.diff[b, b], pairs.samples)),
                )
                for part, b in zip(parts, blocks, strict=True)
                if isinstance(part, Moments)
            ]
        )

    return Result(output, pullback)


# What they do to a feature does not depend on the others.
FEATUREWISE = {"native_batch_norm", "max_pool2d_with_indices", "avg_pool2d", "mean"}


def each_part(call: Call, act: Rule) -> Result:
    """Treat the parts of a concatenation one by one."""
    place = next(i for i, v in enumerate(call.arguments) if isinstance(v, Moments))
    x: Moments = call.arguments[place]
    whole = act(call)
    if not isinstance(whole.output, Moments):
        return whole
    results = []
    for part in x.parts:
        arguments = list(call.arguments)
        arguments[place] = part
        results.append(act(replace(call, arguments=tuple(arguments))))
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
            if result.pullback is None:
                return Pulled()
            ((_, share),) = result.pullback(g).inputs
            pulled.append(share)
        return Pulled([(x, _average(pulled, x.parts))])

    return Result(output, pullback, whole.others)
