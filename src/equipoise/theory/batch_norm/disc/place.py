r"""Place nodes over the radius of the disc, finer wherever two rules disagree.

Panels end where a kink of one sample, or of both at once, comes within reach; averages over
circles behave like a half-integer power of the distance to such a radius. Every panel is
integrated by two rules, over circles of different nodes; panels on which they disagree are
halved, until what is left is the rounding of values. The coarser rules together are a second,
independent computation of every number.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equipoise.numerics.quadrature import panels
from equipoise.theory.batch_norm.averages import compute
from equipoise.theory.batch_norm.averages.reach import whole_range
from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.disc import circles as of
from equipoise.theory.batch_norm.disc.circles import Circles
from equipoise.theory.batch_norm.disc.law import Density, DiscLaw
from equipoise.theory.batch_norm.setting import unresolved

Array = NDArray[np.float64]

# Nodes of coarser and finer rules, on panels shorter than a part of the longest and on others.
_SMOOTH = (14, 18), (18, 22)
_ROOTS = (16, 20), (22, 26)
# Where samples are rarer than e^-6, e^-14 and so on, this part of them suffices.
_RARE, _PARTS = np.array([6.0, 14.0, 24.0, 32.0]), (1.0, 0.72, 0.56, 0.4, 0.28)
# Even panels, by how many there are, and the part of their nodes that rarity leaves.
_EVEN = {1: 1.0, 2: 0.86, 3: 0.8, 4: 0.78, **dict.fromkeys((6, 9, 13, 20, 30), 0.75)}
_MOST_NODES, _MORE_NODES = 44, 4
# Longest panel: in u, and in standard deviations. Which part of it is short.
_LONGEST, _LONGEST_SPREADS, _SHORT = 1.2, 3.2, 0.55
# Cuts nearer to each other than the longest panel over this make panels of their own: both rules
# may miss what is far narrower, and wider places show in their differences.
_NARROW = 16.0
# Beside two singular radii that nearly coincide, panels grow by this factor.
_GROWTH = 8.0
_GOAL, _MOST_ROUNDS = 3e-12, 12
_NOISE, _STEADY = 1e-4, 0.6
# Points in all: beyond, panels stay as they are and the error says so, if it is small.
_MOST_POINTS = 12_000_000
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

    Raises:
        ConvergenceError: If f turns so often that so many nodes do not see it.
    """
    within = whole_range(f, batch_size, 0.8 * c)
    reach = math.tanh(within.end)
    if circles is None or not circles.serve(reach, 0.8 * c):
        circles = Circles.of(f, batch_size, reach, 0.8 * c)
    longest = min(_LONGEST, _LONGEST_SPREADS / math.sqrt(batch_size - 3 + c))
    left, right, singular, nodes = _start(circles, batch_size, c, longest, within.end)
    kept: list[list[tuple[Array, Array, Array]]] = [[], []]
    sizes = np.zeros((3, of.COUNT))
    points, before, steady = 0, np.inf, 0
    for turn in range(_MOST_ROUNDS):
        rarity = np.searchsorted(_RARE, within.rarity_from(left))
        long = right - left >= _SHORT * longest
        kinds = np.stack([rarity, long, singular.any(1)], 1).tolist()
        rules = _rules(circles, kinds, nodes if turn == 0 else [])
        parts = _on_panels(circles, left, right, rules)
        points += sum(part.u.size * circles.points(bool(i)) for i, part in enumerate(parts))
        coarse, fine = (part.contributions(batch_size, c) for part in parts)
        sizes = np.maximum(sizes, np.abs(fine).sum(-1))
        compared = np.maximum(sizes[:, _SIZE_OF], np.finfo(float).tiny)[..., None]
        missed = (np.abs(fine - coarse) / compared)[:, _COMPARED].max((0, 1))
        failing = missed > _GOAL
        total = float(missed[failing].sum())
        # What halves of halves leave as large as it was is the rounding of values, unless it
        # stays on a single panel: beside singular radii that nearly coincide.
        lasting = _STEADY * before < total < _NOISE and np.count_nonzero(failing) > 1
        steady = steady + 1 if lasting else 0
        if steady == 2 or points >= _MOST_POINTS or turn + 1 == _MOST_ROUNDS:
            failing[:] = False
            # Few points of short waves look like noise: differences of rules are too small.
            if points >= _MOST_POINTS and total > _NOISE and not f.has_powers:
                raise unresolved(f.activation.name, f.gamma, f.beta)
        before = total
        for law, part in zip(kept, parts, strict=True):
            law.append(part.without(failing))
        if not failing.any():
            break
        left, right, singular = _halves(left[failing], right[failing], singular[failing])
    rough, good = (
        DiscLaw(
            batch_size, c, circles.missed, *(np.concatenate(p, -1) for p in zip(*law, strict=True))
        )
        for law in kept
    )
    return rough, good


