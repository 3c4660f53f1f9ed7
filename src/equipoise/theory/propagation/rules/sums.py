r"""Sums and products of two tensors.

Functions of the same latents are combined point by point, which is exact; so are positions of one
tensor at different places, :math:`R_a x + R_b x = (R_a + R_b) x`. Others are taken as
independent but for their means over features:

.. math:: K_{a+b} = K_a + K_b + m_a m_b' + m_b m_a', \qquad K_{ab} = K_a K_b .

That holds where one of the two ends in weights of its own; where both depend on the same elements
of a third tensor they are refused. The law of the sum is that of two
independent elements; correlations of its latents follow from K.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from math import prod
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.theory.propagation import draws, latent
from equipoise.theory.propagation.call import Call, Pulled, Result, chained, rule
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.layout import Atom, Layout, LayoutError, UnpredictedError
from equipoise.theory.propagation.rules.pointwise import Derivative, elementwise, pointwise
from equipoise.theory.propagation.rules.positions import mapped
from equipoise.theory.propagation.tensors import features_last, is_uniform
from equipoise.theory.propagation.values import (
    Drawn,
    Gradient,
    Known,
    MadeBy,
    Moments,
    OfParameter,
    arranged,
    from_covariance,
    measured,
)

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

# A slope below this part of the largest is none.
_FLAT = 1e-6
# So far from 1 a squared size is that of a norm written in parts.
_UNIT = 0.05


@rule("add", "sub")
def add(call: Call) -> Result:
    """``a + alpha b``, and ``a - alpha b``."""
    if _with_scalar(call):
        return pointwise(call)
    a, b = _both(call)
    sign = float(call.argument("alpha", 1)) * (-1 if call.node.name == "sub" else 1)
    source = common_source(a, b)
    if source is not None:
        matrix = a.matrix_from(source) + sign * b.matrix_from(source)
        return mapped(source, source.order, matrix, a.layout, a.order)
    if sign != 1:
        b = b.with_table(sign * b.table, gaussian=b.gaussian)
    both = None
    if a.latent == b.latent or a.is_constant or b.is_constant:
        lead = b if a.is_constant else a
        output = lead.with_table(a.table + b.table, gaussian=a.gaussian and b.gaussian)
    elif (both := _of_dependent(a, b, torch.add)) is not None:
        output = both
    else:
        K, L = a.covariance, b.covariance
        cross = np.outer(a.mean, b.mean) + np.outer(b.mean, a.mean)
        total = Exchangeable(K.same + L.same + cross, K.diff + L.diff + cross, K.samples)
        shape = None if a.gaussian and b.gaussian else _law(a, b, latent.of_sum)
        output = from_covariance(a.layout, a.order, total, a.mean + b.mean, shape)
        output = replace(
            output.made_of(a, b),
            scatter=_scatter_of_sum(a, b, total),
            steady=_part_of_sum(a, b, a.steady, b.steady),
            balanced=_part_of_sum(a, b, a.balanced, b.balanced),
            drawn=Drawn((a, b), torch.add),
        )

    def pullback(gradient: Gradient) -> Pulled:
        if output.drawn is not None and (gradient.draws is not None or both is not None):
            return by_draws(_inputs(call), output, gradient, (1.0, sign))
        if a.latent == b.latent and (found := _through_root(a, b, output, gradient)):
            return found
        inputs = []
        places = _places(output, a, b)
        for original, like, looks, factor in zip(
            _inputs(call), (a, b), (places, _turned(places)), (1.0, sign), strict=True
        ):
            if isinstance(original, Moments) and not original.is_constant:
                seen = _seen_by_part(output, like, looks)
                weight = _weight_of_part(gradient.weight, seen)
                pairs = unaligned(gradient.pairs * factor**2, like, original)
                pairs = pairs * _copies_of_features(original, output)
                share = _share_of_latent(gradient.weight, output, like, seen)
                excess = _excess_of_part(gradient, share, like, original)
                part = float((like.std**2).mean()) / max(float((output.std**2).mean()), 1e-300)
                orthogonal = gradient.orthogonal * min(part, 1.0)
                own = Gradient(pairs, weight, excess, orthogonal=orthogonal)
                inputs.append((original, own))
        return Pulled(inputs)

    return Result(output, pullback)


def _scatter_of_sum(a: Moments, b: Moments, total: Exchangeable) -> float:
    """Of two tensors that differ from the average sample alike, as x and a function of x do."""
    if not (a.scatter or b.scatter):
        return 0.0
    part = sum(
        value.covariance.spread * np.sign(value.scatter) * abs(value.scatter) ** 0.5
        for value in (a, b)
    )
    whole = total.spread
    return float(np.sign(part) * (part / whole) ** 2) if whole > 0 else 0.0


def _part_of_sum(a: Moments, b: Moments, of_a: float, of_b: float) -> float:
    """Part of the squared variance, from those of two independent tensors."""
    first, second = (float((value.std**2).mean()) for value in (a, b))
    whole = (first + second) ** 2
    return (of_a * first**2 + of_b * second**2) / whole if whole > 0 else 0.0


def common_source(a: Moments, b: Moments) -> Moments | None:
    """The latest tensor whose positions both are made of, at different places."""
    if a.latent == b.latent:
        return None
    sources = {id(value) for value in b.moved_from()}
    return next((value for value in a.moved_from() if id(value) in sources), None)


def depend_on_a_third(a: Moments, b: Moments) -> bool:
    """Whether elements of both depend on the same ones of a third tensor."""
    return bool((a.latents & b.latents) - a.made_by - a.parameters)


def _of_dependent(a: Moments, b: Moments, function: draws.Function) -> Moments | None:
    """A function of two tensors whose elements depend on the same ones of a third.

    None if they are independent, or if nothing but parameters that both were multiplied with makes
    them alike, and they are of too many positions to be drawn.
    """
    dependent = depend_on_a_third(a, b)
    if not dependent and not a.parameters & b.parameters:
        return None
    if draws.is_drawable(a, b):
        try:
            return draws.combined((a, b), function, a.layout, a.order)
        except UnpredictedError:
            if dependent:
                raise
    if dependent and not (function is torch.add and _are_of_other_signs(a, b)):
        raise UnpredictedError("a sum or product of two tensors that depend on a third")
    return None


def _are_of_other_signs(a: Moments, b: Moments) -> bool:
    """Whether products of the two average to zero, as the sign of one is that of its own weights.

    Such as outputs of two experts, each times a gate, where gates depend on each other.
    """
    for one, other in ((a, b), (b, a)):
        names = {maker.weights for maker in other.made_by}
        if any(maker.weights not in names for maker in one.signs):
            return True
    return False


def _signs_of_product(a: Moments, b: Moments) -> frozenset[MadeBy]:
    """The weights that one factor has its sign of, and that the other does not depend on."""
    names = [{maker.weights for maker in x.made_by} for x in (a, b)]
    found = {maker for maker in a.signs if maker.weights not in names[1]}
    return frozenset(found | {maker for maker in b.signs if maker.weights not in names[0]})


def by_draws(
    originals: Sequence[Moments | Known],
    output: Moments,
    gradient: Gradient,
    factors: Sequence[float] = (),
) -> Pulled:
    """The gradients of what was multiplied with a number each, aligned, and then drawn."""
    inputs = []
    found = draws.pulled_back(output, gradient)
    for i, (original, (like, own)) in enumerate(zip(originals, found, strict=True)):
        if isinstance(original, Moments) and not original.is_constant:
            back = back_to(original, like, own, output)
            inputs.append((original, back.times(factors[i]) if factors else back))
    return Pulled(inputs)


def back_to(original: Moments, like: Moments, own: Gradient, output: Moments) -> Gradient:
    """The gradient of a tensor, from that of the same with the axes of another."""
    copies = _copies_of_features(original, output)
    if copies > 1:
        return Gradient(unaligned(own.pairs * copies, like, original), own.weight)
    if like is original:
        return own
    assert own.draws is not None
    parts = own.draws @ like.matrix_from(original)
    return draws.of_parts(original, parts, own.pairs.samples)


def _copies_of_features(value: Moments, lead: Moments) -> float:
    """For how many features each of a tensor's stands, as a gate that all share."""
    return lead.layout.count("feature") / value.layout.count("feature")


