r"""The fixed point of κ at ε > 0, and every number there.

Solves :math:`F(\kappa) = \sigma_w^2E[(f_1 - f_2)^2]/2 = \kappa`. Averages over circles do
not depend on κ: a scan over all κ needs them once, and so does Newton's method near the solution.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from equipoise.theory.batch_norm.averages.reach import range_of
from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.disc.circles import Circles
from equipoise.theory.batch_norm.disc.law import DiscLaw
from equipoise.theory.batch_norm.disc.place import place
from equipoise.theory.batch_norm.fixed_point.critical_eps import critical_variance
from equipoise.theory.batch_norm.fixed_point.solution import Numbers, Solution
from equipoise.theory.batch_norm.setting import ConvergenceError, Setting, overflow

Array = NDArray[np.float64]

# If the slope of F exceeds 1 by less than this, κ is below what float64 resolves.
CRITICAL = 1e-9
# The scan: steps of log sinh u and of log κ, how far down, and how far below a scale of f.
_STEP, _CANDIDATES = 0.125, np.arange(0, 40, 0.4)
_LINEAR = 1e-5
# Newton's method: how far log κ may move before nodes are placed again.
_ROOM, _MOST_STEPS, _MOST_PLACES = 0.15, 80, 40
_SHIFT = 1e-5
_SMALLEST = 1e-150
_METHOD = "quadrature over a disc, {} circles"


def solve_on_disc(setting: Setting, f: Response) -> Solution | None:
    """Every number, or None where κ → 0.

    Raises:
        ConvergenceError: If κ does not settle.
        ValueError: If f overflows.
    """
    variance, settled = setting.weight_variance, True
    if setting.eps == 0:
        coarse, fine = place(f, setting.batch_size, 0.0, 1.0)
        rough, kappa = (variance * law.map(1.0)[0] for law in (coarse, fine))
    else:
        scan = _Scan.of(setting, f)
        guess = None if scan is None else _largest_root(setting, f, scan)
        if scan is None or guess is None:
            return None
        coarse, fine, kappa, settled = _settled(setting, f, guess, scan.circles)
        rough = float(np.exp(_newton(setting, coarse, float(np.log(kappa)))[0]))
    if not np.isfinite(kappa):
        raise overflow(setting)
    if not min(rough, kappa) > 0:
        return None
    at_beta = float(f.activation.values(np.array([f.beta]))[0])

    def numbers(law: DiscLaw, kappa: float) -> Array:
        return law.numbers(kappa, variance, setting.bias_variance, at_beta)

    found = Numbers(numbers(fine, kappa))
    if setting.eps:
        shifted = numbers(fine, kappa * (1 + _SHIFT))
        found = replace(found, sensitivity=np.abs(shifted - found.values) / _SHIFT)
    errors = found.distance(Numbers(numbers(coarse, rough)))
    values, slopes = fine.left_out(kappa)
    errors[3:6] += slopes * found.rate
    if not settled:
        noise = _noise(setting, coarse, fine, float(np.log(kappa)))
        errors += found.sensitivity * noise * found.amplification(setting)
    method = _METHOD.format(fine.u.size)
    return found.with_errors(
        errors, setting, method, truncation=values / 4, slopes=fine.mean_slope(kappa)
    )


def _largest_root(setting: Setting, f: Response, scan: _Scan) -> float | None:
    """Approximate the logarithm of the largest solution, or return None if κ → 0.

    Networks start from κ of order one, so the largest solution is the one they reach.
    """
    candidates = scan.top - _CANDIDATES
    ratios, trusted = scan.ratios(candidates)
    growing = np.flatnonzero(ratios > trusted)
    falling = np.flatnonzero(ratios < -trusted)
    if growing.size and not (falling.size and falling[0] < growing[0]):
        return float(candidates[0])
    if growing.size:
        low, high = candidates[growing[0]], candidates[falling[falling < growing[0]][-1]]
        between = np.linspace(low, high, 17)
        ratios, _ = scan.ratios(between)
        # log F(κ)/κ falls through 0 from low to high.
        last = int(np.flatnonzero(ratios > 0)[-1])
        part = _crossing(*ratios[last : last + 2].tolist())
        return float(between[last] + (between[1] - between[0]) * part)
    # Closer to the critical ε than the scan can tell, the slope of F at 0 decides.
    slope = critical_variance(f, setting.batch_size) * setting.weight_variance / setting.eps
    if not slope > 1 + CRITICAL:
        return None
    high = float(candidates[falling[-1]] if falling.size else candidates[0])
    for low in high - np.arange(1.0, 60.0):
        if log_ratio(setting, f, float(low)) > 0:
            return float(brentq(lambda at: log_ratio(setting, f, at), low, high, xtol=1e-2))
        high = float(low)
    return None


def _crossing(before: float, after: float) -> float:
    """Part of the way at which a straight line passes 0."""
    return before / (before - after) if after < 0 < before else 0.0


def log_ratio(setting: Setting, f: Response, log_kappa: float) -> float:
    """Logarithm of F(κ)/κ from nodes placed for this κ."""
    kappa = float(np.exp(log_kappa))
    law = place(f, setting.batch_size, setting.eps, kappa)[1]
    return _log_ratio(setting, law, log_kappa)[0]


def _log_ratio(setting: Setting, law: DiscLaw, log_kappa: float) -> tuple[float, float]:
    """Give log F(κ)/κ and the logarithmic slope of F."""
    value, slope = law.map(float(np.exp(log_kappa)))
    tiny = np.finfo(float).tiny
    return float(np.log(max(setting.weight_variance * value, tiny)) - log_kappa), slope


@dataclass(frozen=True, slots=True, eq=False)
class _Scan:
    """Gaps between samples over circles of all sizes, from which F is known at every κ.

    Args:
        setting: The problem.
        top: A log κ that no solution exceeds.
        at: log sinh u of the circles, ascending in equal steps.
        log_gap: Logarithm of the average of (f₁ − f₂)²/2 over each.
        circles: How they are averaged.
    """

    setting: Setting
    top: float
    at: Array
    log_gap: Array
    circles: Circles

    @classmethod
    def of(cls, setting: Setting, f: Response) -> _Scan | None:
        """Average over circles, from the largest to those where f is linear; None if f is flat."""
        B = setting.batch_size
        # F averages (f₁ − f₂)²/2, which is at most twice the largest (f − f(β))².
        _, size = range_of(f, B, 1e-12)
        if not np.isfinite(size):
            raise overflow(setting)
        if not size > _SMALLEST:
            return None
        top = float(np.log(2 * setting.weight_variance * size**2))
        c = B * setting.eps / np.exp(top - _CANDIDATES[[0, -1]])
        end, _ = range_of(f, B, float(c[0]))
        last = float(np.log(np.sinh(end)))
        scale = f.gamma * np.sqrt(B - 1)
        start = np.log(_LINEAR * max(1.0, abs(f.beta)) / scale)
        near = [abs(k - f.beta) for k in f.kinks if k != f.beta]
        if near:  # linear only well within the nearest kink
            start = min(start, np.log(min(near) / (4 * scale)))
        start = min(max(start, last - 36), last - 6)
        at = np.arange(last, start, -_STEP)[::-1]
        circles = Circles.of(f, B, float(np.tanh(end)), float(c[0]))
        gaps = circles.gaps(np.tanh(np.arcsinh(np.exp(at))))
        log_gap = np.log(np.maximum(gaps, np.finfo(float).tiny))
        lowest = min(at[0], -np.log(B + c[1]) / 2 - 13)
        below = np.arange(at[0] - _STEP, lowest, -_STEP)[::-1]
        log_gap = np.concatenate([log_gap[0] + 2 * (below - at[0]), log_gap])
        return cls(setting, top, np.concatenate([below, at]), log_gap, circles)

    def ratios(self, log_kappa: Array) -> tuple[Array, Array]:
        """Give log F(κ)/κ, and how far it can be trusted."""
        B, variance = self.setting.batch_size, self.setting.weight_variance
        c = B * self.setting.eps / np.exp(log_kappa)[:, None]
        tau2 = np.exp(2 * self.at)
        log_weight = 2 * self.at - (B - 1) / 2 * np.log1p(tau2) - c * tau2 / 2
        weight = np.exp(log_weight - log_weight.max(1, keepdims=True)) * (B - 3 + c * (1 + tau2))
        gap = np.exp(self.log_gap - self.log_gap.max())

        def mean(every: int) -> Array:
            part = weight[:, ::-1][:, ::every]
            with np.errstate(divide="ignore"):
                return np.asarray(np.log(part @ gap[::-1][::every] / part.sum(1)))

        fine = mean(1)
        ratios = fine + np.log(variance) + self.log_gap.max() - log_kappa
        return ratios, np.abs(fine - mean(2)) + 1e-9


def _settled(
    setting: Setting, f: Response, log_kappa: float, circles: Circles
) -> tuple[DiscLaw, DiscLaw, float, bool]:
    """Place nodes where the solution is; whether κ is known better than F(κ)/κ there."""
    for _ in range(_MOST_PLACES):
        kappa = float(np.exp(log_kappa))
        coarse, fine = place(f, setting.batch_size, setting.eps, kappa, circles)
        found, settled = _newton(setting, fine, log_kappa)
        if settled:
            return coarse, fine, float(np.exp(found)), True
        ratio = abs(_log_ratio(setting, fine, log_kappa)[0])
        if ratio <= _noise(setting, coarse, fine, log_kappa):
            return coarse, fine, float(np.exp(log_kappa)), False
        log_kappa = found
    raise ConvergenceError(
        f"the fixed point of kappa did not settle at eps = {setting.eps} for "
        f"{setting.activation.name}: it moved {_MOST_PLACES} times. Try a slightly different eps."
    )


def _noise(setting: Setting, coarse: DiscLaw, fine: DiscLaw, log_kappa: float) -> float:
    """How far log F(κ) is known: what two rules differ by, and the rounding of values."""
    ratios = [_log_ratio(setting, law, log_kappa)[0] for law in (coarse, fine)]
    return 2 * abs(ratios[1] - ratios[0]) + 1e-15


def _newton(setting: Setting, law: DiscLaw, start: float) -> tuple[float, bool]:
    """Solve log F(κ) = log κ on fixed nodes; whether it stayed where they are good."""
    log_kappa = start
    for _ in range(_MOST_STEPS):
        ratio, slope = _log_ratio(setting, law, log_kappa)
        step = float(np.clip(ratio / max(1 - slope, 1e-12), -_ROOM, _ROOM))
        log_kappa += step
        if abs(log_kappa - start) > 2 * _ROOM:
            return log_kappa, False
        if abs(step) < 4e-16:
            break
    return log_kappa, True
