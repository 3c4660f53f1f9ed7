"""Find where an arbitrary elementwise function is not smooth.

Panels on which no polynomial follows it, see :mod:`.panels`, are cut into pieces that overlap, so
that no kink hides at an end: a steep but smooth function passes in the end, a kink fails at every
scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.activation.catalogue import Activation, Kink
from equipoise.theory.activation.panels import (
    FIRST,
    FIRST_EDGE,
    SECOND,
    SPACING,
    WIDTH,
    Array,
    Panels,
    ValuesAndSlopes,
    failing_parts,
    look,
    look_closely,
)

_PANELS = 164
_MOST_FAILURES = 160
_EVERYWHERE = 0.5
_SAMPLE = 8  # panels that show whether a function varies at every scale
_SHIFT = 0.0617  # of the second grid
# Into how many parts a jump of the slope is bracketed at a time.
_SECTIONS = 16
# A panel this narrow that still fails holds a kink. Where it only holds a very steep slope,
# calling that a kink is harmless: quadrature then splits its panels there.
_NARROW, _SHARP = 1e-3, 1e-8
_FINEST = 4e-14
# Into how many pieces panels are cut, the wide and the narrow. The wide end where what is smooth
# begins to pass, and are kept: they say how densely panels must lie there.
_HALVES, _EIGHTHS = 2, 8
# Where normalised samples are.
_CENTRE = np.linspace(-3, 3, 61) + 0.0137
# Jumps below this part of what values vary by come from constants in float32, as in some of
# PyTorch's own functions. Distances at which they are looked for, largest first.
_SMALL_JUMP, _RADII = 1e-7, 0.5 ** np.arange(5)


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
    left: Array = FIRST_EDGE + WIDTH / 2 * np.arange(2 * _PANELS - 1, dtype=np.float64)
    width = np.full(left.size, WIDTH)
    scale = _scale(function)
    values = function.values if isinstance(function, Activation) else lambda x: function(x)[0]
    first = look(function, left, width, scale, FIRST)
    second = look(function, left + _SHIFT, width, scale, SECOND)
    # Panels overlap by half: their points lie between each other's.
    third = look_closely(values, left, width, scale, round(WIDTH / SPACING / 2) | 1)
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
        [(left + WIDTH / 2 + shift, seen.failing) for seen, shift in grids],
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
            alone = [middle for middle in alone if _extent(places, middle) < SPACING]
        found += alone
    return tuple(
        sorted({min(places, key=lambda at: abs(at - middle), default=middle) for middle in found})
    )


def _extent(places: list[float], middle: float) -> float:
    """How far places on a panel lie apart."""
    inside = [at for at in places if abs(at - middle) <= WIDTH / 2]
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
    panels = Panels(left, np.full(left.size, WIDTH), extra)
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
        found = failing_parts(function, values, panels, scale, parts)
        if parts != _HALVES:
            # What fails as a whole, but nowhere near in parts, is as wide as something between.
            near = np.abs(panels.middle[:, None] - found.middle) <= panels.width[:, None]
            lost = np.flatnonzero(~near.any(1))
            if lost.size:
                halves = failing_parts(function, values, panels.some(lost), scale, _HALVES)
                found = found.beside(halves)
        panels = found
    return failed, wide


def _refuse_roughness(
    function: ValuesAndSlopes,
    values: Callable[[Array], Array],
    name: str,
    left: Array,
    scale: Array,
) -> None:
    """Refuse what varies at every scale on a few panels, without a search of all of them."""
    length, size = left.size * WIDTH, WIDTH
    while left.size and size >= _NARROW:
        size /= 2
        left = np.concatenate([left, left + size])
        _refuse_not_finite(values, left + size / 2, name)
        left = left[look(function, left, np.full(left.size, size), scale).failing]
    if size * left.size > _EVERYWHERE * length:
        raise _rough(name, left[-1])


def _rough(name: str, at: float) -> ValueError:
    return ValueError(
        f"activation {name} is not piecewise smooth: near {at:.3g} it varies at every scale. "
        "Theory needs a function that is smooth between a few kinks."
    )


def _too_many(name: str, left: Array, width: Array) -> ValueError:
    if width.sum() > _EVERYWHERE * _PANELS * WIDTH:
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
    return np.asarray(look(function, *sides, 1e3 * _scale(function)).failing.reshape(2, -1).any(0))
