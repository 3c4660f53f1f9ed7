"""Find where an arbitrary elementwise function is not smooth.

A panel passes when the values and slopes at fresh points agree with the polynomial through its
nodes. Panels that fail are cut into pieces that overlap, so that no kink hides at an end: a steep
but smooth function passes in the end, a kink fails at every scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.activation.catalogue import Activation, Kink

Array = NDArray[np.float64]
ValuesAndSlopes = Callable[[Array], tuple[Array, Array]]

# Odd numbers, so that no panel ends at a round number, where kinks are likely.
_FIRST_EDGE, _WIDTH, _PANELS = -20.1373, 0.2459, 164
_DEGREE, _TOLERANCE, _MOST_FAILURES = 16, 1e-11, 160
_DENSE = 151
_EVERYWHERE = 0.5
_SAMPLE = 8  # panels that show whether a function varies at every scale
_SHIFT = 0.0617  # of the second grid
# Into how many parts a jump of the slope is bracketed at a time.
_SECTIONS = 16
# Values are seen at points this far apart: no wider feature stays between them.
_SPACING = 1e-4
# A panel this narrow that still fails holds a kink. Where it only holds a very steep slope,
# calling that a kink is harmless: quadrature then splits its panels there.
_NARROW, _SHARP = 1e-3, 1e-8
_FINEST = 4e-14
# Into how many pieces panels are cut, the wide and the narrow. The wide end where what is smooth
# begins to pass, and are kept: they say how densely panels must lie there.
_HALVES, _EIGHTHS = 2, 8
# Points looked at in one go, so that arrays stay in the cache.
_CHUNK = 25_000
# Where normalised samples are.
_CENTRE = np.linspace(-3, 3, 61) + 0.0137
# Jumps below this part of what values vary by come from constants in float32, as in some of
# PyTorch's own functions. Distances at which they are looked for, largest first.
_SMALL_JUMP, _RADII = 1e-7, 0.5 ** np.arange(5)


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    """Points of a panel, as parts of its width, at which the polynomial through its nodes is read.

    Args:
        places: The nodes, then the points.
        weights: Of the nodes in the polynomial, at every point: ``[points, 17]``.
    """

    places: Array
    weights: Array

    @classmethod
    def of(cls, points: Array) -> _Grid:
        """Read it at points on [-1, 1]."""
        return cls((np.concatenate([_NODES, points]) + 1) / 2, _weights(points))


_NODES = np.cos(np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1))
_INVERSE = np.linalg.inv(np.polynomial.chebyshev.chebvander(_NODES, _DEGREE))


def _weights(points: Array) -> Array:
    """Weights of the nodes at points of any shape on [-1, 1], ``[..., 17]``."""
    angles = np.arccos(np.clip(points, -1, 1))[..., None]
    return np.asarray(np.cos(angles * np.arange(_DEGREE + 1)) @ _INVERSE)


# Irregular, and denser than the nodes: a second, independent grid.
_CHECKS = _Grid.of(np.sin(np.linspace(-1.5, 1.5, 41)) * 0.999 + 0.0007)
_FIRST = _Grid.of(np.linspace(-0.9997, 0.9991, _DENSE))
# Multiples of the golden ratio.
_SECOND = _Grid.of(2 * (0.6180339887498949 * np.arange(1.0, _DENSE + 1) % 1) - 1)


@lru_cache(maxsize=8)
def _even(count: int) -> _Grid:
    """Points at equal distances."""
    return _Grid.of((2 * np.arange(count) + 1) / count - 1)


@dataclass(frozen=True, slots=True)
class Found:
    """Where a function is not smooth.

    Args:
        kinks: Its kinks, ascending.
        turns: Points ever denser towards what is narrow but smooth, ascending.
        unsure: Places that only one of three independent grids saw: others like them may have
            been missed.
    """

    kinks: tuple[Kink, ...]
    turns: tuple[float, ...]
    unsure: tuple[float, ...] = ()


def find_kinks(function: ValuesAndSlopes, name: str) -> Found:
    """Locate the kinks of a function on [-20, 20], and where else it turns quickly.

    Two grids that share no point look at values and slopes on every panel, a third at values, at
    points a ten-thousandth apart. What only one of them sees is narrower than that, or flat.

    Args:
        function: Returns values and slopes at an array of points.
        name: What errors call it.

    Raises:
        ValueError: If the function jumps, if its slope has no second moment, or if it is
            nowhere smooth.

    Examples:
        >>> find_kinks(lambda x: (np.maximum(x, 0.5), (x > 0.5) * 1.0), "shifted relu")
        Found(kinks=(Kink(at=0.5, power=False),), turns=(), unsure=())
    """
    _refuse_lost_slopes(function, name)
    left: Array = _FIRST_EDGE + _WIDTH / 2 * np.arange(2 * _PANELS - 1, dtype=np.float64)
    width = np.full(left.size, _WIDTH)
    scale = _scale(function)
    values = function.values if isinstance(function, Activation) else lambda x: function(x)[0]
    first = _look(function, left, width, scale, _FIRST)
    second = _look(function, left + _SHIFT, width, scale, _SECOND)
    # Panels overlap by half: their points lie between each other's.
    third = _look_closely(values, left, width, scale, round(_WIDTH / _SPACING / 2) | 1)
    grids = (first, 0.0), (second, _SHIFT), (third, 0.0)
    starts = np.concatenate([left[seen.failing] + shift for seen, shift in grids])
    extra = np.concatenate([seen.worst[seen.failing] for seen, _ in grids])
    if starts.size > _MOST_FAILURES:
        few = np.linspace(0, starts.size - 1, _SAMPLE).astype(int)
        _refuse_roughness(function, values, name, starts[few], scale)
    failed, wide = _search(function, values, name, starts, extra, scale)
    places = _polished(function, _distinct(failed))
    _refuse_not_finite(values, np.array(places), name)
    kinks: tuple[Kink, ...] = ()
    if places:
        at = np.array(places)
        _refuse_jumps(function, values, at, name)
        _refuse_infinite_slopes(function, at, name)
        gaps = np.diff(at, prepend=-np.inf, append=np.inf) / 4
        powers = _are_powers(function, at, np.minimum(1e-3, np.minimum(gaps[:-1], gaps[1:])))
        kinks = tuple(map(Kink, places, powers.tolist()))
    # What passes in the end may be narrow and smooth: panels must narrow towards it.
    sharp = [k for k in places if min(w + abs(middle - k) for middle, w in failed) < _SHARP]
    turns: list[float] = []
    for middle, size in wide:
        apart = all(abs(middle - k) > size for k in sharp)
        if apart and all(abs(middle - t) > size / 4 for t in turns):
            turns.append(middle)
    unsure = _seen_once(
        [(left + _WIDTH / 2 + shift, seen.failing) for seen, shift in grids],
        [*places, *(at for at, _ in wide)],
    )
    return Found(kinks, tuple(sorted(turns)), unsure)


def _seen_once(
    grids: list[tuple[Array, NDArray[np.bool_]]], places: list[float]
) -> tuple[float, ...]:
    """Middles of panels that fail on one grid, while none near them fails on the others.

    The last grid misses nothing wider than its points are apart: what it alone sees of that width
    is sure.
    """
    found: list[float] = []
    for i, (at, mine) in enumerate(grids):
        near = np.zeros_like(mine)
        for k, (_, others) in enumerate(grids):
            if k != i:
                near |= others
                near[1:] |= others[:-1]
                near[:-1] |= others[1:]
        alone = at[mine & ~near].tolist()
        if i + 1 == len(grids):
            alone = [middle for middle in alone if _extent(places, middle) < _SPACING]
        found += alone
    return tuple(
        sorted({min(places, key=lambda at: abs(at - middle), default=middle) for middle in found})
    )


def _extent(places: list[float], middle: float) -> float:
    """How far places on a panel lie apart."""
    inside = [at for at in places if abs(at - middle) <= _WIDTH / 2]
    return max(inside) - min(inside) if inside else 0.0


def _search(
    function: ValuesAndSlopes,
    values: Callable[[Array], Array],
    name: str,
    left: Array,
    extra: Array,
    scale: Array,
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Cut failing panels into pieces; middles and widths of the narrow and the wide that fail.

    The points at which a panel failed stay among those at which its pieces are seen: else a
    narrow place falls between these.
    """
    failed: list[tuple[float, float]] = []
    wide: list[tuple[float, float]] = []
    panels = _Panels(left, np.full(left.size, _WIDTH), extra)
    while panels.left.size:
        left, width = panels.left, panels.width
        inside = left[:, None] + width[:, None] * np.array([0.25, 0.5, 0.75])
        _refuse_not_finite(values, inside.ravel(), name)
        narrow = width < _NARROW
        if np.count_nonzero(narrow) > _MOST_FAILURES:
            raise _too_many(name, left, width)
        middle = left + width / 2
        failed += zip(middle[narrow].tolist(), width[narrow].tolist(), strict=True)
        wide += zip(middle[~narrow].tolist(), width[~narrow].tolist(), strict=True)
        finest = _FINEST * np.maximum(1, np.abs(left))
        panels = panels.some(width > finest)
        parts = _HALVES
        if narrow.all() and (2 * width >= _EIGHTHS * finest).all():
            parts = _EIGHTHS
        found = _failing_parts(function, values, panels, scale, parts)
        if parts != _HALVES:
            # What fails as a whole, but nowhere near in parts, is as wide as something between.
            near = np.abs(panels.middle[:, None] - found.middle) <= panels.width[:, None]
            lost = np.flatnonzero(~near.any(1))
            if lost.size:
                halves = _failing_parts(function, values, panels.some(lost), scale, _HALVES)
                found = found.beside(halves)
        panels = found
    return failed, wide


