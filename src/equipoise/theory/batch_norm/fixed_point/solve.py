r"""Solve the BSB1 problem: one fixed point, its eigenvalues, and an error for each number.

First the averages over directions are refined until two levels agree, then, at ε > 0, the
average over the radius. Each number's error is what the last refinements changed, plus a floor
for rounding.

Notes:
    Two levels can agree by accident when f has a feature narrower than both grids. Features that
    narrow are found beforehand as kinks (:mod:`equipoise.theory.activation.kinks`), unless a user
    declares fewer kinks than there are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias, Unpack

import numpy as np
from numpy.typing import NDArray

from equipoise.records.estimate import Estimate
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.batch_norm.averages import compute
from equipoise.theory.batch_norm.averages.response import SLOPES, VALUES, Averages, Response
from equipoise.theory.batch_norm.disc.fixed_point import solve_on_disc
from equipoise.theory.batch_norm.fixed_point.closed_form import closed_form
from equipoise.theory.batch_norm.fixed_point.critical_eps import (
    critical_variance,
    tangent,
    tangent_averages,
)
from equipoise.theory.batch_norm.fixed_point.kappa import largest_root, refine_root
from equipoise.theory.batch_norm.fixed_point.radius import (
    RadialGrid,
    RadialLaw,
    radial_grid,
    without_eps,
)
from equipoise.theory.batch_norm.fixed_point.solution import UNIT, Numbers, Solution
from equipoise.theory.batch_norm.setting import (
    ConvergenceError,
    Setting,
    SettingOptions,
    as_setting,
)
from equipoise.theory.batch_norm.spectra import formulas

Array = NDArray[np.float64]
Method: TypeAlias = Literal["auto", "closed form", "quadrature"]

# Relative changes at which refinement stops: of all numbers at ε = 0, and of averages at a few
# radii, which chooses the level to start from at ε > 0.
_GOAL, _PROBE_GOAL = 1e-12, 1e-9
_RADIAL_LEVELS = 4
_STEP = 1e-5
# Away from the critical ε the first grid fits; close to it the grid must move a few times.
_MOST_MOVES = 50
# A rate whose second digit is unknown is not reported.
_LOOSE = 0.1
# Below this ε/κ no number differs from that at ε = 0 by more than rounding, also at B = 4, where
# the difference is of the order of its root.
_WITHOUT_EPS = 1e-36


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """The BSB1 fixed point Σ* = q[(1 − c) I + c 11ᵀ] of the pre-activations.

    Args:
        q: Second moment of one sample.
        c: Correlation of two samples.
        kappa: q(1 − c), the size of what batch norm sees after centring.
    """

    q: Estimate
    c: Estimate
    kappa: Estimate


def bsb1_fixed_point(
    setting: Setting | ActivationLike,
    batch_size: int | None = None,
    **options: Unpack[SettingOptions],
) -> FixedPoint:
    r"""Solve for the fixed point of the covariance map among BSB1 matrices.

    .. math:: q = \sigma_w^2 E[\phi(w_1)^2] + \sigma_b^2, \quad
              qc = \sigma_w^2 E[\phi(w_1)\phi(w_2)] + \sigma_b^2, \quad \kappa = q(1 - c)

    with two samples :math:`w_1, w_2` of a normalised batch; at ε > 0, γ ≠ 1 or β ≠ 0 with
    φ(γRw + β) and an average over the radius R, which itself depends on κ.

    Args:
        setting: A :class:`Setting`, or its activation, followed by its batch size and keywords.
        batch_size: Only beside an activation.

    Returns:
        The fixed point; each number with a bound on its numerical error. Where ε exceeds
        :func:`critical_eps`, ``kappa`` is 0: all samples become equal.

    Raises:
        ValueError: If ``batch_size < 4``, a number is out of range or the activation is not
            usable.

    Examples:
        >>> point = bsb1_fixed_point("identity", 5)
        >>> print(point.q, point.c, point.kappa)  # 1, -1/(B - 1), B/(B - 1)
        1 -0.25 1.25

    References:
        [yang2019], Section 3.1 and Appendix B.3 (BSB1 fixed points); ε > 0 derived here.
    """
    solution = solve_by_quadrature(as_setting(setting, batch_size, options))
    return FixedPoint(solution.q, solution.c, solution.kappa)


def solve(setting: Setting, method: Method = "auto") -> Solution:
    """Solve for the fixed point and its eigenvalues.

    Args:
        setting: The problem.
        method: ``"closed form"`` exists for positive-homogeneous activations at ε = β = 0;
            ``"quadrature"`` always; ``"auto"`` takes the former where it can.

    Raises:
        ValueError: If the method is unknown, or no closed form is known for the setting.
    """
    if method not in ("auto", "closed form", "quadrature"):
        raise ValueError(f"method must be auto, closed form or quadrature, got {method!r}.")
    try:
        closed = None if method == "quadrature" else closed_form(setting)
    except (OverflowError, ZeroDivisionError) as error:
        raise _overflow(setting) from error
    if method == "closed form" and closed is None:
        raise ValueError(
            f"no closed form is known for {setting.activation.name} at eps = {setting.eps:g}, "
            f"beta = {setting.beta:g}: it needs a positive-homogeneous activation, eps = 0 and "
            'beta = 0. Use method="quadrature".'
        )
    return closed or solve_by_quadrature(setting)


@lru_cache(maxsize=512)
def solve_by_quadrature(setting: Setting) -> Solution:
    """Solve by quadrature, also where a closed form is known."""
    f = Response.of(setting).within(setting.batch_size)
    start = compute.averages(f, setting.batch_size, np.ones(1), 0)
    _refuse_no_signal(setting, start)
    if setting.eps <= _WITHOUT_EPS * setting.weight_variance * float(start.kappa[0]):
        return _checked(setting, _solve_without_eps(setting, f, start))
    if not (f.has_powers or f.is_homogeneous):
        solution = solve_on_disc(setting, f)
        return _collapsed(setting, f) if solution is None else _checked(setting, solution)
    kappa = largest_root(setting, f)
    if kappa is None:
        return _collapsed(setting, f)
    return _checked(setting, _solve_with_eps(setting, f, kappa))


def _solve_without_eps(setting: Setting, f: Response, start: Averages) -> Solution:
    steep = bool(f.activation.turns) and not f.has_powers
    if not steep:
        fine, _ = _explicit(setting, f, 0)
        for level in range(1, compute.levels(f)):
            coarse, (fine, averages) = fine, _explicit(setting, f, level)
            change = fine.distance(coarse)
            if (change <= _GOAL * fine.scale).all():
                break
            if not f.kinks.size and level + 1 == compute.GAUSS_LEVELS:
                steep = True
                break
    if steep:
        # Without ε, F is a constant, and Newton's first step ends at κ.
        kappa = setting.weight_variance * float(start.kappa[0])
        solution = solve_on_disc(replace(setting, eps=0.0), f, kappa)
        assert solution is not None
        return solution
    return _with_errors(fine, change, setting, averages)


def _with_errors(
    numbers: Numbers, errors: Array, setting: Setting, averages: Averages
) -> Solution:
    slopes = float(np.median(averages.square(SLOPES, 0)))
    return numbers.with_errors(
        errors, setting, averages.method, truncation=averages.truncation, slopes=slopes
    )


def _explicit(setting: Setting, f: Response, level: int) -> tuple[Numbers, Averages]:
    """At ε = 0 nothing has to be solved for: R = 1, and κ is an average."""
    averages = compute.averages(f, setting.batch_size, np.ones(1), level)
    kappa = setting.weight_variance * float(averages.kappa[0])
    law = without_eps(setting.batch_size, kappa)
    return Numbers.of(setting, kappa, averages, law), averages


def _solve_with_eps(setting: Setting, f: Response, kappa: float) -> Solution:
    # The level at which directions are nearly resolved at the largest radius, where f is
    # steepest, and at a few others; what that leaves out is then measured at all radii.
    probes = np.quantile(_grid(setting, f, kappa, 0).radius, [0.5, 0.75, 1.0])
    *_, first_level = _refined(setting, f, probes, _PROBE_GOAL)
    current, _ = _at_level(setting, f, kappa, first_level, 0)
    for level in range(first_level, compute.levels(f) - 1):
        coarse, (current, _) = current, _at_level(setting, f, kappa, level + 1, 0)
        directional = current.distance(coarse)
        if (directional <= coarse.goal(setting)).all():
            break

    current = coarse
    for radial_level in range(1, _RADIAL_LEVELS):
        previous, (current, averages) = (
            current,
            _at_level(setting, f, kappa, level, radial_level),
        )
        radial = current.distance(previous)
        if (radial <= current.goal(setting)).all():
            break
    # The coarser directions are kept, so their distance to the finer ones counts twice.
    return _with_errors(current, 2 * directional + radial, setting, averages)


def _refined(
    setting: Setting, f: Response, radii: Array, goal: float
) -> tuple[Averages, Averages, int]:
    """Refine until two levels agree; return both and the coarser's level."""
    fine = compute.averages(f, setting.batch_size, radii, 0)
    for level in range(1, compute.levels(f)):
        coarse, fine = fine, compute.averages(f, setting.batch_size, radii, level)
        if _relative_change(coarse, fine) <= goal:
            break
    return coarse, fine, level - 1