def _through_root(a: Moments, b: Moments, output: Moments, gradient: Gradient) -> Pulled | None:
    """The gradient of the tensor that both are functions of, whose ways add before squares.

    None if it is not known, or does not rise everywhere.
    """
    roots = [value.root or value for value in (a, b)]
    root = roots[0]
    if roots[1] is not root or root.order != a.order or root.order != output.order:
        return None
    rise = latent.derivative(root.table)
    if not (np.abs(rise) > _FLAT * np.abs(rise).max()).all():
        return None
    slope = latent.derivative(output.table) / rise
    return Pulled([(root, Derivative(root, slope).times(gradient))])


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


def _excess_of_part(
    gradient: Gradient, share: float, like: Moments, original: Moments
) -> Exchangeable | None:
    """What a part of a sum has in common with the gradient, a share of what the sum has."""
    if gradient.excess is None or like.positions != original.positions:
        return None
    return unaligned(gradient.excess * share, like, original)


# The average of a function of a sum's latent, given the latent of a part.
_Seen: TypeAlias = Callable[[Array], Array]
_Places: TypeAlias = Callable[[], tuple[Indices, Array]]


def _share_of_latent(weight: Array, output: Moments, like: Moments, seen: _Seen | None) -> float:
    r"""How much of the square of E[f z], z the latent of a sum, is E[f z] with that of a part.

    The part's share of the variance, if all are Gaussian. A stream that is never negative makes
    the sum narrow where a rectifier behind has its kink, and the share is larger. For f the root
    of the weight :math:`w(g)` is taken, as derivatives of activations are mostly positive.
    """
    z, weights = latent.nodes()
    f = np.sqrt(weight)
    whole = float((f * z) @ weights)
    if seen is None or abs(whole) < _FLAT:
        variance = max(float((output.std**2).mean()), 1e-300)
        return min(float((like.std**2).mean()) / variance, 1.0)
    return (float((seen(f) * z) @ weights) / whole) ** 2


