r"""The mildest change with which a network of a given depth stays trainable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Unpack

from scipy.optimize import brentq

from equipoise.numerics.checks import check_positive, check_whole
from equipoise.numerics.options import named_options
from equipoise.records.estimate import Estimate
from equipoise.theory.activation.adapt import ActivationLike, as_activation
from equipoise.theory.activation.catalogue import ACTIVATIONS, Activation
from equipoise.theory.batch_norm.explosion import TRAINABLE_FACTOR, max_trainable_depth
from equipoise.theory.batch_norm.fixed_point.critical_eps import critical_eps
from equipoise.theory.batch_norm.fixed_point.solve import bsb1_fixed_point
from equipoise.theory.batch_norm.setting import Setting, SettingOptions, as_setting
from equipoise.theory.batch_norm.spectra.eigenvalues import backward_spectrum

Knob = Literal["gamma", "beta", "eps", "activation"]

# One of each kind is enough for a ranking.
CANDIDATES = (
    "identity", "relu", "leaky_relu(0.2)", "elu", "selu", "celu", "gelu", "silu", "mish",
    "softplus", "tanh", "erf", "sigmoid", "softsign", "hardtanh", "hardswish", "sin",
)  # fmt: skip

# Search ranges: γ from 2^-8 to 2^8 times its start, β up to 8 away, ε upwards until all samples
# are equal.
_GAMMA_STEPS = [step / 2 for step in range(1, 17)]
_BETA_STEPS = [step / 4 for step in range(1, 33)]
# A direction of γ is left when growth has worsened over a factor of four. Of 340 directions (17
# activations, B = 8 and 32, five pairs of ε and β) none came back; 33 of them were not followed to
# the end, because steep activations take seconds a point. β has no such rule: tanh's growth at
# ε > 0 and B = 4 worsens up to β = 2.25 and is best at 3.5.
_WORSE_IN_A_ROW = 4
_EPS_FACTOR, _EPS_HALVINGS = 4.0, 7
_SMALLEST_EPS, _LARGEST_EPS = 1e-5, 1e6
_PRECISION = 1e-3
# Of the variance that batch norm divides by, at least this part must be signal, not ε.
_LEAST_SIGNAL = 0.01


@dataclass(frozen=True, slots=True)
class Ranked:
    """One activation in a ranking.

    Args:
        activation: Its name.
        rate: Its explosion rate at the given setting.
        max_depth: The depth that this leaves trainable.
    """

    activation: str
    rate: Estimate
    max_depth: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """The value of a knob that makes a depth trainable.

    Args:
        knob: Which knob.
        start: Its value at the start.
        value: The value nearest to ``start`` with which the depth is trainable; None if there
            is none.
        best: The same value; without one, the best that was searched.
        rate: The explosion rate at ``best``.
        max_depth: The depth that this rate leaves trainable.
        reason: Why there is no value, or what the value achieves.
        ranking: For the knob ``"activation"``, all candidates, the deepest first.
    """

    knob: Knob
    start: float | str
    value: float | str | None
    best: float | str
    rate: Estimate
    max_depth: float
    reason: str
    ranking: tuple[Ranked, ...] = ()

    def __str__(self) -> str:
        """The value, and what it achieves; without one, why.

        Examples:
            >>> print(tune("relu", 64, depth=60, knob="beta"))
            beta = 0.4006: the nearest beta at which gradients grow ×1.306 per layer
        """
        if self.value is None:
            return f"no {self.knob} found: {self.reason}"
        value = self.value if isinstance(self.value, str) else f"{self.value:.4g}"
        return f"{self.knob} = {value}: {self.reason}"


@named_options
def tune(
    setting: Setting | ActivationLike,
    batch_size: int | None = None,
    *,
    depth: int,
    knob: Knob = "gamma",
    factor: float = TRAINABLE_FACTOR,
    candidates: Sequence[ActivationLike] = CANDIDATES,
    rate: Callable[[Setting], Estimate] | None = None,
    **options: Unpack[SettingOptions],
) -> Tuning:
    r"""Find the mildest change of one knob with which ``depth`` layers stay trainable.

    Trainable means that the squared gradients of the first and the last layer differ by at most
    :math:`e^{\mathrm{factor}}`: :math:`\mathrm{depth}\cdot|\log\lambda_G| \le \mathrm{factor}`.
    Skipped are settings whose fixed point is unstable, because networks do not stay there, and
    those at which samples become practically equal: less than 1 % of the variance that batch norm
    divides by is signal, the rest is ε.

    Args:
        setting: Where the search starts: a :class:`Setting`, or its activation, followed by its
            batch size and keywords.
        batch_size: Only beside an activation.
        depth: Layers that must train, at least 1.
        knob: ``"gamma"`` (searched over :math:`2^{-8}` to :math:`2^8` times its start),
            ``"beta"`` (up to 8 to either side), ``"eps"`` (upwards only, to just below
            :func:`critical_eps`) or ``"activation"``.
        factor: Logarithm of the ratio of squared gradients that still trains.
        candidates: What to rank for the knob ``"activation"``; those that pass no signal at
            this setting are left out.
        rate: Growth of squared gradients per layer at a setting, where it is not batch norm's
            :func:`explosion_rate`, such as ``lambda setting: layer_norm(setting).rate`` for the
            knobs ``"gamma"`` and ``"beta"``.

    Returns:
        The value, on the trainable side of the boundary to 0.1 % of the search's step, with the
        rate and depth that it leads to, or None with the reason. Every activation obeys
        :math:`\lambda_G \ge \frac{B-2}{B-3}` at ε = 0, the rate of a linear network, so that a
        small batch bounds the depth.

    Raises:
        ValueError: If a number is out of range, the activation is not usable, or the knob is not
            one of the four, or not one of the two that ``rate`` allows.

    Notes:
        The search walks away from the start in steps; a trainable window narrower than a step
        (a factor of √2 in γ, 4 in ε, 1/4 in β) may be missed. It leaves a direction of γ in which
        growth has worsened four steps in a row.

    Examples:
        >>> tuning = tune("relu", 64, depth=60, knob="beta")
        >>> round(tuning.value, 2), round(tuning.max_depth)
        (0.4, 60)
        >>> print(tune("tanh", 8, depth=200, knob="gamma").value)
        None

        With layer norm, whose rate does not depend on the batch:

        >>> from equipoise.theory import layer_norm
        >>> rate = lambda setting: layer_norm(setting).rate
        >>> round(tune("tanh", 8, depth=100, knob="gamma", rate=rate).value, 2)
        0.99

    References:
        [yang2019], Fig. 4 shows the three knobs; the inverse problem is posed here.
    """
    if knob not in ("gamma", "beta", "eps", "activation"):
        raise ValueError(f"knob must be gamma, beta, eps or activation, got {knob!r}.")
    depth = check_whole("depth", depth, 1)
    check_positive(factor=factor)
    setting = as_setting(setting, batch_size, options)
    if isinstance(candidates, str):
        raise ValueError(f"candidates must be a list, got {candidates!r}: write [{candidates!r}].")
    if rate is not None and knob not in ("gamma", "beta"):
        raise ValueError(f"with rate=, knob must be gamma or beta, got {knob!r}.")
    if knob == "activation":
        return _rank(setting, depth, factor, candidates)
    return _tune_number(_Search(setting, depth, factor, knob, rate))


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """One knob of one network, as a function of its value."""

    setting: Setting
    depth: int
    factor: float
    knob: Literal["gamma", "beta", "eps"]
    other_rate: Callable[[Setting], Estimate] | None = None

    @property
    def start(self) -> float:
        return float(getattr(self.setting, self.knob))

    def at(self, value: float) -> Setting:
        """The setting with the knob turned to a value."""
        change: dict[str, Any] = {self.knob: value}
        return replace(self.setting, **change)

    def rate(self, value: float) -> Estimate:
        setting = self.at(value)
        return _rate(setting) if self.other_rate is None else self.other_rate(setting)

    def is_lost(self, value: float, rate: Estimate) -> bool:
        """Whether deep networks leave the state of the rate, or batch norm divides by ε alone."""
        if self.other_rate is not None:
            return rate.stable is False
        return not rate.stable or _is_collapsed(self.at(value))

    def slack(self, value: float) -> float:
        """Share of the factor that the depth leaves unused; negative if it is too deep."""
        try:
            rate = self.rate(value)
        except ValueError:  # no signal passes there, or nothing converges
            return -math.inf
        if not rate.value > 0 or self.is_lost(value, rate):
            return -math.inf
        return 1 - self.depth * abs(math.log(rate.value)) / self.factor

    def paths(self) -> Iterator[Iterator[float]]:
        """Values to try in turn, on every side of the start."""
        if self.knob == "gamma":
            yield (self.start * 2**-step for step in _GAMMA_STEPS)
            yield (self.start * 2**step for step in _GAMMA_STEPS)
        elif self.knob == "beta":
            yield (self.start + step for step in _BETA_STEPS)
            yield (self.start - step for step in _BETA_STEPS)
        else:
            yield self._eps_path()

    def _eps_path(self) -> Iterator[float]:
        """Upwards in factors, then closer and closer to where samples become equal."""
        critical = critical_eps(self.setting)
        value = max(self.start, _SMALLEST_EPS)
        near = [critical * (1 - 2**-halving) for halving in range(1, _EPS_HALVINGS + 1)]
        while value < _LARGEST_EPS:
            following = value * _EPS_FACTOR
            yield from (v for v in near if max(value, self.start) < v < following)
            # Above the critical ε another state may survive for a while.
            if following > critical and _is_collapsed(self.at(following)):
                return
            yield following
            value = following

    def distance(self, value: float) -> float:
        """How far a value is from the start; γ by its logarithm."""
        if self.knob == "gamma":
            return abs(math.log(value / self.start))
        return abs(value - self.start)


def _tune_number(search: _Search) -> Tuning:
    at_start = search.rate(search.start)
    finish = partial(Tuning, search.knob, search.start)
    if search.slack(search.start) >= 0:
        depth = max_trainable_depth(at_start, search.factor)
        return finish(search.start, search.start, at_start, depth, "trainable without a change")
    found, best = [], (search.slack(search.start), search.start)
    for path in search.paths():
        inside, nearest = _first_inside(search, path)
        best = max(best, nearest)
        if inside is not None:
            found.append(inside)
    if found:
        value = min(found, key=search.distance)
        rate = search.rate(value)
        depth = max_trainable_depth(rate, search.factor)
        reason = f"the nearest {search.knob} at which gradients grow ×{rate.value:.4g} per layer"
        return finish(value, value, rate, depth, reason)
    if best[0] == -math.inf:
        depth = max_trainable_depth(at_start, search.factor) if at_start.value > 0 else 0.0
        reason = (
            f"at every {search.knob} that was searched the fixed point is unstable, so that "
            "networks leave it, or all samples become equal. Use another activation or batch size."
        )
        return finish(None, search.start, at_start, depth, reason)
    rate = search.rate(best[1])
    depth = max_trainable_depth(rate, search.factor)
    return finish(None, best[1], rate, depth, _why_none(search, rate, depth, best[1]))


def _first_inside(
    search: _Search, path: Iterator[float]
) -> tuple[float | None, tuple[float, float]]:
    """Walk until the depth is trainable and find where that begins; also return the best slack."""
    before, best = search.start, (-math.inf, search.start)
    last, worse = search.slack(search.start), 0
    for value in path:
        slack = search.slack(value)
        best = max(best, (slack, value))
        if slack >= 0:
            return _boundary(search.slack, before, value), best
        worse = worse + 1 if slack < last else 0
        if search.knob == "gamma" and worse == _WORSE_IN_A_ROW:
            break
        before, last = value, slack
    return None, best


def _boundary(slack: Callable[[float], float], outside: float, inside: float) -> float:
    """The point in between at which the slack turns positive, on its trainable side."""

    def finite(value: float) -> float:
        return max(slack(value), -1e3)

    if slack(inside) == 0:
        return inside
    width = abs(inside - outside)
    root = float(brentq(finite, outside, inside, xtol=0.25 * _PRECISION * width, rtol=1e-12))
    step = math.copysign(0.5 * _PRECISION * width, inside - outside)
    while slack(root) < 0 and (inside - root) * step > 0:
        root += step
    return root if slack(root) >= 0 else inside


def _why_none(search: _Search, rate: Estimate, depth: float, best: float) -> str:
    setting = search.setting
    B, phi = setting.batch_size, setting.activation
    floor = (B - 2) / (B - 3)
    deepest = search.factor / math.log(floor)
    is_batch_norm = search.other_rate is None
    if is_batch_norm and search.knob != "eps" and setting.eps == 0 and deepest < search.depth:
        return (
            f"at batch size {B} and eps = 0 even a linear network's gradients grow "
            f"×{floor:.4g} per layer, which leaves {deepest:.0f} layers. Use a larger batch or "
            "the knob eps."
        )
    scales_output = phi.homogeneity is not None and setting.beta == 0
    if is_batch_norm and search.knob == "gamma" and scales_output:
        return (
            f"{phi.name} is positive-homogeneous: gamma only scales its output. Use the knob beta "
            "or eps."
        )
    if search.knob == "eps":
        return (
            f"no eps leaves {search.depth} layers trainable: gradients grow ×{rate.value:.4g} per "
            f"layer at {best:.4g}, and beyond it samples soon become equal. Use the knob beta or "
            "activation."
        )
    return (
        f"no {search.knob} that was searched leaves {search.depth} layers trainable; the best is "
        f"{best:.4g} with ×{rate.value:.4g} per layer and {depth:.0f} layers."
    )


def _rank(
    setting: Setting, depth: int, factor: float, candidates: Sequence[ActivationLike]
) -> Tuning:
    activation = setting.activation

    def ranked(candidate: Activation) -> tuple[bool, Ranked]:
        """Whether deep networks can use the candidate, and its rank."""
        there = replace(setting, activation=candidate)
        rate = _rate(there)
        deepest = max_trainable_depth(rate, factor) if rate.value > 0 else 0.0
        sound = rate.value > 0 and rate.stable is not False
        sound = sound and not _is_collapsed(there)
        return sound, Ranked(candidate.name, rate, deepest)

    start = ranked(activation)
    others = []
    for candidate in map(as_activation, candidates):
        if candidate is activation or candidate.name in ACTIVATIONS.keys() & {activation.name}:
            continue
        try:
            others.append(ranked(candidate))
        except ValueError:  # no signal passes it here
            continue
    # Unusable candidates last: their rate is not that of a deep network.
    ordered = sorted([start, *others], key=lambda pair: (not pair[0], -pair[1].max_depth))
    suitable = [rank for sound, rank in ordered if sound and rank.max_depth >= depth]
    finish = partial(Tuning, "activation", activation.name, ranking=tuple(r for _, r in ordered))
    if start[0] and start[1].max_depth >= depth:
        reason = "trainable without a change"
        return finish(activation.name, activation.name, start[1].rate, start[1].max_depth, reason)
    if suitable:
        mildest = suitable[-1]
        reason = "the candidate that changes gradients least and suffices"
        return finish(
            mildest.activation, mildest.activation, mildest.rate, mildest.max_depth, reason
        )
    best = ordered[0][1]
    reason = (
        f"no candidate leaves {depth} layers trainable at batch size {setting.batch_size}; the "
        f"best, {best.activation}, leaves {best.max_depth:.0f}."
    )
    return finish(None, best.activation, best.rate, best.max_depth, reason)


def _is_collapsed(setting: Setting) -> bool:
    """Whether samples become as good as equal: batch norm divides by ε, R² being below 1 %."""
    if setting.eps == 0:
        return False
    kappa = bsb1_fixed_point(setting).kappa.value
    signal = kappa * (setting.batch_size - 1) / setting.batch_size
    return signal < _LEAST_SIGNAL * (signal + setting.eps)


def _rate(setting: Setting) -> Estimate:
    """The explosion rate; its stability is on the estimate, not in a warning."""
    return backward_spectrum(setting).G
