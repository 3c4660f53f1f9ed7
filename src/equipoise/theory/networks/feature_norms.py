r"""Layer norm, RMS norm and group norm: normalisers that use one sample at a time.

Derived here, with the means of [yang2019]. In :math:`h^l = W^l\phi(\gamma\,\mathrm{N}(h^{l-1})
+ \beta) + b^l` the pre-activations of one sample are, at large width, independent normal numbers
of variance q. So

* **groups of m features**, m fixed: a group is to its features what a batch of m is to its
  samples, with q in place of κ. The direction w is uniform, :math:`x\sim\chi^2_{m-1}`, and

  .. math:: R^2 = \frac{qx}{qx + m\varepsilon}, \quad s^2 = \frac{qx}m + \varepsilon, \quad
            \tau = 1 - (1 - R^2)^2 ;

  gradients of a group's features are independent and equally large, which is the unit matrix
  where a batch has G, so only the diagonal part of batch norm's rate is left;
* **groups that grow with the width**, layer norm and RMS norm among them: s² is q + ε for every
  sample, the mean over features vanishes, and so does what s feeds back to the gradient.

The batch size plays no role, and averages over one number suffice.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from equipoise.numerics.checks import check_whole
from equipoise.numerics.options import named_options
from equipoise.numerics.quadrature import gaussian, panels
from equipoise.records.estimate import Estimate
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.activation.catalogue import Activation, Kink
from equipoise.theory.batch_norm.averages import compute
from equipoise.theory.batch_norm.averages.polynomials import farthest, kinked_averages
from equipoise.theory.batch_norm.averages.response import (
    SLOPES,
    VALUES,
    Averages,
    Response,
    carried_out,
)
from equipoise.theory.batch_norm.averages.response import unseen_slopes as unseen_within
from equipoise.theory.batch_norm.disc.cuts import resolving_cuts
from equipoise.theory.batch_norm.fixed_point.radius import (
    RadialGrid,
    RadialLaw,
    radial_grid,
    without_eps,
)
from equipoise.theory.batch_norm.setting import (
    SMALLEST_BATCH,
    ConvergenceError,
    Setting,
    SettingOptions,
    as_setting,
)
from equipoise.theory.networks.gaussian_averages import (
    piecewise,
    refuse_unresolved,
    unseen_slopes,
)

Array = NDArray[np.float64]

_UNIT, _TINY = float(np.finfo(float).eps), float(np.finfo(float).tiny)
# Nodes and weights on the sphere round more: of 500 random settings, errors of 64 and of 192
# roundings were short at one each, by a tenth and by a half.
_ON_SPHERE = 192
_GOAL, _ROUNDING, _FAR_ROUNDING = 1e-12, 64 * _UNIT, 4 * _UNIT
# A q below this fraction of the largest counts as no signal; the second allows for rounding.
_SMALLEST, _KEPT = 1e-14, 1 - 1e-12
_RADIAL_LEVEL, _LOOSE = 3, 0.01
# Panels towards what is steep: longest, in standard deviations, and rules.
_LONGEST, _STEEP_RULES = 1.5, tuple(panels.analytic(count) for count in (14, 20, 28))


class _UnresolvedError(ConvergenceError):
    """Nodes do not resolve where an activation turns."""


@dataclass(frozen=True, slots=True)
class _Passed:
    """What one layer makes of q.

    Args:
        q: The next layer's q.
        growth: Of gradients.
        rounding: By how much rounding moves averages, in units of its own.
        unseen: Parts of either that quadrature may leave out.
    """

    q: float
    growth: float
    rounding: float
    unseen: tuple[float, float]


# From q and a level of refinement.
Layer = Callable[[float, int], _Passed]


@dataclass(frozen=True, slots=True)
class FeatureNorm:
    """Deep inside a wide network whose normaliser works on features.

    Args:
        q: Second moment of a pre-activation.
        rate: Factor per layer on the squared gradient norm, on the way back.
    """

    q: Estimate
    rate: Estimate


@named_options
def layer_norm(
    setting: Setting | ActivationLike, **options: Unpack[SettingOptions]
) -> FeatureNorm:
    r"""Growth of gradients under layer norm or RMS norm in the wide limit.

    .. math:: q = \sigma_w^2 E[\phi(\gamma Rz + \beta)^2] + \sigma_b^2, \qquad
              \lambda = \frac{\sigma_w^2\gamma^2\,E[\phi'(\gamma Rz + \beta)^2]}{q + \varepsilon},
              \qquad R^2 = \frac q{q + \varepsilon}

    with z standard normal. Batch norm at a large batch has the variance of φ where this has its
    second moment, so that layer norm's rate is the smaller one; for ReLU it is exactly 1.

    Args:
        setting: A :class:`Setting`, whose batch size does not matter; or its activation and
            keywords.

    Returns:
        q and the rate, each with a bound on its numerical error. Networks of width N differ
        by terms of order 1/N.

    Raises:
        ValueError: If a number is out of range or the activation is not usable.

    Examples:
        >>> print(layer_norm("relu").rate)
        1
        >>> print(layer_norm("identity", bias_variance=0.25).rate)  # 1 / (1 + 1/4)
        0.8

    References:
        Derived in this module from the methods of [yang2019].
    """
    setting = _of_any_batch(setting, SMALLEST_BATCH, options)
    phi, beta = setting.activation, setting.beta
    f = piecewise(phi)

    def layer(q: float, level: int) -> _Passed:
        variance = q + setting.eps
        std = setting.gamma * math.sqrt(q / variance)
        cut = gaussian.partition(f, std, beta)
        mean, square, slope, *far = gaussian.average(f, std, _moments, level, beta, cut).tolist()
        refuse_unresolved(phi.name, cut, std, mean, square, slope)
        return _Passed(
            q=setting.weight_variance * square + setting.bias_variance,
            growth=setting.weight_variance * setting.gamma**2 * slope / variance,
            rounding=max(far[0] / max(square, _TINY), far[1] / max(slope, _TINY)),
            unseen=(
                float(cut.left_out[0]) / max(square, _TINY),
                (float(cut.left_out[-1]) + unseen_slopes(phi, std, beta)) / max(slope, _TINY),
            ),
        )

    return _solve(setting, layer, gaussian.LEVELS, "Gaussian quadrature on panels")


@named_options
def group_norm(
    setting: Setting | ActivationLike, group_size: int, **options: Unpack[SettingOptions]
) -> FeatureNorm:
    r"""Growth of gradients under group norm with a fixed number of features per group.

    At ε = 0, γ = 1, β = 0, with w one coordinate of a uniform direction in m - 1 dimensions,

    .. math:: q = \sigma_w^2 E[\phi(w)^2] + \sigma_b^2, \qquad
              \lambda = \frac{\sigma_w^2\,E[(m - 1 - w^2)\,\phi'(w)^2]}{(m - 3)\,q},

    and at ε > 0 :math:`\lambda = \frac{\sigma_w^2}m E_x[s^{-2} E\{(m-1-\tau w^2) f'(Rw)^2\}]`.
    It tends to :func:`layer_norm`'s as m grows.

    Args:
        setting: A :class:`Setting`, whose batch size does not matter; or its activation and
            keywords.
        group_size: m, features per group and sample, at least 4; positions of a feature map are
            not part of the derivation.

    Raises:
        ValueError: If ``group_size < 4``, where the gradient has no second moment, a number is
            out of range, or the activation is not usable.

    Examples:
        >>> print(group_norm("identity", 8).rate)  # (m - 2) / (m - 3)
        1.2

    References:
        Derived in this module from the methods of [yang2019].
    """
    # With fewer features per group the gradient has no second moment.
    group_size = check_whole("group_size", group_size, SMALLEST_BATCH)
    setting = _of_any_batch(setting, group_size, options)
    method = f"quadrature over {group_size} features"
    f = Response.of(setting).within(group_size)
    if f.kinks.size and not (f.activation.turns and not f.has_powers):
        # Panels between kinks; those of a steep function are narrowed instead.
        try:
            return _solve(setting, _Groups(setting).layer, compute.levels(f), method)
        except _UnresolvedError:
            if f.has_powers:
                raise
    elif not f.activation.turns:
        with contextlib.suppress(_UnresolvedError):
            layer = _Groups(setting).layer
            # One level more: the radius may need it.
            return _solve(setting, layer, compute.GAUSS_LEVELS + 1, method, settled=True)
    return _solve(setting, _Groups(setting, steep=True).layer, len(_STEEP_RULES), method)


def _of_any_batch(
    setting: Setting | ActivationLike, batch_size: int, options: SettingOptions
) -> Setting:
    """The setting with another batch size, where samples do not interact."""
    if isinstance(setting, Setting):
        return replace(as_setting(setting, None, options), batch_size=batch_size)
    return Setting(setting, batch_size, **options)


class _Groups:
    """One layer of groups; averages are reused while q stays near where they were made."""

    def __init__(self, setting: Setting, *, steep: bool = False) -> None:
        self.setting, self.steep = setting, steep
        m = setting.batch_size
        self.f = Response.of(setting).within(m)
        self.breaks = compute.breaks(self.f, m)
        self.missed = 0.0, 0.0
        self._steepness = _steepness(setting.activation) * setting.gamma
        if steep:
            self.f, self.missed = _cut_where_steep(self.f, m)
        self._kept: dict[int, tuple[RadialGrid, Averages]] = {}

    def layer(self, q: float, level: int) -> _Passed:
        """Give the next layer's q and the growth of gradients."""
        m, variance = self.setting.batch_size, self.setting.weight_variance
        averages, law = self._at(q, level)
        square = averages.square(VALUES, 0) + averages.mean**2
        self._refuse_unresolved(averages, law.radius)
        tau = 1 - (1 - law.radius**2) ** 2
        slopes = (m - 1) * averages.square(SLOPES, 0) - tau * averages.square(SLOPES, 2)
        growth = float(law.per_variance @ slopes)
        missed = [
            size * part / max(float(np.sqrt(law.weight @ averages.square(order, 0))), 1e-300)
            for size, part, order in zip((0.8, 0.6), self.missed, (VALUES, SLOPES), strict=True)
        ]
        unseen = float(law.per_variance @ self._unseen(law.radius)) / max(growth, 1e-300)
        return _Passed(
            q=variance * float(law.weight @ square) + self.setting.bias_variance,
            growth=variance / m * growth,
            rounding=self._rounding(averages),
            unseen=(missed[0], missed[1] + unseen + self._lost(law, square, growth)),
        )

    def _lost(self, law: RadialLaw, square: Array, growth: float) -> float:
        """By how much of itself the growth is moved by the rounding of slopes.

        Slopes such as 1 - tanh² are differences: they lose their digits where values are far
        larger, and unlike normal numbers the numbers of a group cannot leave such a place.
        """
        values = (self.setting.batch_size - 1) * float(law.per_variance @ square)
        part = _UNIT * self._steepness * math.sqrt(values) / math.sqrt(max(growth, _TINY))
        return 2 * part + part**2

    def _unseen(self, radii: Array) -> Array:
        """What averages of (m - 1) f′² may leave out beside fractional powers, at each radius."""
        if not self.f.kinks.size or self.steep:  # cuts are no kinks
            return np.zeros_like(radii)
        m = self.setting.batch_size
        return (m - 1) * unseen_within(self.f, m, radii)

    def _rounding(self, averages: Averages) -> float:
        """Rounding of w moves its density by w²/(1 - w²/n) times as much."""
        n = self.setting.batch_size - 1
        far = max(
            float(
                (averages.square(order, 2) / np.maximum(averages.square(order, 0), 1e-300)).max()
            )
            for order in (VALUES, SLOPES)
        )
        return _ON_SPHERE + far / max(1 - far / n, _UNIT)

    def _refuse_unresolved(self, averages: Averages, radius: Array) -> None:
        """The lowest eigenvalue on the sphere bounds slopes: E[(n − w²) f′²] ≥ (n − 1) Var f."""
        n = self.setting.batch_size - 1
        energy = n * averages.square(SLOPES, 0) - averages.square(SLOPES, 2)
        if (radius**2 * energy < (1 - _LOOSE) * (n - 1) * averages.square(VALUES, 0)).any():
            raise _UnresolvedError(
                f"activation {self.setting.activation.name} is too steep at gamma = "
                f"{self.setting.gamma:g}: quadrature does not resolve where it turns. Use a "
                "smaller gamma."
            )

    def _at(self, q: float, level: int) -> tuple[Averages, RadialLaw]:
        m, eps = self.setting.batch_size, self.setting.eps
        if eps == 0:
            return self._averages(np.ones(1), level), without_eps(m, q)
        kept = self._kept.get(level)
        if kept is None or not kept[0].reaches(q):
            grid = radial_grid(m, eps, q, self.breaks, min(level + self.steep, _RADIAL_LEVEL))
            kept = grid, self._averages(grid.radius, level)
            self._kept[level] = kept
        return kept[1], kept[0].law(q)

    def _averages(self, radii: Array, level: int) -> Averages:
        m = self.setting.batch_size
        if not self.steep:
            return compute.one_sample_averages(self.f, m, radii, level)
        with np.errstate(over="ignore", invalid="ignore"):
            plan = kinked_averages(self.f, m, radii, _STEEP_RULES[level], splits=1, terms=2)
            return carried_out(self.f, [plan])[0]


def _steepness(activation: Activation) -> float:
    """Largest slope over largest value."""
    special = [kink.at for kink in activation.kinks] + list(activation.turns)
    values, slopes = activation(np.union1d(np.linspace(-20, 20, 4001), special))
    known = np.abs(slopes[np.isfinite(slopes)])
    return float(known.max(initial=0) / max(np.abs(values).max(), _TINY))


def _cut_where_steep(f: Response, m: int) -> tuple[Response, tuple[float, float]]:
    """The response cut where polynomials follow it, and what they miss of values and slopes."""
    reach = farthest(f, m, np.ones(1))
    cuts, missed = resolving_cuts(f, m, f.gamma * reach)
    # The density of w must be resolved as well, at smaller radii too.
    grid = np.arange(-reach, reach, _LONGEST)
    nearer = _LONGEST * 0.5 ** np.arange(1, 48)
    cuts = np.union1d(cuts, f.beta + f.gamma * np.concatenate([grid, -nearer, nearer]))
    kinks = tuple(Kink(cut) for cut in cuts.tolist())
    return replace(f, activation=replace(f.activation, kinks=kinks, turns=())), missed


def _moments(values: Array, z: Array) -> Array:
    square, slope = values**2
    return np.stack([values[0], square, slope, square * z**2, slope * z**2])


def _solve(
    setting: Setting, layer: Layer, levels: int, method: str, *, settled: bool = False
) -> FeatureNorm:
    """Refine the fixed point of q and the growth there until two levels agree.

    Raises:
        _UnresolvedError: If they must, by ``settled``, but do not.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        start = _signal(setting, layer)
        fine, last = _settle(setting, layer, 0, start)
        change = np.zeros(2)
        for level in range(1, levels):
            before = change
            coarse, (fine, last) = fine, _settle(setting, layer, level, fine[0])
            if not np.isfinite(fine).all():
                raise ValueError(
                    f"activation {setting.activation.name} overflows on normalised features at "
                    f"gamma = {setting.gamma:g}, beta = {setting.beta:g}. Use one that grows "
                    "slower."
                )
            change = np.abs(fine - coarse)
            if (change <= _GOAL * np.abs(fine)).all():
                break
        else:
            if settled:
                raise _UnresolvedError("two levels do not agree")
            # The last level may be farther off than the one before.
            change = np.maximum(change, before)
    rounding = _ROUNDING + _FAR_ROUNDING * last.rounding
    relative = rounding + last.unseen[0]  # the growth follows q
    errors = change + relative * np.abs(fine) * _amplification(setting, layer, fine[0])
    errors[1] += last.unseen[1] * fine[1]
    if not ((errors <= np.abs(fine)).all() and last.unseen[1] < 1):
        raise ConvergenceError(
            f"not a digit of q and the rate of {setting.activation.name} is known at gamma = "
            f"{setting.gamma:g}, beta = {setting.beta:g}: it varies too rarely, turns too "
            "steeply, or its slopes barely have a second moment. Move beta, or use another."
        )
    q, rate = (Estimate(float(v), float(e), method) for v, e in zip(fine, errors, strict=True))
    return FeatureNorm(q, rate)


def _signal(setting: Setting, layer: Layer) -> float:
    """A first q, the largest that the next layer keeps or enlarges."""
    q = limit = layer(1.0 if setting.eps == 0 else 1e18 * setting.eps, 0).q
    if setting.eps == 0 and q > 0:
        return q
    # At a small q, where φ is flat, averages may have no digits left: larger ones were not kept.
    with contextlib.suppress(ConvergenceError):
        while q > _SMALLEST * limit:
            if layer(q, 0).q >= q * _KEPT:
                return q
            q /= 2
    raise ValueError(
        f"no signal passes {setting.activation.name} at eps = {setting.eps:g}, gamma = "
        f"{setting.gamma:g}, beta = {setting.beta:g}: pre-activations die out with depth. Use "
        "a smaller eps, or move beta."
    )


def _settle(setting: Setting, layer: Layer, level: int, start: float) -> tuple[Array, _Passed]:
    """The fixed point of q near a start and the growth there; q is explicit at ε = 0."""
    if setting.eps == 0:  # and the growth of gradients is like 1/q
        passed = layer(1.0, level)
        return np.array([passed.q, passed.growth / passed.q]), passed

    def log_ratio(x: float) -> float:
        return math.log(layer(math.exp(x), level).q) - x

    centre, down, up = math.log(start), 1e-6, 1e-6
    while log_ratio(centre - down) < 0:
        down *= 8
    while log_ratio(centre + up) > 0:
        up *= 8
    q = math.exp(brentq(log_ratio, centre - down, centre + up, xtol=1e-15, rtol=1e-15))
    passed = layer(q, level)
    return np.array([q, passed.growth]), passed


def _amplification(setting: Setting, layer: Layer, q: float) -> float:
    """Errors of F grow by 1/(1 − F′) where q = F(q) is solved."""
    if setting.eps == 0:
        return 1.0
    step = 1e-4
    ratio = layer(q * (1 + step), 0).q / layer(q * (1 - step), 0).q
    slope = math.log(ratio) / (2 * step)
    if abs(1 - slope) < 1e-9:
        raise ConvergenceError(
            f"the fixed point of q is critical at eps = {setting.eps}: it does not settle. Try a "
            "slightly different eps."
        )
    return max(1.0, 1 / abs(1 - slope))