def _weight_of_part(weight: Array, seen: _Seen | None) -> Array:
    """How a gradient depends on the latent of one of two independent parts of a sum."""
    if seen is None or np.ptp(weight) == 0:
        return weight
    found = seen(weight)
    return np.asarray(found / (found @ latent.nodes()[1]))


def _places(output: Moments, a: Moments, b: Moments) -> _Places:
    """Where on the sum's latent two parts add up to, found once for both.

    The nodes below and how far beyond, each of shape ``[M, M]``: a's nodes, b's nodes.
    """

    @cache
    def places() -> tuple[Indices, Array]:
        rising = np.maximum.accumulate(output.typical)
        found = np.interp(a.typical[:, None] + b.typical, rising, np.arange(len(rising)))
        below = found.astype(np.intp)
        return below, found - below

    return places


def _turned(places: _Places) -> _Places:
    """The same with the parts exchanged."""

    def turned() -> tuple[Indices, Array]:
        below, beyond = places()
        return below.T, beyond.T

    return turned


def _seen_by_part(output: Moments, part: Moments, places: _Places) -> _Seen | None:
    """How averages follow; ``None`` if the part has the sum's own latent."""
    if part.latent == output.latent:
        return None
    _, weights = latent.nodes()

    def seen(values: Array) -> Array:
        below, beyond = places()
        steps = np.append(np.diff(values), 0.0)
        return np.asarray((values[below] + beyond * steps[below]) @ weights)

    return seen


