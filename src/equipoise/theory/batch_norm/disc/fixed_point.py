r"""The fixed point of κ at ε > 0, and every number there.

Solves :math:`F(\kappa) = \sigma_w^2E[(f_1 - f_2)^2]/2 = \kappa`. Averages over circles do
not depend on κ: a scan over all κ needs them once, and so does Newton's method near the solution.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.disc.circles import Circles
from equipoise.theory.batch_norm.disc.law import DiscLaw, range_of
from equipoise.theory.batch_norm.disc.place import place
from equipoise.theory.batch_norm.fixed_point.critical_eps import critical_variance
from equipoise.theory.batch_norm.fixed_point.solution import Numbers, Solution
from equipoise.theory.batch_norm.setting import ConvergenceError, Setting

Array = NDArray[np.float64]

# If the slope of F exceeds 1 by less than this, κ is below what float64 resolves.
CRITICAL = 1e-9
# The scan: steps of log sinh u and of log κ, how far down, and how far below a scale of f.
_STEP, _CANDIDATES = 0.125, np.arange(0, 40, 0.4)
_LINEAR = 1e-5
# Newton's method: how far log κ may move before nodes are placed again.
_ROOM, _MOST_STEPS, _MOST_PLACES = 0.15, 80, 40
_SHIFT = 1e-5
_METHOD = "quadrature over a disc, {} circles"


def solve_on_disc(setting: Setting, f: Response, guess: float | None = None) -> Solution | None:
    """Every number, or None where κ → 0.

    Args:
        setting: The problem.
        f: Its response.
        guess: About κ; by default the largest solution is searched for.

    Raises:
        ConvergenceError: If κ does not settle.
    """
    if guess is None:
        guess = largest_root(setting, f)
    if guess is None:
        return None
    coarse, fine, kappa = _settled(setting, f, float(np.log(guess)))
    at_beta = float(f(np.array([f.beta]))[0][0])

    def numbers(law: DiscLaw, kappa: float) -> Array:
        return law.numbers(kappa, setting.weight_variance, setting.bias_variance, at_beta)

    rough, _ = _newton(setting, coarse, float(np.log(kappa)))
    found = Numbers(numbers(fine, kappa))
    sensitivity = np.abs(numbers(fine, kappa * (1 + _SHIFT)) - found.values) / _SHIFT
    errors = found.distance(Numbers(numbers(coarse, float(np.exp(rough)))))
    method = _METHOD.format(fine.u.size)
    return replace(found, sensitivity=sensitivity).with_errors(errors, setting, method)


def largest_root(setting: Setting, f: Response) -> float | None:
    """Approximate the largest solution, or return None if κ → 0.

    Networks start from κ of order one, so the largest solution is the one they reach.
    """
    scan = _Scan.of(setting, f)
    candidates = scan.top - _CANDIDATES
    ratios, trusted = scan.ratios(candidates)
    growing = np.flatnonzero(ratios > trusted)
    falling = np.flatnonzero(ratios < -trusted)
    if growing.size and not (falling.size and falling[0] < growing[0]):
        return float(np.exp(candidates[0]))
    if growing.size:
        low, high = candidates[growing[0]], candidates[falling[falling < growing[0]][-1]]
        root = brentq(lambda at: float(scan.ratios(np.array([at]))[0][0]), low, high, xtol=1e-4)
        return float(np.exp(root))
    # Closer to the critical ε than the scan can tell, the slope of F at 0 decides.
    slope = critical_variance(f, setting.batch_size) * setting.weight_variance / setting.eps
    if not slope > 1 + CRITICAL:
        return None
    high = float(candidates[falling[-1]] if falling.size else candidates[0])
    for low in high - np.arange(1.0, 60.0):
        if log_ratio(setting, f, float(low)) > 0:
            root = brentq(lambda at: log_ratio(setting, f, at), low, high, xtol=1e-2)
            return float(np.exp(root))
        high = float(low)
    return None


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
    """

    setting: Setting
    top: float
    at: Array
    log_gap: Array

    @classmethod
    def of(cls, setting: Setting, f: Response) -> _Scan:
        """Average over circles from the largest that matters to those where f is linear."""
        B = setting.batch_size
        # F averages the gap over radii, so κ cannot exceed its largest value, found first.
        rho = np.tanh(np.linspace(0.05, 1, 24) * min(18.0, range_of(f, B, 1e-12)))
        largest = Circles.of(f, B, 1.0).gaps(rho).max()
        top = float(np.log(setting.weight_variance * largest * 1.05))
        c = B * setting.eps / np.exp(top - _CANDIDATES[[0, -1]])
        end = range_of(f, B, float(c[0]))
        last = float(np.log(np.sinh(end)))
        scale = f.gamma * np.sqrt(B - 1)
        start = np.log(_LINEAR * max(1.0, abs(f.beta)) / scale)
        near = [abs(k - f.beta) for k in f.kinks if k != f.beta]
        if near:  # linear only well within the nearest kink
            start = min(start, np.log(min(near) / (4 * scale)))
        start = min(max(start, last - 36), last - 6)
        at = np.arange(last, start, -_STEP)[::-1]
        gaps = Circles.of(f, B, float(np.tanh(end))).gaps(np.tanh(np.arcsinh(np.exp(at))))
        log_gap = np.log(np.maximum(gaps, np.finfo(float).tiny))
        lowest = min(at[0], -np.log(B + c[1]) / 2 - 13)
        below = np.arange(at[0] - _STEP, lowest, -_STEP)[::-1]
        log_gap = np.concatenate([log_gap[0] + 2 * (below - at[0]), log_gap])
        return cls(setting, top, np.concatenate([below, at]), log_gap)

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


def _settled(setting: Setting, f: Response, log_kappa: float) -> tuple[DiscLaw, DiscLaw, float]:
    """Place nodes where the solution is."""
    for _ in range(_MOST_PLACES):
        coarse, fine = place(f, setting.batch_size, setting.eps, float(np.exp(log_kappa)))
        found, settled = _newton(setting, fine, log_kappa)
        if settled:
            return coarse, fine, float(np.exp(found))
        log_kappa = found
    raise ConvergenceError(
        f"the fixed point of kappa did not settle at eps = {setting.eps} for "
        f"{setting.activation.name}: it moved {_MOST_PLACES} times. Try a slightly different eps."
    )


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