def _relative_change(coarse: Averages, fine: Averages) -> float:
    """Largest change among the averages that enter κ and the rate."""
    tiny = np.finfo(float).tiny
    size = np.maximum(fine.squares[1, 0], tiny)
    slopes = (fine.squares[1, 0] - coarse.squares[1, 0]) / size
    cross = (fine.pairs[1, 0, 0] - coarse.pairs[1, 0, 0]) / size
    kappas = (fine.kappa - coarse.kappa) / np.maximum(fine.kappa, tiny)
    return float(np.abs([slopes, cross, kappas]).max())


def _at_level(
    setting: Setting, f: Response, kappa: float, level: int, radial_level: int
) -> tuple[Numbers, Averages]:
    for _ in range(_MOST_MOVES):
        grid = _grid(setting, f, kappa, radial_level)
        averages = compute.averages(f, setting.batch_size, grid.radius, level)
        kappa = refine_root(setting, grid, averages)
        if grid.reaches(kappa):
            numbers = Numbers.of(setting, kappa, averages, grid.law(kappa))
            moved = kappa * (1 + _STEP)
            shifted = Numbers.of(setting, moved, averages, grid.law(moved))
            return replace(numbers, sensitivity=shifted.distance(numbers) / _STEP), averages
    raise ConvergenceError(
        f"the fixed point of kappa did not settle at eps = {setting.eps} for "
        f"{setting.activation.name}: it moved {_MOST_MOVES} times. Try a slightly different eps."
    )