@rule("div")
def divide(call: Call) -> Result:
    """``a / b``, b a number or the same for all features."""
    b = call.arguments[1]
    if _with_scalar(call):
        return pointwise(call)
    if isinstance(b, Known) and not call.argument("rounding_mode") and bool((b.value != 0).all()):
        numbers = replace(b, value=1 / b.value.double())
        return multiply(replace(call, arguments=(call.arguments[0], numbers)))
    if isinstance(b, Moments) and _keeps_from_zero(b) and not call.argument("rounding_mode"):
        inverse = elementwise(b, torch.reciprocal)
        rest = multiply(replace(call, arguments=(call.arguments[0], inverse.output)))
        return chained(inverse, rest)
    if isinstance(b, Moments) and not call.argument("rounding_mode"):
        return _quotient(call)
    raise UnpredictedError("a quotient of two random tensors, of which the second may be 0")


def _quotient(call: Call) -> Result:
    """Of draws, none of which divides by a number near 0."""
    a, b = _both(call)
    divisor = draws.values(b)
    if (
        draws.of_the_loss.get()
        or np.ptp(np.sign(divisor))
        or np.abs(divisor).min() < 0.01 * b.second_moment**0.5
    ):
        raise UnpredictedError("a quotient of two random tensors, of which the second may be 0")
    output = draws.combined((a, b), torch.div, a.layout, a.order)
    return Result(output, partial(by_draws, _inputs(call), output))


def _keeps_from_zero(b: Moments) -> bool:
    """Whether all elements have one sign, and none is a hundredth of what they usually are."""
    return bool(abs(b.table).min() > 0.01 * b.second_moment**0.5 and np.ptp(np.sign(b.table)) == 0)


@rule("mul")
def multiply(call: Call) -> Result:
    """``a * b``."""
    if _with_scalar(call):
        return pointwise(call)
    a, b = _both(call)
    together, both = a.latent == b.latent or a.is_constant or b.is_constant, None
    if together:
        lead = b if a.is_constant else a
        straight = (a.is_constant and b.gaussian) or (b.is_constant and a.gaussian)
        output = lead.with_table(a.table * b.table, gaussian=straight)
    elif (both := _of_dependent(a, b, torch.mul)) is not None:
        output = both
    else:
        K, L = a.covariance, b.covariance
        total = Exchangeable(K.same * L.same, K.diff * L.diff, K.samples)
        output = from_covariance(
            a.layout, a.order, total, a.mean * b.mean, _law(a, b, latent.of_product)
        ).made_of(a, b)
        output = output.within(*_range_of_product(a, b))
        output = replace(output, signs=_signs_of_product(a, b))
        scatter = max(a.scatter, b.scatter, 0.0)
        output = replace(output, scatter=scatter, drawn=Drawn((a, b), torch.mul))

    def pullback(gradient: Gradient) -> Pulled:
        if output.drawn is not None and (gradient.draws is not None or both is not None):
            return by_draws(_inputs(call), output, gradient)
        if a.latent == b.latent and (found := _through_root(a, b, output, gradient)):
            return found
        inputs = []
        for original, aligned, other in zip(_inputs(call), (a, b), (b, a), strict=True):
            if not isinstance(original, Moments) or original.is_constant:
                continue  # what features share gets a gradient of order 1/C
            if together:
                part = Derivative(lead, np.atleast_2d(other.table)).times(gradient)
            else:
                L = other.covariance
                pairs = gradient.pairs.times(L)
                if gradient.excess is not None and other.gaussian:
                    # The gradient knows the other factor, most of which is the product's sign.
                    pairs = pairs + gradient.excess.scaled(other.std)
                part = _of_factor(pairs, gradient.weight, output, aligned, other)
            pairs = unaligned(part.pairs, aligned, original)
            pairs = pairs * _copies_of_features(original, output)
            orthogonal = float(_is_divided_by_size(aligned, other))
            kept = _kept(part, aligned, original)
            inputs.append(
                (original, Gradient(pairs, part.weight, draws=kept, orthogonal=orthogonal))
            )
        return Pulled(inputs)

    return Result(output, pullback)


def _is_divided_by_size(x: Moments, factor: Moments) -> bool:
    """Whether a factor makes the average of a row's squares, or their sum, 1."""
    if x.latent not in factor.sized_by:
        return False
    size = float(factor.mean.mean()) ** 2 * x.second_moment
    sizes = size, size * x.layout.count("feature")
    return any(abs(one - 1) < _UNIT for one in sizes)


