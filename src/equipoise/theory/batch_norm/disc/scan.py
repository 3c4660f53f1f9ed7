r"""Where the fixed point of κ at ε > 0 lies: F(κ) at every κ, from averages over circles.

Circles do not depend on κ or ε, so that a scan over all κ needs them once. It finds the largest
solution of F(κ) = κ to a few digits, or that there is none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from equipoise.theory.batch_norm.averages.reach import ALMOST_NO_C, LEFT_OUT, range_of
from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.disc.circles import Circles
from equipoise.theory.batch_norm.disc.law import DiscLaw
from equipoise.theory.batch_norm.disc.place import place
from equipoise.theory.batch_norm.fixed_point.critical_eps import critical_variance
from equipoise.theory.batch_norm.setting import ConvergenceError, Setting, overflow

Array = NDArray[np.float64]

# If the slope of F exceeds 1 by less than this, κ is below what float64 resolves.
_CRITICAL = 1e-9
# The scan: steps of log sinh u and of log κ, how far down, and from which distance between
# κ at ε = 0 and its bound on farther down by as much, since only rare samples differ.
_STEP, _STEP_DOWN, _DOWN, _RARE = 0.125, 0.4, 40.0, 15.0
# Where nothing is sure to grow, but log F(κ)/κ is known no better than this and might be above 0,
# steps shrink to a quarter. Steps too long for a rare sample trust themselves by a fifth of what
# they miss; gaps between two circles may exceed those of both by a factor of 20.
_VAGUE, _FAR_FROM_TRUE, _SHRINK, _SHORTEST = 0.01, 20.0, 4, 2e-4
_PEAK = math.log(20)
_BETWEEN, _BETWEEN_TWO = np.linspace(0, 1, 17), np.linspace(0, 1, 5)
# Most solutions are found among the first κ from above.
_AT_FIRST = 0, 12, 24
_LINEAR = 1e-5
# Steps of log κ in search of a solution barely below the critical ε.
_FROM_CRITICAL = 60
# Weights held at once.
CHUNK = 4_000
SMALLEST = 1e-150


class Group:
    """Settings of one response and batch size, as arrays of shape ``[settings]``."""

    def __init__(self, settings: Sequence[Setting], f: Response) -> None:
        self.settings, self.f = settings, f
        self.batch_size = settings[0].batch_size
        self.eps = np.array([one.eps for one in settings])
        self.variance = np.array([one.weight_variance for one in settings])
        self.shared = np.array([one.bias_variance for one in settings])

    def c(self, kappa: Array) -> Array:
        """Bε/κ."""
        return np.asarray(self.batch_size * self.eps / kappa)

    def middle(self, log_kappa: Array) -> float:
        """The c in the middle of all."""
        logs = np.log(self.c(np.exp(log_kappa)))
        return float(np.exp((logs.min() + logs.max()) / 2))

    def some(self, chosen: NDArray[np.intp]) -> Group:
        """Some of the settings."""
        return Group([self.settings[i] for i in chosen.tolist()], self.f)


def largest_roots(settings: Sequence[Setting], f: Response, scan: Scan) -> list[float | None]:
    """Approximate the logarithm of the largest solution of each, or None if κ → 0.

    Networks start from κ of order one, so the largest solution is the one they reach.
    """
    found: list[float | None] = [None] * len(settings)
    brackets: dict[int, tuple[float, float]] = {}
    candidates = scan.top[:, None] - scan.down
    for i, (at, ratios, trusted, highest) in enumerate(
        zip(candidates, *_from_above(scan, candidates), strict=True)
    ):
        growing = np.flatnonzero(ratios > trusted)
        falling = np.flatnonzero(ratios < -trusted)
        if growing.size and not (falling.size and falling[0] < growing[0]):
            found[i] = float(at[0])
        elif growing.size:
            brackets[i] = at[growing[0]], at[falling[falling < growing[0]][-1]]
        elif scan.step > _SHORTEST and _doubtful(ratios, trusted, highest):
            finer = Scan.of([settings[i]], f, scan.step / _SHRINK)
            found[i] = largest_roots([settings[i]], f, finer)[0] if finer else None
        else:
            high = float(at[falling[-1]] if falling.size else at[0])
            found[i] = _near_critical(settings[i], f, high)
    if brackets:
        rows = np.array(list(brackets))
        low, high = np.array(list(brackets.values())).T
        wide = (high - low).max() > 1.5 * _STEP_DOWN
        between = low[:, None] + (high - low)[:, None] * (_BETWEEN if wide else _BETWEEN_TWO)
        for i, at, ratios in zip(brackets, between, scan.ratios(between, rows)[0], strict=True):
            # log F(κ)/κ falls through 0 from low to high.
            last = int(np.flatnonzero(ratios > 0)[-1])
            part = _crossing(*ratios[last : last + 2].tolist())
            found[i] = float(at[last] + (at[1] - at[0]) * part)
    return found


def _doubtful(ratios: Array, trusted: Array, highest: Array) -> bool:
    """Whether F(κ)/κ might exceed 1 between circles where it is not sure to."""
    may = (trusted > _VAGUE) & (ratios > -_FAR_FROM_TRUE * trusted) & (highest > -_PEAK)
    return bool(may.any())


def highest_growth(setting: Setting, f: Response) -> float:
    """The largest log F(κ)/κ of all κ, below 0 where all samples become equal.

    Infinite where a scan with the longest steps does not tell.
    """
    scan = Scan.of([setting], f)
    if scan is None:
        return -math.inf
    ratios, trusted, highest = scan.ratios(scan.top[:, None] - scan.down)
    if _doubtful(ratios, trusted, highest):
        return math.inf
    slope = critical_variance(f, setting.batch_size) * setting.weight_variance / setting.eps
    return max(float((ratios + trusted).max()), math.log(slope) if slope > 0 else -math.inf)


def _from_above(scan: Scan, candidates: Array) -> Array:
    """What :meth:`Scan.ratios` gives, down to where every setting is decided.

    What is below is nan: the largest solution is above.
    """
    found = np.full((3, *candidates.shape), np.nan)
    for some in itertools.starmap(slice, itertools.pairwise((*_AT_FIRST, None))):
        found[:, :, some] = scan.ratios(candidates[:, some])
        if (found[0] > found[1]).any(1).all():
            break
    return found


def _near_critical(setting: Setting, f: Response, high: float) -> float | None:
    """Closer to the critical ε than the scan can tell, the slope of F at 0 decides."""
    slope = critical_variance(f, setting.batch_size) * setting.weight_variance / setting.eps
    if not slope > 1 + _CRITICAL:
        return None
    group = Group([setting], f)

    def ratio(log_kappa: float) -> float:
        logs = np.array([log_kappa])
        fine = place(f, setting.batch_size, group.middle(logs))[1]
        return float(log_ratio(group, fine, logs)[0][0])

    # The scan is less exact than these nodes: high may lie on either side.
    for _ in range(_FROM_CRITICAL):
        if ratio(high) < 0:
            break
        high += 1.0
    else:
        raise ConvergenceError(
            f"no solution of kappa was found at eps = {setting.eps}, barely below the critical "
            f"eps of {f.activation.name}. Try a slightly different eps."
        )
    for low in high - np.arange(1.0, _FROM_CRITICAL):
        if ratio(float(low)) > 0:
            return float(brentq(ratio, low, low + 1.0, xtol=1e-2))
    return None


def _crossing(before: float, after: float) -> float:
    """Part of the way at which a straight line passes 0."""
    return before / (before - after) if after < 0 < before else 0.0


def log_ratio(group: Group, law: DiscLaw, log_kappa: Array) -> tuple[Array, Array]:
    """Give log F(κ)/κ and the logarithmic slope of F."""
    value, slope = law.map(group.c(np.exp(log_kappa)))
    tiny = np.finfo(float).tiny
    return np.log(np.maximum(group.variance * value, tiny)) - log_kappa, slope


@dataclass(frozen=True, eq=False)
class Scan:
    """Gaps between samples over circles of all sizes, from which F is known at every κ.

    Args:
        group: The settings.
        top: A log κ that no solution exceeds, of shape ``[settings]``.
        down: Steps from there down to where solutions are looked for.
        at: log sinh u of the circles, ascending in equal steps.
        log_gap: Logarithm of the average of (f₁ − f₂)²/2 over each.
        circles: How they are averaged.
        step: Of ``at``.
    """

    group: Group
    top: Array
    down: Array
    at: Array
    log_gap: Array
    circles: Circles
    step: float

    @classmethod
    def of(cls, settings: Sequence[Setting], f: Response, step: float = _STEP) -> Scan | None:
        """Average over circles, from the largest to those where f is linear; None if f is flat."""
        group = Group(settings, f)
        B = group.batch_size
        # F averages (f₁ − f₂)²/2, which is at most twice the largest (f − f(β))².
        widest = range_of(f, B, ALMOST_NO_C)
        if not np.isfinite(widest.size):
            raise overflow(settings[0])
        if not widest.size > SMALLEST:
            return None
        bound = math.log(2 * widest.size**2)
        top = bound + np.log(group.variance)
        rarity = bound - widest.peak
        down = np.arange(0, _DOWN + (rarity if rarity > _RARE else 0), _STEP_DOWN)
        least, largest = (group.c(np.exp(top - down[at])) for at in (0, -1))
        c = float(least.min())
        end = range_of(f, B, c).end
        last = math.log(math.sinh(end))
        scale = f.gamma * np.sqrt(B - 1)
        start = np.log(_LINEAR * max(1.0, abs(f.beta)) / scale)
        near = [abs(k - f.beta) for k in f.kinks if k != f.beta]
        if near:  # linear only well within the nearest kink
            start = min(start, np.log(min(near) / (4 * scale)))
        # Down to where densities of the largest c lie.
        nearest = float(np.log(2 * LEFT_OUT / (B - 3 + least.max())) / 2)
        start = min(max(start, nearest - 36), nearest - 6)
        at = np.arange(last, start, -step)[::-1]
        circles = Circles.of(f, B, math.tanh(end), c)
        gaps = circles.gaps(np.tanh(np.arcsinh(np.exp(at))))
        log_gap = np.log(np.maximum(gaps, np.finfo(float).tiny))
        lowest = min(at[0], -np.log(B + float(largest.max())) / 2 - 13)
        below = np.arange(at[0] - step, lowest, -step)[::-1]
        # Linear there, but beside a fractional power.
        beside = f.beta in f.powers
        power = (log_gap[1] - log_gap[0]) / step if beside else 2.0
        log_gap = np.concatenate([log_gap[0] + power * (below - at[0]), log_gap])
        return cls(group, top, down, np.concatenate([below, at]), log_gap, circles, step)

    def ratios(
        self, log_kappa: Array, rows: NDArray[np.intp] | None = None
    ) -> tuple[Array, Array, Array]:
        """Give log F(κ)/κ, how far it can be trusted, and a bound, each ``[settings, κ]``.

        The bound is of cells in which gaps and densities are the larger ones of their two ends:
        it holds where few rare samples make F, too, which steps are too long for.

        Args:
            log_kappa: Where, for every setting.
            rows: For some of the settings only.
        """
        B = self.group.batch_size
        chosen = slice(None) if rows is None else rows
        eps, variance = self.group.eps[chosen, None], self.group.variance[chosen, None]
        tau2, fixed, gaps = self._fixed
        means = np.empty((*log_kappa.shape, 3))
        step = max(1, CHUNK // (log_kappa.shape[1] * tau2.size))
        for start in range(0, len(log_kappa), step):
            some = slice(start, start + step)
            c = (B * eps[some] / np.exp(log_kappa[some]))[..., None]
            log_weight = fixed - c / 2 * tau2
            weight = np.exp(log_weight - log_weight.max(-1, keepdims=True))
            weight *= B - 3 + c * (1 + tau2)
            sums = weight @ gaps
            means[some] = sums[..., :3] / sums[..., [3, 4, 3]]
        logs = np.log(np.maximum(means, np.finfo(float).tiny))
        scale = (np.log(variance) + self.log_gap.max()) - log_kappa
        trusted = np.abs(logs[..., 0] - logs[..., 1]) + 1e-9
        return logs[..., 0] + scale, trusted, logs[..., 2] + scale

    @cached_property
    def _fixed(self) -> tuple[Array, Array, Array]:
        """sinh² u; what of log weights does not depend on c; and what weights multiply.

        That is gaps, those at every second node, the largest of both cells beside each node, and
        1 in the place of the first two.
        """
        tau2, second = np.exp(2 * self.at), np.arange(self.at.size)[::-1] % 2 == 0
        gap = np.exp(self.log_gap - self.log_gap.max())
        cells = np.maximum(gap[1:], gap[:-1])
        beside = np.append(cells, gap[-1]) + np.append(0.0, cells)
        factors = np.stack([gap, gap * second, beside, np.ones_like(gap), second], 1)
        return tau2, 2 * self.at - (self.group.batch_size - 1) / 2 * np.log1p(tau2), factors
