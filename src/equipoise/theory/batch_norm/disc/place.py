r"""Place nodes over the radius of the disc, finer wherever two rules disagree.

Panels end where a kink of one sample, or of both at once, comes within reach; averages over
circles behave like a half-integer power of the distance to such a radius. Every panel is
integrated by two rules, over circles of different nodes; panels on which they disagree are
halved, until what is left is the rounding of values. The coarser rules together are a second,
independent computation of every number.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from equipoise.numerics.quadrature import panels
from equipoise.theory.batch_norm.averages import compute
from equipoise.theory.batch_norm.averages.reach import whole_range
from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.disc import circles as of
from equipoise.theory.batch_norm.disc.circles import Circles
from equipoise.theory.batch_norm.disc.law import Density, DiscLaw

Array = NDArray[np.float64]

# Coarser and finer rules, on panels shorter than a part of the longest and on others.
_SMOOTH = (panels.analytic(14), panels.analytic(20)), (panels.analytic(18), panels.analytic(25))
_ROOTS = (
    (panels.half_powers(16), panels.half_powers(24)),
    (panels.half_powers(22), panels.half_powers(30)),
)
# Longest panel: in u, and in standard deviations. Which part of it is short.
_LONGEST, _LONGEST_SPREADS, _SHORT = 1.2, 3.2, 0.55
_GOAL, _MOST_ROUNDS = 3e-12, 12
_NOISE, _STEADY = 1e-4, 0.6
# Points in all: beyond, panels stay as they are and the error says so.
_MOST_POINTS = 3_000_000
# What each average is compared with: the size of its own kind.
_SIZE_OF = np.arange(of.COUNT)
_SIZE_OF[[of.PAIR]] = of.OWN
_SIZE_OF[[of.PAIR_12, of.PAIR_11]] = of.OWN_YY
_SIZE_OF[[of.SLOPES]] = of.SLOPE
_SIZE_OF[[of.SLOPES_12, of.SLOPES_11]] = of.SLOPE_2
_SIZE_OF[[of.SLOPES_31, of.SLOPES_22]] = of.SLOPE_4
_COMPARED = np.array([j for j in range(of.COUNT) if not of.FIRST <= j <= of.MEAN_BOTH and j])


def place(
    f: Response, batch_size: int, c: float, circles: Circles | None = None
) -> tuple[DiscLaw, DiscLaw]:
    """Place nodes for a c: a coarser and a finer law, independent of each other.

    Args:
        f: The response.
        batch_size: B.
        c: Bε/κ, not negative.
        circles: Taken where they serve.
    """
    end = whole_range(f, batch_size, 0.8 * c)
    reach = float(np.tanh(end))
    if circles is None or not circles.serve(reach, 0.8 * c):
        circles = Circles.of(f, batch_size, reach, 0.8 * c)
    longest = min(_LONGEST, _LONGEST_SPREADS / float(np.sqrt(batch_size - 3 + c)))
    left, right, singular = _first_panels(circles, longest, end)
    kept: list[list[tuple[Array, Array, Array]]] = [[], []]
    sizes = np.zeros((3, of.COUNT))
    points, before, steady = 0, np.inf, 0
    for turn in range(_MOST_ROUNDS):
        short = right - left < _SHORT * longest
        parts = [
            _on_panels(circles, left, right, singular, short, fine=fine) for fine in (False, True)
        ]
        points += sum(part[0].size * circles.points(bool(i)) for i, part in enumerate(parts))
        sums = [_contributions(batch_size, c, *part) for part in parts]
        sizes = np.maximum(sizes, np.abs(sums[1]).sum(0))
        compared = np.maximum(sizes[:, _SIZE_OF][:, _COMPARED], np.finfo(float).tiny)
        missed = (np.abs(sums[1] - sums[0])[:, :, _COMPARED] / compared).max((1, 2))
        failing = missed > _GOAL
        total = float(missed[failing].sum())
        # What halves of halves leave as large as it was is the rounding of values.
        steady = steady + 1 if _STEADY * before < total < _NOISE else 0
        if steady == 2 or points >= _MOST_POINTS or turn + 1 == _MOST_ROUNDS:
            failing[:] = False
        before = total
        for which, (u, weight, averages) in enumerate(parts):
            good = ~failing[:, None] & (weight > 0)
            kept[which].append((u[good], weight[good], averages[:, good]))
        left, right, singular = left[failing], right[failing], singular[failing]
        if not left.size:
            break
        middle = (left + right) / 2
        none = np.zeros(len(left), dtype=bool)
        singular = np.concatenate(
            [np.stack([singular[:, 0], none], 1), np.stack([none, singular[:, 1]], 1)]
        )
        left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
    coarse, fine = (
        DiscLaw(
            batch_size,
            c,
            circles.missed,
            *(np.concatenate(part, -1) for part in zip(*law, strict=True)),
        )
        for law in kept
    )
    return coarse, fine


def _first_panels(
    circles: Circles, longest: float, end: float
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Left and right ends of panels, and which ends behave like half-integer powers."""
    f, B = circles.f, circles.batch_size
    at = np.empty(0)
    if f.kinks.size and not f.is_homogeneous:
        at = np.arctanh(compute.breaks(f, B))
        at = at[at < end]
    if f.has_powers and np.isin(f.beta, f.kinks[f.powers]):
        at = np.append(0.0, at)
    # Where a steep place comes within reach of one sample, or of both: narrow in u as well.
    scale = f.gamma * np.sqrt(B - 1)
    gaps = np.diff(circles.cuts, prepend=-np.inf, append=np.inf)
    narrow = np.minimum(gaps[:-1], gaps[1:]) < scale * np.tanh(longest) / 2
    edges = np.concatenate([[0.0], at, [end]])
    if narrow.any():
        one = np.abs(circles.cuts[narrow] - f.beta) / scale
        near = np.concatenate([one, one * np.sqrt(2 * (B - 1) / (B - 2))])
        near = np.arctanh(near[near < np.tanh(end)])
        near = near[(abs(near[:, None] - at) > 1e-9 * longest).all(1)]
        edges = np.concatenate([edges, near])
    edges = np.unique(edges)
    parts = []
    for a, b in pairwise(edges.tolist()):
        cuts = np.linspace(a, b, max(1, int(np.ceil((b - a) / longest))) + 1)
        parts.append(cuts[:-1])
    left = np.concatenate(parts)
    right = np.append(left[1:], end)
    return left, right, np.stack([np.isin(left, at), np.isin(right, at)], 1)