def _of_factor(
    pairs: Exchangeable, weight: Array, output: Moments, factor: Moments, other: Moments
) -> Gradient:
    """The gradient of one of two independent factors, where that of the product knows its latent.

    Such as that of positive numbers that a maximum selected: the other factor is large there.
    """
    if np.ptp(weight) == 0:
        return Gradient(pairs, weight)
    _, weights = latent.nodes()
    rising = np.maximum.accumulate(output.typical)
    products = factor.typical[:, None] * other.typical
    # Where many latents have one value, as zeros of a rectifier, their average.
    levels, which = np.unique(rising, return_inverse=True)
    chance = np.bincount(which, weights)
    known = np.bincount(which, weight * weights) / np.maximum(chance, 1e-300)
    found = (np.interp(products, levels, known) * other.typical**2) @ weights
    size, plain = float(found @ weights), float(other.typical**2 @ weights)
    if size <= 0:
        return Gradient(pairs)
    same = pairs.same.copy()
    same[np.diag_indices_from(same)] *= size / plain
    return Gradient(Exchangeable(same, pairs.diff, pairs.samples), found / size)


def _range_of_product(a: Moments, b: Moments) -> tuple[Array, Array]:
    """The least and the largest product at each position, of the ends of both laws."""
    ends = [(x.table.min(1), x.table.max(1)) for x in (a, b)]
    products = [np.broadcast_to(one * other, a.positions) for one in ends[0] for other in ends[1]]
    return np.min(products, 0), np.max(products, 0)


def _kept(gradient: Gradient, aligned: Moments, original: Moments) -> Array | None:
    """Draws of a gradient, if those of the aligned tensor are those of the original."""
    return gradient.draws if aligned is original else None


@rule("where")
def where(call: Call) -> Result:
    """``a`` where a condition holds and ``b`` elsewhere: ``c a + (1 - c) b``."""
    condition, a, b = call.arguments[:3]
    if isinstance(condition, Moments):
        opposite: Moments | Known = condition.with_table(1 - condition.table, gaussian=False)
    else:
        condition = replace(condition, value=condition.value.double())
        opposite = replace(condition, value=1 - condition.value)
    first, second = _product(call, condition, a), _product(call, opposite, b)
    if isinstance(first.output, Moments) and isinstance(second.output, Moments):
        total = add(replace(call, arguments=(first.output, second.output)))
        return chained(first, chained(second, total))
    found, rest = (first, second) if isinstance(first.output, Moments) else (second, first)
    if not isinstance(rest.output, Known) or rest.output.value.any():
        raise UnpredictedError("a constant other than zero beside random numbers")
    return found


def _product(call: Call, condition: Moments | Known, value: Moments | Known) -> Result:
    """The product of zeros and ones with a tensor, in place of what was called."""
    for number, tensor in ((condition, value), (value, condition)):
        if isinstance(tensor, Moments) and isinstance(number, Known) and is_uniform(number.value):
            size = float(number.value.flatten()[0])
            return elementwise(tensor, partial(torch.mul, size), affine=True)
    if isinstance(condition, Known) and isinstance(value, Known):
        return Result(replace(condition, value=condition.value * value.value))
    return multiply(replace(call, arguments=(condition, value)))


def _with_scalar(call: Call) -> bool:
    """Whether one of the two is a number."""
    others = [v for v in call.arguments[:2] if not isinstance(v, Moments)]
    return len(others) == 1 and (not isinstance(others[0], Known) or is_uniform(others[0].value))


def _inputs(call: Call) -> tuple[Moments | Known, Moments | Known]:
    return call.arguments[0], call.arguments[1]


def _both(call: Call) -> tuple[Moments, Moments]:
    """Both inputs as moments, with the axes of the one that has all of them."""
    first, second = _inputs(call)
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


def _law(a: Moments, b: Moments, combine: Callable[[Array, Array], Array]) -> Array:
    """Table of the standardised result at a typical position."""
    table = combine(a.typical, b.typical)
    centred = table - latent.mean(table)
    return np.asarray(centred / np.sqrt(latent.mean(centred**2)))