def _grid(setting: Setting, f: Response, kappa: float, level: int) -> RadialGrid:
    breaks = np.empty(0) if f.is_homogeneous else compute.breaks(f, setting.batch_size)
    return radial_grid(setting.batch_size, setting.eps, kappa, breaks, level)


def _checked(setting: Setting, solution: Solution) -> Solution:
    """Refuse a solution whose slopes fell between the nodes."""
    B, rate = setting.batch_size, solution.rate
    # Theorem 9: no network grows slower than the linear one, at ε = 0.
    floor = (1 - _LOOSE) * (B - 2) / (B - 3) if setting.eps == 0 else 0.0
    if floor < rate.value and rate.error < _LOOSE * rate.value:
        return solution
    raise ConvergenceError(
        f"{setting.activation.name} is too steep at gamma = {setting.gamma:g}, beta = "
        f"{setting.beta:g}: quadrature does not resolve where it turns. Use a smaller gamma, or "
        "its limit, a function with a jump, for which gradients have no finite rate."
    )


def _refuse_no_signal(setting: Setting, averages: Averages) -> None:
    kappa = float(averages.kappa[-1])
    if not np.isfinite(kappa):
        raise _overflow(setting)
    second_moment = float(averages.square(VALUES, 0)[-1] + averages.mean[-1] ** 2)
    if not kappa > 64 * UNIT**2 * second_moment:
        raise ValueError(
            f"activation {setting.activation.name} is constant to float64 precision at "
            f"gamma = {setting.gamma:g}, beta = {setting.beta:g}: no signal passes. "
            "Choose a beta nearer to where it varies."
        )


def _overflow(setting: Setting) -> ValueError:
    return ValueError(
        f"activation {setting.activation.name} overflows on normalised samples at "
        f"gamma = {setting.gamma:g}, beta = {setting.beta:g}. Use one that grows slower."
    )


def _collapsed(setting: Setting, f: Response) -> Solution:
    """κ* = 0: all samples become equal, and batch norm divides by √ε alone."""
    B, variance, eps = setting.batch_size, setting.weight_variance, setting.eps
    values, _ = f(np.array([f.beta]))
    q = variance * float(values[0]) ** 2 + setting.bias_variance
    backward = forward = (0.0, 0.0, 0.0)
    cross_rate = 0.0
    slopes = tangent(f)
    if slopes is not None:
        averages, one = tangent_averages(slopes, B), np.ones(1)
        # Backward at R = 0; forward R² = κx/(Bε) to first order in κ, with E[x²] = n(n + 2).
        law = RadialLaw(0 * one, one, one / eps, one * (B + 1) / (B * eps), one)
        backward = (
            formulas.backward_g(B, variance, averages, law),
            formulas.backward_l(B, variance, averages, law),
            formulas.backward_m(B, variance, averages, law),
        )
        forward = (
            critical_variance(f, B) * variance / eps,
            formulas.forward_l(B, variance, 1.0, averages, law),
            formulas.forward_m(B, variance, 1.0, averages, law),
        )
        cross_rate = variance * ((slopes.a + slopes.b) / 2) ** 2 / eps
    method = "closed form: the fixed point has collapsed"
    # Barely below the critical ε, κ is not 0 but of the order of the distance to it.
    beyond = max(0.0, forward[0] - 1)

    def exact(value: float, scale: float) -> Estimate:
        return Estimate(value, 64 * UNIT * abs(value) + 1e3 * beyond * scale, method)

    return Solution(
        q=exact(q, eps),
        c=exact(1.0, 1.0),
        kappa=exact(0.0, eps),
        backward=(exact(backward[0], 1.0), exact(backward[1], 1.0), exact(backward[2], 1.0)),
        forward=(exact(forward[0], 1.0), exact(forward[1], 1.0), exact(forward[2], 1.0)),
        cross_covariance=exact(q, eps),
        cross_rate=exact(cross_rate, 1.0),
    )
