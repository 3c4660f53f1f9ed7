r"""Solve the BSB1 problem: one fixed point, its eigenvalues, and an error for each number.

At ε = 0 averages over directions are refined until two levels agree; at ε > 0, and for what is not
smooth at small batches, two independent rules over a disc must agree. Each number's error is what
the last refinement changed, plus a floor for rounding.

Notes:
    Two levels can agree by accident when f has a feature narrower than both grids. Features that
    narrow are found beforehand as kinks (:mod:`equipoise.theory.activation.kinks`), unless a user
    declares fewer kinks than there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias, Unpack

import numpy as np
from numpy.typing import NDArray

from equipoise.numerics.options import named_options
from equipoise.numerics.quadrature import panels
from equipoise.records.estimate import Estimate
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.activation.catalogue import Kink
from equipoise.theory.batch_norm.averages import compute
from equipoise.theory.batch_norm.averages.polynomials import (
    farthest,
    kinked_averages,
    smooth_averages,
)
from equipoise.theory.batch_norm.averages.reach import whole_range
from equipoise.theory.batch_norm.averages.response import (
    SLOPES,
    VALUES,
    Averages,
    Response,
    carried_out,
)
from equipoise.theory.batch_norm.disc.cuts import resolving_cuts
from equipoise.theory.batch_norm.disc.fixed_point import solve_on_disc, solve_without_eps
from equipoise.theory.batch_norm.disc.scan import highest_growth
from equipoise.theory.batch_norm.fixed_point.closed_form import closed_form
from equipoise.theory.batch_norm.fixed_point.collapsed import collapsed
from equipoise.theory.batch_norm.fixed_point.homogeneous import serves, solve_homogeneous
from equipoise.theory.batch_norm.fixed_point.radius import without_eps
from equipoise.theory.batch_norm.fixed_point.solution import UNIT, Numbers, Solution
from equipoise.theory.batch_norm.setting import (
    Setting,
    SettingOptions,
    as_setting,
    overflow,
    unresolved,
)

Array = NDArray[np.float64]
Method: TypeAlias = Literal["auto", "closed form", "quadrature"]

# Relative change of all numbers at which refinement stops.
_GOAL = 1e-12
# Gauss nodes that are tried first, and change that is rounding.
_FEW_NODES, _KNOWN = (32, 48), 1e-14
# After two refinements, changes beyond this say that f is steep.
_SLOW = 1e-7
# At smaller batches ρ_k decays too slowly for sums over polynomials of what is not smooth.
_SMALL_BATCH = 20
# Panels towards what is steep: longest, in standard deviations, and nodes.
_LONGEST, _STEEP_NODES = 1.5, (14, 20)
# A rate whose second digit is unknown is not reported.
_LOOSE = 0.1
# Below this ε/κ no number differs from that at ε = 0 by more than rounding, also at B = 4, where
# the difference is of the order of its root.
_WITHOUT_EPS, TINY_EPS = 1e-36, 1e-20
# What a search that misses a place misses around it.
_MISSED_WITH = 0.25
# κ/q of a function that is constant but for rounding.
CONSTANT, _FAR_FROM_CONSTANT = 64 * UNIT**2, 1e-6


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


@named_options
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
        1 −0.25 1.25

    References:
        [yang2019], Section 3.1 and Appendix B.3 (BSB1 fixed points); ε > 0 derived here.
    """
    solution = solve(as_setting(setting, batch_size, options))
    return FixedPoint(solution.q, solution.c, solution.kappa)


def solve(setting: Setting, method: Method = "auto") -> Solution:
    """Solve for the fixed point and its eigenvalues.

    Args:
        setting: The problem.
        method: ``"closed form"`` exists for positive-homogeneous activations at ε = β = 0;
            ``"quadrature"`` always; ``"auto"`` takes the former where it can, and at ε > 0 the
            part of it that is left.

    Raises:
        ValueError: If the method is unknown, or no closed form is known for the setting.
    """
    if method not in ("auto", "closed form", "quadrature"):
        raise ValueError(f"method must be auto, closed form or quadrature, got {method!r}.")
    try:
        closed = None if method == "quadrature" else closed_form(setting)
        if closed is None and method == "closed form":
            raise ValueError(
                f"no closed form is known for {setting.activation.name} at eps = {setting.eps:g}, "
                f"beta = {setting.beta:g}: it needs a positive-homogeneous activation, eps = 0 "
                'and beta = 0. Use method="quadrature".'
            )
        if closed is None and method == "auto" and serves(setting):
            closed = solve_homogeneous(setting)
        found = closed or solve_by_quadrature(setting)
    except (OverflowError, ZeroDivisionError) as error:
        raise overflow(setting) from error
    if not found.finite:
        raise overflow(setting)
    return found