@dataclass(frozen=True, slots=True, eq=False)
class _Panels:
    """Panels, and two points at which each or the panel above failed."""

    left: Array
    width: Array
    extra: Array

    @property
    def middle(self) -> Array:
        return np.asarray(self.left + self.width / 2)

    def some(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> _Panels:
        return _Panels(self.left[chosen], self.width[chosen], self.extra[chosen])

    def beside(self, others: _Panels) -> _Panels:
        return _Panels(
            np.concatenate([self.left, others.left]),
            np.concatenate([self.width, others.width]),
            np.concatenate([self.extra, others.extra]),
        )

    def cut(self, parts: int) -> _Panels:
        """Cut each into equal pieces, and as many that overlap two of them.

        A kink next to the end of one piece is well inside another. Of overlapping pieces two at
        most hold the same place.
        """
        width = np.tile(self.width / parts, 2 * parts - 1)
        starts = np.arange(2 * parts - 1) / (2 * parts)
        left = (self.left + starts[:, None] * self.width).ravel()
        extra = np.tile(self.extra, (2 * parts - 1, 1))
        inside = (extra >= left[:, None]) & (extra <= (left + width)[:, None])
        order = np.argsort(-inside.sum(1), kind="stable")
        where = np.round((left - _FIRST_EDGE) / (width / 8)) + 1j * width
        order = order[np.unique(where[order], return_index=True)[1]]
        extra = np.where(inside, extra, (left + width / 2)[:, None])
        return _Panels(left, width, extra).some(order)


def _failing_parts(
    function: ValuesAndSlopes,
    values: Callable[[Array], Array],
    panels: _Panels,
    scale: Array,
    parts: int,
) -> _Panels:
    """Pieces of panels that fail."""
    if not panels.left.size:
        return panels
    cut = panels.cut(parts)
    grid = _FIRST if cut.width.max() >= _WIDTH / 16 else _CHECKS
    seen = _look(function, cut.left, cut.width, scale, grid, cut.extra)
    failing, extra = seen.failing, seen.worst
    if (count := math.ceil(cut.width.max() / _SPACING)) > _DENSE:
        closer = _look_closely(values, cut.left, cut.width, scale, count)
        extra[~failing] = closer.worst[~failing]
        failing |= closer.failing
    return _Panels(cut.left, cut.width, extra).some(failing)


def _refuse_roughness(
    function: ValuesAndSlopes,
    values: Callable[[Array], Array],
    name: str,
    left: Array,
    scale: Array,
) -> None:
    """Refuse what varies at every scale on a few panels, without a search of all of them."""
    length, size = left.size * _WIDTH, _WIDTH
    while left.size and size >= _NARROW:
        size /= 2
        left = np.concatenate([left, left + size])
        _refuse_not_finite(values, left + size / 2, name)
        left = left[_look(function, left, np.full(left.size, size), scale).failing]
    if size * left.size > _EVERYWHERE * length:
        raise _rough(name, left[-1])


def _rough(name: str, at: float) -> ValueError:
    return ValueError(
        f"activation {name} is not piecewise smooth: near {at:.3g} it varies at every scale. "
        "Theory needs a function that is smooth between a few kinks."
    )


def _too_many(name: str, left: Array, width: Array) -> ValueError:
    if width.sum() > _EVERYWHERE * _PANELS * _WIDTH:
        return _rough(name, left[-1])
    return ValueError(
        f"activation {name} has too many kinks or steep places to search for, between "
        f"{left.min():.3g} and {left.max():.3g}. Declare its kinks, as in "
        f"Activation({name!r}, function, kinks=(Kink(0.5), ...)), or use one that turns less "
        "often."
    )


def _distinct(panels: list[tuple[float, float]]) -> list[float]:
    """Keep the narrowest panel around each place, and round it as far as its width allows."""
    places: list[float] = []
    for at, width in sorted(panels, key=lambda panel: panel[1]):
        # A wide panel around a known place failed because of that place.
        if all(abs(at - other) > 4 * width for other in places):
            rounded = (round(at, digits) + 0.0 for digits in range(14))
            places.append(next((r for r in rounded if abs(r - at) <= 2 * width), at))
    return sorted(places)


def _polished(function: ValuesAndSlopes, places: list[float]) -> list[float]:
    """Close in, to the last bit, on where the slope jumps or changes sign.

    E[φ′²] moves with the kink.
    """
    if not places:
        return places
    at = np.array(places)
    unit = np.spacing(np.maximum(np.abs(at), 2.0**-52))
    gap = np.diff(at, prepend=-np.inf, append=np.inf)
    reach = np.minimum(1e-9 * np.maximum(1, np.abs(at)), np.minimum(gap[:-1], gap[1:]) / 4)
    far, left, right, beyond = function(at + reach * np.array([[-2], [-1], [1], [2]]))[1]
    jump, drift = np.abs(right - left), np.abs(left - far) + np.abs(beyond - right)
    with np.errstate(invalid="ignore"):
        jumps = (jump > 1e3 * drift) & (jump > 1e-10 * np.abs(left))
    # A fractional power has no slope to compare with, but another sign, or none, beyond its kink.
    signs = ~jumps & (np.sign(left) != np.sign(right)) & np.isfinite(jump)
    jumps |= signs
    low, high = at - reach, at + reach
    inner = np.arange(1, _SECTIONS)[:, None] / _SECTIONS
    for _ in range(100):
        ends = np.concatenate([low[None], low + (high - low) * inner, high[None]])
        slope = function(ends[1:-1])[1]
        nearer = np.abs(slope - left) < np.abs(slope - right)
        on_left = np.where(signs, np.sign(slope) == np.sign(left), nearer)
        passed = np.where(on_left.all(0), _SECTIONS - 1, np.argmin(on_left, 0))
        low, high = (np.take_along_axis(ends, passed[None] + i, 0)[0] for i in (0, 1))
        if (high - low <= unit)[jumps].all():
            break
    # Of both ends it is the right one if the slope there is neither that on the left nor that on
    # the right: 0 for |x|, NaN for its root, which quadrature would meet beside the wrong one.
    slope = function(high)[1]
    with np.errstate(invalid="ignore"):
        between = np.abs(slope - right) > 0.1 * jump
    exact = jumps & np.where(signs, np.sign(slope) != np.sign(right), between)
    # A power's slopes tell the kink from its neighbours.
    least = np.where(signs, low, low - unit)
    found = np.where(jumps, np.where(exact, high, low), at)
    return [
        next((r for r in (round(k, d) + 0.0 for d in range(15)) if a <= r <= k + u), k)
        if rounded
        else k
        for k, a, u, rounded in zip(
            *(part.tolist() for part in (found, least, unit, jumps & ~exact)), strict=True
        )
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """What was seen on panels.

    Args:
        failing: Where a polynomial does not follow, of shape ``[panels]``.
        worst: The point that it follows worst and the node next to it, ``[panels, 2]``; 0 where
            it follows.
    """

    failing: NDArray[np.bool_]
    worst: Array


def _look(
    function: ValuesAndSlopes,
    left: Array,
    width: Array,
    scale: Array,
    grid: _Grid = _CHECKS,
    extra: Array | None = None,
) -> _Seen:
    """Whether values and slopes at points follow the interpolating polynomial, per panel."""
    return _judged(function, left, width, scale, grid, extra)


def _look_closely(
    values: Callable[[Array], Array], left: Array, width: Array, scale: Array, count: int
) -> _Seen:
    """Whether values at many points follow it."""
    return _judged(lambda x: (values(x),), left, width, scale[:1], _even(count))


def _judged(
    function: Callable[[Array], tuple[Array, ...]],
    left: Array,
    width: Array,
    scale: Array,
    grid: _Grid,
    extra: Array | None = None,
) -> _Seen:
    """Compare what a function returns at points with polynomials through its nodes."""
    found = _Seen(np.zeros(left.size, dtype=bool), np.zeros((left.size, 2)))
    step = max(1, _CHUNK // grid.places.size)
    for start in range(0, left.size, step):
        some = slice(start, start + step)
        own = None if extra is None else extra[some]
        _judge(function, left[some], width[some], scale, grid, own, found, start)
    return found


@np.errstate(invalid="ignore")
def _judge(
    function: Callable[[Array], tuple[Array, ...]],
    left: Array,
    width: Array,
    scale: Array,
    grid: _Grid,
    extra: Array | None,
    found: _Seen,
    start: int,
) -> None:
    """Judge some panels, and note what was found from a row on."""
    x = left[:, None] + width[:, None] * grid.places
    own = None
    if extra is not None:
        x = np.concatenate([x, extra], 1)
        own = _weights(2 * (extra - left[:, None]) / width[:, None] - 1)
    count = _NODES.size
    misses = []
    passing = np.ones(left.size, dtype=bool)
    for every, typical in zip(function(x), scale, strict=True):
        nodes, checks = every[:, :count], every[:, count:]
        miss = np.empty_like(checks)
        points = len(grid.weights)
        np.matmul(nodes, grid.weights.T, out=miss[:, :points])
        if own is not None:
            miss[:, points:] = (own @ nodes[..., None])[..., 0]
        miss -= checks
        np.abs(miss, out=miss)
        largest, least = checks.max(1), checks.min(1)
        # On narrow panels the rounding of x itself moves the values by this much.
        rounding = 1e-14 * np.maximum(1, np.abs(left)) / width * (largest - least)
        allowed = _TOLERANCE * np.maximum(typical, np.maximum(largest, -least)) + rounding
        most = miss.max(1)
        passing &= (most <= allowed) & (most < np.inf)
        misses.append((miss, allowed))
    failing = np.flatnonzero(~passing)
    if failing.size:
        relative = np.stack([miss[failing] / most[failing, None] for miss, most in misses])
        at = np.where(np.isnan(relative), np.inf, relative).max(0).argmax(1)
        rows = x[failing]
        worst = rows[np.arange(failing.size), count + at]
        node = np.abs(rows[:, :count] - worst[:, None]).argmin(1)
        found.failing[start + failing] = True
        found.worst[start + failing, 0] = worst
        found.worst[start + failing, 1] = rows[np.arange(failing.size), node]


def _scale(function: ValuesAndSlopes) -> Array:
    """Sizes of values and slopes where normalised samples are; far out, panels have their own."""
    values, slopes = function(_CENTRE)
    sizes = np.array([np.abs(values).max(), np.abs(slopes).max()])
    return np.asarray(np.maximum(sizes, np.finfo(float).tiny))


def _refuse_lost_slopes(function: ValuesAndSlopes, name: str) -> None:
    """Refuse a function whose slopes automatic differentiation does not see."""
    values, slopes = function(_CENTRE + np.array([[0.0], [1e-6]]))
    if not slopes.any() and np.count_nonzero(values[0] != values[1]) > _CENTRE.size / 2:
        raise ValueError(
            f"activation {name} varies, but its gradient is 0 everywhere: automatic "
            "differentiation cannot see through .detach(), torch.no_grad() or NumPy. Write it "
            "with torch functions, or give Activation(..., derivative=...)."
        )


def _refuse_not_finite(values: Callable[[Array], Array], x: Array, name: str) -> None:
    """Refuse a function that has no values somewhere inside, as NaN next to a number."""
    missing = np.isnan(values(x))
    if missing.any():
        raise ValueError(
            f"activation {name} is not finite at x = {x[missing][0]:.4g}. Normalised "
            "samples reach such values; restrict or repair the function."
        )


def _refuse_jumps(
    function: ValuesAndSlopes, values: Callable[[Array], Array], places: Array, name: str
) -> None:
    """Refuse what slopes on both sides do not explain, at any distance."""
    r = 2e-11 * np.maximum(1, np.abs(places))[:, None] * _RADII  # [places, distances]
    beside, slopes = function(places[:, None] + r * np.array([-1.0, 1.0])[:, None, None])
    steepest = np.maximum.accumulate(np.abs(slopes).max(0)[:, ::-1], axis=1)[:, ::-1]
    jumps = (np.abs(beside[1] - beside[0]) - 2 * r * steepest).min(1)
    rounding = 64 * np.finfo(float).eps * np.abs(beside).max((0, 2))
    found = np.flatnonzero(jumps > _SMALL_JUMP * np.ptp(values(_CENTRE)) + rounding)
    if found.size:
        raise ValueError(
            f"activation {name} jumps by {jumps[found[0]]:.3g} at x = {places[found[0]]:g}: "
            "gradients through a discontinuous function have no finite growth rate. Use a "
            "continuous one."
        )


def _refuse_infinite_slopes(function: ValuesAndSlopes, places: Array, name: str) -> None:
    distances = np.array([-1.0, 1.0])[:, None, None] * np.array([1e-8, 1e-6, 1e-4])
    slopes = np.abs(function(places[:, None] + distances)[1])  # [2, places, distances]
    # A power at all distances: a narrow bump only looks like one from afar.
    with np.errstate(divide="ignore", invalid="ignore"):
        growth = (slopes[..., :-1] / slopes[..., 1:]).min(-1)
    found = ((slopes.min(-1) > 0) & (growth >= 100**0.499)).any(0)
    if found.any():
        raise ValueError(
            f"the slope of activation {name} grows like the distance to {places[found][0]:g} to "
            "a power of -1/2 or below: E[φ′²] is infinite and gradients have no finite growth "
            "rate."
        )


def _are_powers(function: ValuesAndSlopes, places: Array, widths: Array) -> NDArray[np.bool_]:
    """Whether a polynomial fails on either side, as it does for a fractional power."""
    sides = np.concatenate([places - widths, places]), np.tile(widths, 2)
    return np.asarray(
        _look(function, *sides, 1e3 * _scale(function)).failing.reshape(2, -1).any(0)
    )