def _start(
    circles: Circles, batch_size: int, c: float, longest: float, end: float
) -> tuple[Array, Array, NDArray[np.bool_], list[int]]:
    """The first panels, which of their ends are singular, and nodes where these are chosen."""
    if circles.band:
        left, right, nodes = _even_panels(circles, batch_size, c, end)
        return left, right, np.zeros((left.size, 2), dtype=bool), nodes
    return *_first_panels(circles, longest, end), []


def _halves(
    left: Array, right: Array, singular: NDArray[np.bool_]
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Both halves of panels."""
    middle, none = (left + right) / 2, np.zeros(left.size, dtype=bool)
    ends = np.stack([singular[:, 0], none], 1), np.stack([none, singular[:, 1]], 1)
    return np.append(left, middle), np.append(middle, right), np.concatenate(ends)


def _even_panels(
    circles: Circles, batch_size: int, c: float, end: float
) -> tuple[Array, Array, list[int]]:
    """Panels for what has no edges, in the number that needs the fewest nodes, and nodes of each.

    What a panel needs was measured for activations of the catalogue at B from 4 to 10⁶: about 6
    nodes and 2.4 for each standard deviation, or what the density's poles at ±iπ/2 ask for, and
    some for the waves of f within it.
    """
    spread = math.sqrt(batch_size - 3 + c)
    waves = (0.2 if spread > 3 else 0.35) * circles.band / math.tanh(end)

    def needed(start: float, width: float) -> float:
        by_density = max(6 + 2.4 * spread * width, 4 + 16.1 / math.asinh(math.pi / width))
        return 4 + by_density + waves * (math.tanh(start + width) - math.tanh(start))

    costs = {
        count: part * count * largest
        for count, part in _EVEN.items()
        if (largest := needed(0.0, end / count)) <= _MOST_NODES or count == max(_EVEN)
    }
    count = min(costs, key=costs.__getitem__)
    edges = [end * i / count for i in range(count + 1)]
    nodes = [min(round(needed(low, end / count)), _MOST_NODES) for low in edges[:-1]]
    return np.array(edges[:-1]), np.array(edges[1:]), nodes


def _first_panels(
    circles: Circles, longest: float, end: float
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Left and right ends of panels, and which ends behave like half-integer powers."""
    f, B = circles.f, circles.batch_size
    at = np.empty(0)
    if f.kinks.size and not f.is_homogeneous:
        at = np.arctanh(compute.breaks(f, B))
        at = at[at < end]
    if f.beta in f.powers:
        at = np.append(0.0, at)
    # Where a steep place comes within reach of one sample, or of both: narrow in u as well.
    scale = f.gamma * math.sqrt(B - 1)
    gaps = np.concatenate([[np.inf], circles.cuts[1:] - circles.cuts[:-1], [np.inf]])
    narrow = np.minimum(gaps[:-1], gaps[1:]) < scale * math.tanh(longest) / _NARROW
    edges = np.concatenate([[0.0], at, [end]])
    if circles.cuts.size and narrow.any():
        one = np.abs(circles.cuts[narrow] - f.beta) / scale
        near = np.concatenate([one, one * math.sqrt(2 * (B - 1) / (B - 2))])
        near = np.arctanh(near[near < math.tanh(end)])
        near = near[(abs(near[:, None] - at) > 1e-9 * longest).all(1)]
        edges = np.concatenate([edges, near])
    edges = np.unique(np.concatenate([edges, _between_close(edges, at)]))
    width = edges[1:] - edges[:-1]
    parts = np.maximum(np.ceil(width / longest), 1).astype(np.intp)
    number = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    left = np.repeat(edges[:-1], parts) + number * np.repeat(width / parts, parts)
    right = np.append(left[1:], end)
    if not at.size:
        return left, right, np.zeros((left.size, 2), dtype=bool)
    singular = np.isin(np.append(left, end), at)
    return left, right, np.stack([singular[:-1], singular[1:]], 1)


def _between_close(edges: Array, singular: Array) -> Array:
    """Edges of panels that grow by a factor away from two singular radii close to each other."""
    close: list[float] = []
    for near, far in itertools.pairwise(np.sort(singular).tolist()):
        gap = far - near
        below, above = edges[edges < near], edges[edges > far]
        step = gap * _GROWTH
        while below.size and step * _GROWTH < near - below.max():
            close.append(near - step)
            step *= _GROWTH
        step = gap * _GROWTH
        while above.size and step * _GROWTH < above.min() - far:
            close.append(far + step)
            step *= _GROWTH
    return np.array(close)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """One rule on some panels.

    Args:
        u: Nodes, panel by panel, of shape ``[m]``.
        measure: Their weights.
        averages: Averages over their circles, of shape ``[19, m]``.
        counts: How many nodes each panel has.
    """

    u: Array
    measure: Array
    averages: Array
    counts: NDArray[np.intp]

    def contributions(self, batch_size: int, c: float) -> Array:
        """What each panel adds to averages in three weightings, of shape ``[3, 19, panels]``."""
        base, b, _ = Density(batch_size, self.u)(c)
        base, nu = base * self.measure, batch_size - 3
        kinds = np.array([base * (nu + b), base, base * (nu * (nu + 2) + 2 * nu * b + b * b)])
        starts = np.cumsum(self.counts) - self.counts
        return np.asarray(np.add.reduceat(kinds[:, None] * self.averages, starts, axis=-1))

    def without(self, panels: NDArray[np.bool_]) -> tuple[Array, Array, Array]:
        """Nodes, weights and averages of other panels than these."""
        if not panels.any():
            return self.u, self.measure, self.averages
        kept = np.repeat(~panels, self.counts)
        return self.u[kept], self.measure[kept], self.averages[:, kept]


def _rule(circles: Circles, kind: Sequence[int], fine: bool) -> panels.UnitRule:
    """The rule of a panel, from how rare its samples are, whether it is long, and its ends."""
    rarity, long, singular = kind
    if singular and circles.f.has_powers:
        return circles.rules[fine]
    counts, rule = (_ROOTS, panels.half_powers) if singular else (_SMOOTH, panels.analytic)
    return rule(round(counts[long][fine] * _PARTS[rarity]))


def _rules(
    circles: Circles, kinds: Sequence[Sequence[int]], nodes: Sequence[int]
) -> list[list[panels.UnitRule]]:
    """The coarser and the finer rule of every panel, by its kind, or of so many nodes."""
    if not nodes:
        return [[_rule(circles, kind, fine) for kind in kinds] for fine in (False, True)]
    return [
        [
            panels.analytic(round((count + more) * _PARTS[rarity]))
            for count, (rarity, *_) in zip(nodes, kinds, strict=True)
        ]
        for more in (0, _MORE_NODES)
    ]


def _on_panels(
    circles: Circles, left: Array, right: Array, both: Sequence[Sequence[panels.UnitRule]]
) -> list[_Part]:
    """Place the coarser and the finer rule of each panel; average over circles."""
    parts, rules = [], []
    for fine, chosen in zip((False, True), both, strict=True):
        counts = np.array([rule.weights.size for rule in chosen])
        ends, distances = (
            np.concatenate(part) for part in zip(*(r.nearer for r in chosen), strict=True)
        )
        panel, width = np.repeat(np.arange(left.size), counts), np.repeat(right - left, counts)
        edge = np.array([left, right])[ends, panel]
        offset = width * distances
        u, measure = edge + offset, width * np.concatenate([rule.weights for rule in chosen])
        excess = _excess(circles, edge, offset) if circles.f.has_powers else None
        rules.append(of.Radii(np.tanh(u), fine, excess))
        parts.append((u, measure, counts))
    return [
        _Part(u, measure, averages, counts)
        for (u, measure, counts), averages in zip(parts, circles.averages(*rules), strict=True)
    ]


def _excess(circles: Circles, edge: Array, offset: Array) -> Array:
    """How far circles exceed those that touch cuts: exact beside edges that are such radii."""
    with np.errstate(divide="ignore"):
        touch = np.arctanh(np.minimum(circles.met, 1.0))
    exact = abs(edge[:, None] - touch) <= 1e-14 * touch
    from_edge = np.sinh(offset) / (np.cosh(edge) * np.cosh(edge + offset))
    return np.where(exact, from_edge[:, None], np.tanh(edge + offset)[:, None] - circles.met)