@lru_cache(maxsize=512)
def solve_by_quadrature(setting: Setting) -> Solution:
    """Solve by quadrature, also where a closed form is known."""
    solution = _solve(setting)
    unsure = [
        at
        for at in setting.activation.unsure
        if abs(at - setting.beta) < setting.gamma * np.sqrt(setting.batch_size - 1)
    ]
    return _unsure(setting, solution, unsure) if unsure else solution


def _unsure(setting: Setting, solution: Solution, places: list[float]) -> Solution:
    """Count what places that only one search has seen would change, if none had."""
    phi = setting.activation

    def kept(at: float) -> bool:
        return all(abs(at - place) > _MISSED_WITH for place in places)

    blind = replace(
        phi,
        kinks=tuple(kink for kink in phi.kinks if kept(kink.at)),
        turns=tuple(turn for turn in phi.turns if kept(turn)),
    )
    note = f"only one search for kinks saw x = {places[0]:.4g}"
    return solution.widened(_solve(replace(setting, activation=blind)), note)


def _solve(setting: Setting) -> Solution:
    f = Response.of(setting).within(setting.batch_size)
    tiny = setting.eps < TINY_EPS
    if setting.eps == 0 or (tiny and setting.eps <= _WITHOUT_EPS * _largest_kappa(setting, f)):
        return _checked(setting, _solve_without_eps(setting, f))
    return _with_eps([setting], f)[0]


def solve_together(settings: Sequence[Setting]) -> list[Solution]:
    """Solve settings with :data:`TINY_EPS` or more that share activation, γ, β and batch size.

    Raises:
        ValueError: If any of them cannot be solved.
    """
    f = Response.of(settings[0]).within(settings[0].batch_size)
    return _with_eps(settings, f)


@np.errstate(over="ignore", invalid="ignore")  # overflows are refused by name
def _with_eps(settings: Sequence[Setting], f: Response) -> list[Solution]:
    found = []
    for setting, solution in zip(settings, solve_on_disc(settings, f), strict=True):
        found.append(_equal(setting, f) if solution is None else _checked(setting, solution))
    return found


def _equal(setting: Setting, f: Response) -> Solution:
    """The solution where all samples become equal."""
    if not _varies(f):
        averages = compute.averages(f, setting.batch_size, np.ones(1), 0)
        _refuse_no_signal(setting, averages)
    return collapsed(setting, f)


def growth_of_differences(setting: Setting) -> float:
    """The largest log F(κ)/κ of all κ at ε > 0; infinite where that is not quickly told.

    Raises:
        ValueError: If f overflows.
    """
    return highest_growth(setting, Response.of(setting).within(setting.batch_size))


def solve_collapsed(setting: Setting) -> Solution:
    """The solution of a setting of which it is known that all samples become equal.

    Raises:
        ValueError: If the activation is constant there.
    """
    return _equal(setting, Response.of(setting).within(setting.batch_size))


def _varies(f: Response) -> bool:
    """Whether values within a standard deviation differ by far more than rounding."""
    values = f.activation.values(f.beta + f.gamma * np.linspace(-1, 1, 5))
    return bool(np.ptp(values) > _FAR_FROM_CONSTANT * np.abs(values).max())


def _largest_kappa(setting: Setting, f: Response) -> float:
    """κ at ε = 0, to a few digits."""
    averages = compute.averages(f, setting.batch_size, np.ones(1), 0)
    return setting.weight_variance * float(averages.kappa[0])


def _solve_without_eps(setting: Setting, f: Response) -> Solution:
    B = setting.batch_size
    if f.has_powers and B < _SMALL_BATCH:
        return _without_eps_on_disc(setting, f)
    if f.activation.turns and not f.has_powers:
        return _steep(setting, f)
    if not f.kinks.size and (found := _with_few_nodes(setting, f)):
        return found
    rough, averages = compute.first_levels(f, B)
    _refuse_no_signal(setting, rough)
    whole_range(f, B, 0.0)  # Gauss nodes end before samples too rare for float64
    fine = _without_radius(setting, rough)
    for level in range(1, compute.levels(f)):
        if level > 1:
            averages = compute.averages(f, B, np.ones(1), level)
        coarse, fine = fine, _without_radius(setting, averages)
        change = fine.distance(coarse)
        if (change <= _GOAL * fine.scale).all():
            return _with_errors(fine, change, setting, averages)
        if level > 1 and not f.has_powers and (change > _SLOW * fine.scale).any():
            break
        if not f.kinks.size and level + 1 == compute.GAUSS_LEVELS:
            break
    return _with_errors(fine, change, setting, averages) if f.has_powers else _steep(setting, f)


def _with_few_nodes(setting: Setting, f: Response) -> Solution | None:
    """The solution where a few Gauss nodes know every number but for rounding."""
    B = setting.batch_size
    plans = [smooth_averages(f, B, np.ones(1), count) for count in _FEW_NODES]
    with np.errstate(over="ignore", invalid="ignore"):
        coarse, fine = carried_out(f, plans)
    if not np.isfinite(fine.kappa).all():
        return None
    _refuse_no_signal(setting, fine)
    whole_range(f, B, 0.0)
    rough, numbers = (_without_radius(setting, averages) for averages in (coarse, fine))
    change = numbers.distance(rough)
    if not (change <= _KNOWN * numbers.scale).all():
        return None
    return _with_errors(numbers, change, setting, fine)