def _on_panels(
    circles: Circles,
    left: Array,
    right: Array,
    singular: NDArray[np.bool_],
    short: NDArray[np.bool_],
    *,
    fine: bool,
) -> tuple[Array, Array, Array]:
    """Nodes, weights, each ``[panels, m]``, and averages ``[19, panels, m]``, of one rule."""
    ends, powers = singular.any(1), circles.f.has_powers
    used = []
    for rough, those in ((0, short), (1, ~short)):
        roots = circles.rules[fine] if powers else _ROOTS[rough][fine]
        both = (_SMOOTH[rough][fine], those & ~ends), (roots, those & ends)
        used += [(rule, which) for rule, which in both if which.any()]
    edge, offset, weights = np.zeros((3, left.size, max(rule.left.size for rule, _ in used)))
    width = (right - left)[:, None]
    for rule, chosen in used:
        m = rule.left.size  # nodes beyond are without weight
        near = rule.left <= rule.right
        edge[chosen, :m] = np.where(near, left[chosen, None], right[chosen, None])
        offset[chosen, :m] = width[chosen] * np.where(near, rule.left, -rule.right)
        weights[chosen, :m] = (width * rule.weights)[chosen]
    u = edge + offset
    places = np.flatnonzero(weights > 0)
    averages = np.zeros((of.COUNT, u.size))
    rho, near_edge, away = (part.ravel()[places] for part in (np.tanh(u), edge, offset))
    step = max(1, of.POINTS // circles.points(fine))
    for start in range(0, places.size, step):
        some = slice(start, start + step)
        excess = None
        if circles.f.has_powers:
            excess = rho[some, None] - circles.met
            with np.errstate(divide="ignore"):
                touch = np.arctanh(np.minimum(circles.met, 1.0))
            exact = abs(near_edge[some, None] - touch) <= 1e-14 * touch
            from_edge = np.sinh(away[some])
            from_edge /= np.cosh(near_edge[some]) * np.cosh(near_edge[some] + away[some])
            excess = np.where(exact, from_edge[:, None], excess)
        averages[:, places[some]] = circles.averages(rho[some], excess, fine=fine)
    return u, weights, averages.reshape(of.COUNT, *u.shape)


def _contributions(batch_size: int, c: float, u: Array, measure: Array, averages: Array) -> Array:
    """What each panel adds to averages in three weightings, of shape ``[panels, 3, 19]``."""
    base, b, _ = Density(batch_size, u)(c)
    base, nu = base * measure, batch_size - 3
    kinds = np.stack([base * (nu + b), base, base * (nu * (nu + 2) + 2 * nu * b + b * b)])
    return np.asarray(kinds.swapaxes(0, 1) @ averages.transpose(1, 2, 0))  # [panels, 3, 19]
