r"""Residual networks with batch norm: gradients grow like a power of depth, not exponentially.

Derived here, with the means of [yang2019]. In a stream

.. math:: x^l = x^{l-1} + W_k\,\phi(\mathrm{BN}(\cdots W_1\,\phi(\mathrm{BN}(x^{l-1}))))

batch norm forgets the scale of the stream, so every block adds a branch of the same centred
variance κ*: the stream's grows linearly, :math:`\kappa^l = \kappa^0 + l\kappa^*`. On the way back
the branch divides by the stream's standard deviation where a plain network divides by its own,

.. math:: g^{l-1} = g^l\,\Big(1 + \Lambda\,\frac{\kappa^*}{\kappa^{l-1}}\Big), \qquad
          \Lambda = \lambda_G^k ,

hence :math:`\|\nabla_x\|^2 \propto (L/l)^\Lambda`. Here g is the part of the gradients'
covariance :math:`\Pi = gG + p\,\mathbf 1\mathbf 1^T/B` that differs between samples. The shared
part p passes along the skip connection unchanged, and what of it enters a branch leaves in g:
with :math:`\lambda_G = u + v` split into the averages over one and two samples, the branch maps p
to :math:`\frac u{B-1} - v`. At ε > 0, u, v and κ* are those at the current κ.

Symbols: B: batch size, n = B - 1, κ: centred variance of a batch norm's input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from equipoise.numerics.checks import check_positive, check_whole
from equipoise.numerics.options import named_options
from equipoise.records.estimate import Estimate
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.batch_norm.averages import compute
from equipoise.theory.batch_norm.averages.response import (
    SLOPES,
    Averages,
    Response,
    unseen_slopes,
)
from equipoise.theory.batch_norm.disc.law import DiscLaw
from equipoise.theory.batch_norm.disc.place import place
from equipoise.theory.batch_norm.fixed_point.radius import radial_grid, without_eps
from equipoise.theory.batch_norm.fixed_point.solve import CONSTANT, solve_by_quadrature
from equipoise.theory.batch_norm.setting import Setting, SettingOptions, as_setting

Array = NDArray[np.float64]

_UNIT = float(np.finfo(float).eps)
_METHOD = "recursion over residual blocks"
_GOAL = 1e-12
# Below this batch size fractional powers are averaged over the disc, also at ε = 0.
_SMALL_BATCH = 20
# Steps of log Bε/κ: a third of what nodes over the disc are good for.
_STEP = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class ResidualGrowth:
    """How gradients grow along a residual stream.

    Args:
        exponent: Λ: the squared gradient grows like (L/l)^Λ.
        factors: Growth of g per block, from the first block to the last, ``[blocks]``.
        variances: Centred variance κ of the stream before each block and after the last,
            ``[blocks + 1]``.
        stream: Squared gradient norm with respect to the stream before each block and after the
            last, relative to the latter, ``[blocks + 1]``.
        normalisers: The same with respect to the input of every batch norm, ``[blocks, stages]``.
        growth: The stream's first entry: growth over the whole network.
    """

    exponent: Estimate
    factors: Array
    variances: Array
    stream: Array
    normalisers: Array
    growth: Estimate


@named_options
def residual_growth(
    setting: Setting | ActivationLike,
    batch_size: int | None = None,
    *,
    blocks: int,
    stages: int = 1,
    leading: bool = False,
    start_variance: float = 1.0,
    **options: Unpack[SettingOptions],
) -> ResidualGrowth:
    r"""Gradients along a pre-activation residual network.

    Args:
        setting: A :class:`Setting`, or its activation, followed by its batch size and keywords.
        batch_size: Only beside an activation.
        blocks: Residual blocks, at least 1.
        stages: Batch norm → activation → linear stages in each branch.
        leading: Whether a linear layer precedes the first batch norm of a branch. The stream's
            growth is the same at ε = 0; batch norms then see the branch's gradient alone.
        start_variance: κ⁰, the centred variance of the stream before the first block.

    Raises:
        ValueError: If a number is out of range or the activation is not usable.

    Notes:
        The branch must end in a linear layer, and nothing may follow
        the addition: an activation on the stream itself, as in the first ResNets, correlates the
        stream with its branches, which this recursion does not contain.

    Examples:
        >>> deep = residual_growth("identity", 32, blocks=100)
        >>> print(deep.exponent)  # (B - 2) / (B - 3)
        1.0345
        >>> growth = residual_growth("relu", 32, blocks=100).growth  # plain: 1.52^100 = 1e18
        >>> round(math.log10(growth.value), 1)
        2.3

    References:
        Derived in this module from the methods of [yang2019].
    """
    blocks, stages = check_whole("blocks", blocks, 1), check_whole("stages", stages, 1)
    check_positive(start_variance=start_variance)
    setting = as_setting(setting, batch_size, options)
    solve_by_quadrature(replace(setting, eps=0.0))  # refuses an activation that passes no signal
    level = _level(setting, start_variance)
    coarse, fine = (
        _recursion(setting, blocks, stages, leading, start_variance, at)
        for at in (level - 1, level)
    )
    error = abs(fine.growth.value - coarse.growth.value) + 64 * _UNIT * blocks * fine.growth.value
    if _on_disc(setting) or _response(setting).kinks.size:
        most = _recursion(setting, blocks, stages, leading, start_variance, level, unseen=1.0)
        error += most.growth.value - fine.growth.value
    return replace(fine, growth=replace(fine.growth, error=error))


@dataclass(frozen=True, slots=True)
class _Branch:
    """One stage at a given κ of its input: centred variance of its output, u and v.

    ``unseen`` is what u may lack within rounding of fractional powers; v lacks less.
    """

    variance: float
    u: float
    v: float
    unseen: float


def _level(setting: Setting, kappa: float) -> int:
    """The first level of refinement that agrees with the one before."""
    levels = compute.levels(_response(setting))
    if _on_disc(setting):
        return 1
    for level in range(1, levels):
        before, now = _stage(setting, kappa, level - 1), _stage(setting, kappa, level)
        if abs(now.u + now.v - before.u - before.v) <= _GOAL * (now.u + now.v):
            break
    return level


def _response(setting: Setting) -> Response:
    return Response.of(setting).within(setting.batch_size)


def _on_disc(setting: Setting) -> bool:
    f = _response(setting)
    return setting.eps > 0 or (f.has_powers and setting.batch_size < _SMALL_BATCH)


@lru_cache(maxsize=4096)
def _stage(setting: Setting, kappa: float, level: int) -> _Branch:
    B, variance, f = setting.batch_size, setting.weight_variance, _response(setting)
    if _on_disc(setting):
        c = B * setting.eps / kappa
        law = _laws(setting, round(math.log(c) / _STEP) if c else None)[min(level, 1)]
        at, many = np.array([kappa]), np.array([c])
        gap, slope = float(law.map(many)[0][0]), law.mean_slope(many)
        if not gap > CONSTANT * float(f.activation.values(np.array([f.beta]))[0]) ** 2:
            raise _no_signal(setting, kappa)
        u, v = (variance * float(part[0]) for part in law.gradients(at, many))
        lost = u * float(sum(part[0] for part in law.left_out(np.array([gap]), slope)))
    else:
        averages = _averages(setting, level)
        square, pair = averages.square, averages.pair
        gap, scale = float(averages.kappa[0]), variance / (kappa * (B - 3))
        u = scale * float(((B - 1) * square(SLOPES, 0) - square(SLOPES, 2))[0])
        v = scale * float((pair(SLOPES, 0, 0) + pair(SLOPES, 1, 1))[0])
        lost = 0.0
    if f.kinks.size:
        radial = without_eps(B, kappa)
        if setting.eps > 0:
            radial = radial_grid(B, setting.eps, kappa, np.empty(0), 0).law(kappa)
        beside = unseen_slopes(f, B, radial.radius)
        lost += variance / B * (B - 1) * float(radial.per_variance @ beside)
    return _Branch(variance * gap, u, v, lost)


def _no_signal(setting: Setting, kappa: float) -> ValueError:
    return ValueError(
        f"activation {setting.activation.name} is constant to float64 precision at gamma = "
        f"{setting.gamma:g}, beta = {setting.beta:g} behind a batch norm whose input has variance "
        f"{kappa:.3g} beside eps = {setting.eps:g}: no signal passes. Use a smaller eps, a larger "
        "start_variance or weight_variance, or a beta nearer to where it varies."
    )


@lru_cache(maxsize=256)
def _averages(setting: Setting, level: int) -> Averages:
    return compute.averages(_response(setting), setting.batch_size, np.ones(1), level)


@lru_cache(maxsize=64)
def _laws(setting: Setting, step: int | None) -> tuple[DiscLaw, DiscLaw]:
    """A coarser and a finer law for Bε/κ within half a step; for ε = 0 without one."""
    c = 0.0 if step is None else math.exp(step * _STEP)
    return place(_response(setting), setting.batch_size, c)


def _recursion(
    setting: Setting,
    blocks: int,
    stages: int,
    leading: bool,
    start: float,
    level: int,
    *,
    unseen: float = 0.0,
) -> ResidualGrowth:
    """Growth along all blocks, with a part of what u may lack."""
    variances, branches = [start], []
    first = setting.weight_variance if leading else 1.0
    for _ in range(blocks):
        branch, kappa = [], first * variances[-1]
        for _ in range(stages):
            branch.append(_stage(setting, kappa, level))
            kappa = branch[-1].variance
        branches.append(branch)
        variances.append(variances[-1] + kappa)

    n = setting.batch_size - 1
    g, p = 1.0, 1.0  # gradients of different samples are independent at the top
    stream, at_norms, factors = [n * g + p], [], []
    for branch in reversed(branches):
        inside, row = g, []
        for number, stage in enumerate(reversed(branch)):
            shared = p if number == 0 else 0.0
            u = stage.u + unseen * stage.unseen
            inside = (u + stage.v) * inside + (u / n - stage.v) * shared
            row.append(n * inside)
        before = g
        g += first * inside
        factors.append(g / before)
        stream.append(n * g + p)
        if not leading:
            row[-1] = stream[-1]  # the first batch norm's input is the stream itself
        at_norms.append(row[::-1])
    top = stream[0]
    growth = Estimate(stream[-1] / top, math.nan, _METHOD)
    return ResidualGrowth(
        exponent=_exponent(setting, stages, level),
        factors=np.array(factors[::-1]),
        variances=np.array(variances),
        stream=np.array(stream[::-1]) / top,
        normalisers=np.array(at_norms[::-1]) / top,
        growth=growth,
    )


def _exponent(setting: Setting, stages: int, level: int) -> Estimate:
    """Λ of a stream so large that ε no longer matters in the first stage."""
    first = solve_by_quadrature(replace(setting, eps=0.0))
    value, error = first.rate.value, first.rate.relative_error
    kappa = first.kappa.value
    for _ in range(stages - 1):
        coarse, fine = (_stage(setting, kappa, at) for at in (max(level - 1, 0), level))
        rate = fine.u + fine.v
        error += (abs(coarse.u + coarse.v - rate) + fine.unseen) / rate + 64 * _UNIT
        value, kappa = value * rate * kappa / fine.variance, fine.variance
    return Estimate(value, error * value, _METHOD)