def _steep(setting: Setting, f: Response) -> Solution:
    """Average over panels that narrow towards what is steep."""
    if setting.batch_size < _SMALL_BATCH:
        return _without_eps_on_disc(setting, f)
    reach = farthest(f, setting.batch_size, np.ones(1))
    # The density of w must be resolved as well.
    grid = np.arange(-reach, reach, _LONGEST) * f.gamma + f.beta
    cuts, missed = resolving_cuts(f, setting.batch_size, f.gamma * reach)
    cuts = np.union1d(cuts, grid)
    kinks = tuple(Kink(cut) for cut in cuts.tolist())
    cut = replace(f, activation=replace(f.activation, kinks=kinks, turns=()))
    plans = [
        kinked_averages(cut, setting.batch_size, np.ones(1), panels.analytic(count), splits=1)
        for count in _STEEP_NODES
    ]
    coarse, fine = carried_out(f, plans)
    _refuse_no_signal(setting, fine)
    numbers = _without_radius(setting, fine)
    change = numbers.distance(_without_radius(setting, coarse))
    change += 0.8 * numbers.scale * missed[0] / np.sqrt(fine.square(VALUES, 0)[0])
    change[3:6] += 0.6 * numbers.rate * missed[1] / np.sqrt(fine.square(SLOPES, 0)[0])
    return _with_errors(numbers, change, setting, fine)


def _without_eps_on_disc(setting: Setting, f: Response) -> Solution:
    solution = solve_without_eps(replace(setting, eps=0.0), f)
    if solution is None or not solution.kappa.value > CONSTANT * solution.q.value:
        raise _no_signal(setting)
    return solution


def solution_of(setting: Setting, coarse: Averages, fine: Averages) -> Solution | None:
    """The solution at ε = 0 from two levels of averages, if they agree."""
    if not fine.kappa[0] > CONSTANT * (fine.square(VALUES, 0)[0] + fine.mean[0] ** 2):
        return None
    rough, numbers = (_without_radius(setting, averages) for averages in (coarse, fine))
    change = numbers.distance(rough)
    if not (change <= _GOAL * numbers.scale).all():
        return None
    return _checked(setting, _with_errors(numbers, change, setting, fine))


def _with_errors(
    numbers: Numbers, errors: Array, setting: Setting, averages: Averages
) -> Solution:
    slopes = float(np.median(averages.square(SLOPES, 0)))
    # Rounding of w moves its density, like (1 - w²/n)^((B - 4)/2), by w²/(1 - w²/n) times as much,
    # and a kink's distance from the largest w, √n, by as much.
    n = setting.batch_size - 1
    far = max(
        float((averages.square(order, 2) / np.maximum(averages.square(order, 0), 1e-300)).max())
        for order in (VALUES, SLOPES)
    )
    truncation = averages.truncation + UNIT * far / max(1 - far / n, UNIT)
    return numbers.with_errors(
        errors, setting, averages.method, truncation=truncation, slopes=slopes
    )


def _without_radius(setting: Setting, averages: Averages) -> Numbers:
    """At ε = 0 nothing has to be solved for: R = 1, and κ is an average."""
    kappa = setting.weight_variance * float(averages.kappa[0])
    return Numbers.of(setting, kappa, averages, without_eps(setting.batch_size, kappa))


def _checked(setting: Setting, solution: Solution) -> Solution:
    """Refuse a solution that overflows, or whose slopes fell between the nodes."""
    if not solution.finite:
        raise overflow(setting)
    B, rate = setting.batch_size, solution.rate
    # Theorem 9: no network grows slower than the linear one, at ε = 0.
    floor = (1 - _LOOSE) * (B - 2) / (B - 3) if setting.eps == 0 else 0.0
    if floor < rate.value and rate.error < _LOOSE * rate.value:
        return solution
    raise unresolved(setting.activation.name, setting.gamma, setting.beta)


def _refuse_no_signal(setting: Setting, averages: Averages) -> None:
    kappa = float(averages.kappa[-1])
    if not np.isfinite(kappa):
        raise overflow(setting)
    second_moment = float(averages.square(VALUES, 0)[-1] + averages.mean[-1] ** 2)
    if not kappa > CONSTANT * second_moment:
        raise _no_signal(setting)


def _no_signal(setting: Setting) -> ValueError:
    return ValueError(
        f"activation {setting.activation.name} is constant to float64 precision at "
        f"gamma = {setting.gamma:g}, beta = {setting.beta:g}: no signal passes. "
        "Choose a beta nearer to where it varies."
    )
