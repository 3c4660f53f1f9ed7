"""Find where an arbitrary elementwise function is not smooth.

A panel passes when the values and slopes at fresh points agree with the polynomial through its
nodes. Panels that fail are cut into halves that overlap, so that no kink hides at an end: a steep
but smooth function passes in the end, a kink fails at every scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
_SHIFT = 0.0617  # of the second grid
# Values are seen at points this far apart: no wider feature stays between them.
_SPACING = 1e-4
# A panel this narrow that still fails holds a kink. Where it only holds a very steep slope,
# calling that a kink is harmless: quadrature then splits its panels there.
_NARROW, _SHARP = 1e-3, 1e-8
_FINEST = 4e-14
# Where normalised samples are.
_CENTRE = np.linspace(-3, 3, 61) + 0.0137
# Jumps below this part of what values vary by come from constants in float32, as in some of
# PyTorch's own functions. Distances at which they are looked for, largest first.
_SMALL_JUMP, _RADII = 1e-7, 0.5 ** np.arange(5)


class _Interpolation:
    """The polynomial through Chebyshev nodes on [-1, 1], read at points between them."""

    nodes = np.cos(np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1))
    # Irregular, and denser than the nodes: a second, independent grid.
    checks = np.sin(np.linspace(-1.5, 1.5, 41)) * 0.999 + 0.0007
    inverse = np.linalg.inv(np.polynomial.chebyshev.chebvander(nodes, _DEGREE))
    matrix = np.polynomial.chebyshev.chebvander(checks, _DEGREE) @ inverse
    dense = np.linspace(-0.9997, 0.9991, _DENSE)
    dense_matrix = np.polynomial.chebyshev.chebvander(dense, _DEGREE) @ inverse
    # The second grid: multiples of the golden ratio.
    other = 2 * (np.arange(1, _DENSE + 1) * 0.6180339887498949 % 1) - 1
    other_matrix = np.polynomial.chebyshev.chebvander(other, _DEGREE) @ inverse

    @classmethod
    def at(cls, points: Array) -> Array:
        """Weights of the nodes at points of any shape, ``[..., 17]``."""
        return np.asarray(np.polynomial.chebyshev.chebvander(points, _DEGREE) @ cls.inverse)


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
    first, second = (
        _look(function, left + shift, width, scale, *seen)
        for shift, seen in (
            (0.0, (_Interpolation.dense, _Interpolation.dense_matrix)),
            (_SHIFT, (_Interpolation.other, _Interpolation.other_matrix)),
        )
    )
    # Panels overlap by half: their points lie between each other's.
    third = _look_closely(function, values, left, width, scale, round(_WIDTH / _SPACING / 2) | 1)
    grids = (first, 0.0), (second, _SHIFT), (third, 0.0)
    starts = np.concatenate([left[seen.failing] + shift for seen, shift in grids])
    extra = np.concatenate([seen.worst[seen.failing] for seen, _ in grids])
    failed, wide = _search(function, values, name, starts, extra, scale)
    places = _polished(function, _distinct(failed))
    _refuse_not_finite(function, np.array(places), name)
    for at in places:
        _refuse_jump(function, at, name)
        _refuse_infinite_slope(function, at, name)
    gaps = [np.inf, *np.diff(places), np.inf]
    kinks = tuple(
        Kink(at, _is_power(function, at, min(1e-3, gaps[i] / 4, gaps[i + 1] / 4)))
        for i, at in enumerate(places)
    )
    # What passes in the end may be narrow and smooth: panels must narrow towards it.
    sharp = [k for k in places if min(w + abs(at - k) for at, w in failed) < _SHARP]
    turns: list[float] = []
    for at, size in wide:
        if all(abs(at - k) > size for k in sharp) and all(abs(at - t) > size / 4 for t in turns):
            turns.append(at)
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
    """Cut failing panels into halves; middles and widths of the narrow and the wide that fail.

    The points at which a panel failed stay among those at which its halves are seen: else a
    narrow place falls between these.
    """
    failed: list[tuple[float, float]] = []
    wide: list[tuple[float, float]] = []
    width = np.full(left.size, _WIDTH)
    fresh = True
    while left.size:
        if not fresh:
            dense = width.max() >= _WIDTH / 16
            seen = _look(
                function,
                left,
                width,
                scale,
                *(
                    (_Interpolation.dense, _Interpolation.dense_matrix)
                    if dense
                    else (_Interpolation.checks, _Interpolation.matrix)
                ),
                extra,
            )
            failing, extra = seen.failing, seen.worst
            if (count := math.ceil(width.max() / _SPACING)) > _DENSE:
                closer = _look_closely(function, values, left, width, scale, count)
                extra[~failing] = closer.worst[~failing]
                failing |= closer.failing
            left, width, extra = left[failing], width[failing], extra[failing]
        fresh = False
        inside = left[:, None] + width[:, None] * np.array([0.25, 0.5, 0.75])
        _refuse_not_finite(function, inside.ravel(), name)
        if np.count_nonzero(width < _NARROW) > _MOST_FAILURES:
            raise _too_many(name, left, width)
        narrow = width < _NARROW
        middle = left + width / 2
        failed += zip(middle[narrow].tolist(), width[narrow].tolist(), strict=True)
        wide += zip(middle[~narrow].tolist(), width[~narrow].tolist(), strict=True)
        done = width <= _FINEST * np.maximum(1, np.abs(left))
        left, width, extra = left[~done], width[~done], extra[~done]
        # The middle half too: a kink next to the end of one half is well inside it. Of the
        # overlapping thirds that follow, two at most hold the same place.
        left = np.concatenate([left, left + width / 4, left + width / 2])
        width, extra = np.tile(width / 2, 3), np.tile(extra, (3, 1))
        inside = (extra >= left[:, None]) & (extra <= (left + width)[:, None])
        order = np.argsort(-inside.sum(1), kind="stable")
        left, width, extra, inside = (part[order] for part in (left, width, extra, inside))
        extra = np.where(inside, extra, (left + width / 2)[:, None])
        _, first = np.unique(np.round((left - _FIRST_EDGE) / (width / 8)), return_index=True)
        left, width, extra = left[first], width[first], extra[first]
    return failed, wide


def _too_many(name: str, left: Array, width: Array) -> ValueError:
    if width.sum() > _EVERYWHERE * _PANELS * _WIDTH:
        return ValueError(
            f"activation {name} is not piecewise smooth: near {left[-1]:.3g} it varies at "
            "every scale. Theory needs a function that is smooth between a few kinks."
        )
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
    """Bisect to the last bit where the slope jumps or changes sign: E[φ′²] moves with the kink."""
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
    for _ in range(100):
        middle = (low + high) / 2
        slope = function(middle)[1]
        nearer = np.abs(slope - left) < np.abs(slope - right)
        on_left = np.where(signs, np.sign(slope) == np.sign(left), nearer)
        low, high = np.where(on_left, middle, low), np.where(on_left, high, middle)
        if (high - low <= unit)[jumps].all():
            break
    found = np.where(jumps, low, at)
    return [
        next((r for r in (round(k, d) + 0.0 for d in range(15)) if abs(r - k) <= u), k)
        if polished
        else k
        for k, u, polished in zip(found.tolist(), unit.tolist(), jumps.tolist(), strict=True)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """What was seen on panels.

    Args:
        failing: Where a polynomial does not follow, of shape ``[panels]``.
        worst: The point that it follows worst and the node next to it, ``[panels, 2]``.
    """

    failing: NDArray[np.bool_]
    worst: Array


def _look(
    function: ValuesAndSlopes,
    left: Array,
    width: Array,
    scale: Array,
    points: Array = _Interpolation.checks,
    matrix: Array = _Interpolation.matrix,
    extra: Array | None = None,
) -> _Seen:
    """Whether values and slopes at points follow the interpolating polynomial, per panel."""

    def at(x: Array) -> Array:
        return np.stack(function(x))  # [2, panels, points]

    x_nodes, x = _placed(left, width, _Interpolation.nodes), _placed(left, width, points)
    nodes, checks = at(x_nodes), at(x)
    fitted = nodes @ matrix.T
    if extra is not None:
        own = _Interpolation.at(2 * (extra - left[:, None]) / width[:, None] - 1)
        x, checks = np.concatenate([x, extra], 1), np.concatenate([checks, at(extra)], 2)
        fitted = np.concatenate([fitted, np.einsum("rpn,pen->rpe", nodes, own)], 2)
    return _judged(left, width, scale, x_nodes, x, fitted, checks)


def _look_closely(
    function: ValuesAndSlopes,
    values: Callable[[Array], Array],
    left: Array,
    width: Array,
    scale: Array,
    count: int,
) -> _Seen:
    """Whether values at many points follow it."""
    points = (2 * np.arange(count) + 1) / count - 1
    x_nodes, x = _placed(left, width, _Interpolation.nodes), _placed(left, width, points)
    fitted = values(x_nodes) @ _Interpolation.at(points).T
    return _judged(left, width, scale[:1], x_nodes, x, fitted[None], values(x)[None])


def _placed(left: Array, width: Array, points: Array) -> Array:
    return np.asarray(left[:, None] + width[:, None] * (points + 1) / 2)


def _judged(
    left: Array, width: Array, scale: Array, x_nodes: Array, x: Array, fitted: Array, found: Array
) -> _Seen:
    """Compare values found at points with polynomials, each ``[rows, panels, points]``."""
    deviation = np.abs(fitted - found)
    largest, least = found.max(-1), found.min(-1)
    # On narrow panels the rounding of x itself moves the values by this much.
    rounding = 1e-14 * np.maximum(1, np.abs(left)) / width * (largest - least)
    size = np.maximum(scale[:, None], np.maximum(largest, -least))
    with np.errstate(invalid="ignore"):
        relative = deviation / (_TOLERANCE * size + rounding)[..., None]
        failing = ~(relative <= 1).all((0, 2))
        at = np.where(np.isnan(relative), np.inf, relative).max(0).argmax(1)
    rows = np.arange(left.size)
    worst = x[rows, at]
    node = x_nodes[rows, np.abs(x_nodes - worst[:, None]).argmin(1)]
    return _Seen(failing, np.stack([worst, node], 1))


def _smooth(function: ValuesAndSlopes, left: Array, width: Array, scale: Array) -> Any:
    """Whether polynomials follow values and slopes, per panel."""
    return ~_look(function, left, width, scale).failing


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


def _refuse_not_finite(function: ValuesAndSlopes, x: Array, name: str) -> None:
    """Refuse a function that has no values somewhere inside, as NaN next to a number."""
    values = function(x)[0]
    if np.isnan(values).any():
        raise ValueError(
            f"activation {name} is not finite at x = {x[np.isnan(values)][0]:.4g}. Normalised "
            "samples reach such values; restrict or repair the function."
        )


def _refuse_jump(function: ValuesAndSlopes, at: float, name: str) -> None:
    """Refuse what slopes on both sides do not explain, at any distance."""
    r = 2e-11 * max(1.0, abs(at)) * _RADII
    values, slopes = function(at + r * np.array([[-1.0], [1.0]]))
    explained = 2 * r * np.maximum.accumulate(np.abs(slopes).max(0)[::-1])[::-1]
    jump = float((np.abs(values[1] - values[0]) - explained).min())
    variation = float(np.ptp(function(_CENTRE)[0]))
    rounding = 64 * float(np.finfo(float).eps) * float(np.abs(values).max())
    if jump > _SMALL_JUMP * variation + rounding:
        raise ValueError(
            f"activation {name} jumps by {jump:.3g} at x = {at:g}: gradients through a "
            "discontinuous function have no finite growth rate. Use a continuous one."
        )


def _refuse_infinite_slope(function: ValuesAndSlopes, at: float, name: str) -> None:
    for side in (-1.0, 1.0):
        slopes = np.abs(function(at + side * np.array([1e-8, 1e-6, 1e-4]))[1])
        # A power at all distances: a narrow bump only looks like one from afar.
        if slopes.min() > 0 and (slopes[:-1] / slopes[1:]).min() >= 100**0.499:
            raise ValueError(
                f"the slope of activation {name} grows like the distance to {at:g} to a power "
                "of -1/2 or below: E[φ′²] is infinite and gradients have no finite growth rate."
            )


def _is_power(function: ValuesAndSlopes, at: float, width: float) -> bool:
    """Whether a polynomial fails on either side, as it does for a fractional power."""
    scale = 1e3 * _scale(function)
    return not _smooth(function, np.array([at - width, at]), np.full(2, width), scale).all()
