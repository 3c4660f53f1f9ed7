r"""Averages over one and two Gaussian pre-activations, for networks without batch norm.

Symbols: q: second moment, g = 1 - c: one minus the correlation, z: standard normal,
:math:`u = \sqrt q z` and :math:`u_1, u_2`: one and two pre-activations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equipoise.numerics.quadrature import gaussian
from equipoise.theory.activation.catalogue import Activation
from equipoise.theory.activation.unseen import unseen
from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.setting import ConvergenceError

Array = NDArray[np.float64]

# Rounding of sums of a few hundred terms, and of φ itself; kept above what tests measured.
ROUNDING = 16 * float(np.finfo(float).eps)
_GOAL = 1e-13
_LOOSE = 0.01
# Where polynomials through 16 points of a panel miss an entire function by this much, rules of 56
# points are exact to rounding; beyond it (sin at a standard deviation of 150) two may agree by
# accident.
_UNFOLLOWED = 1e-3


@dataclass(frozen=True, slots=True)
class Averaged:
    """Averages and bounds on their errors, each of shape ``[count]``."""

    values: Array
    errors: Array


def piecewise(activation: Activation) -> gaussian.Piecewise:
    """Values and slopes of φ between its kinks, in its own argument: distances to 0 are exact."""
    response = Response(activation, 1.0, 0.0)
    kinks = sorted(activation.kinks, key=lambda kink: kink.at)
    return gaussian.Piecewise(
        lambda x: np.stack(response(x)), response.kinks, np.array([k.power for k in kinks], bool)
    )


def moments(activation: Activation, q: float) -> Averaged:
    r"""Averages over one pre-activation, in this order.

    .. math:: E[\phi(u)^2], \quad
        \partial_q E[\phi(u)^2] = \tfrac1{2q} E[\phi(u)^2(z^2 - 1)], \quad E[\phi'(u)^2]

    The second is :math:`E[\phi'^2 + \phi\phi'']` integrated by parts, which holds for kinks too.
    """
    f = piecewise(activation)
    std = math.sqrt(q)
    cut = gaussian.partition(f, std)

    def combine(values: Array, z: Array) -> Array:
        square, slope = values[0] ** 2, values[1] ** 2
        rest = square * (z**2 - 1) / (2 * q), slope, square * z**2 / (2 * q)
        return np.stack([square, *rest, values[0]])

    values, changes = _refined(
        lambda level: gaussian.average(f, std, combine, level, cut=cut), activation, q
    )
    refuse_unresolved(activation.name, cut, std, values[4], values[0], values[2])
    # The second average is a difference of the fourth and the first over 2q.
    along_q = values[3] + values[0] / (2 * q)
    scales = np.array([values[0], along_q, values[2]])
    # Far out, rounding moves the density by z² times as much.
    scales *= max(1.0, 2 * q * values[3] / values[0] / 4) if values[0] else 1.0
    errors = changes[:3] + ROUNDING * scales
    errors[0] += cut.left_out[0]
    errors[1] += cut.left_out[0] / q
    errors[2] += cut.left_out[-1] + unseen_slopes(activation, std)
    return Averaged(values[:3], errors)


def unseen_slopes(activation: Activation, std: float, mean: float = 0.0) -> float:
    """What averages E[φ′²] over N(μ, σ²) may leave out within rounding of fractional powers."""
    return sum(
        part.squares * math.exp(-(((part.at - mean) / std) ** 2) / 2) / (2.5 * std)
        for part in unseen(activation)
    )


def refuse_unresolved(
    name: str, cut: gaussian.Partition, std: float, mean: float, square: float, slope: float
) -> None:
    """Check that averages over a normal number exist and that no slope fell between the nodes.

    Poincaré's inequality says Var φ ≤ σ²E[φ′²].

    Raises:
        ConvergenceError: If they do not.
    """
    if not cut.whole:
        raise ConvergenceError(
            f"activation {name} grows too fast, or varies too far out: its mean square over "
            "normal pre-activations is infinite, or made by samples rarer than float64 can "
            "follow. Use one that grows slower, or move beta to where it varies."
        )
    resolved = (square - mean**2) * (1 - _LOOSE) <= std**2 * slope + ROUNDING * square
    if cut.deviation > _UNFOLLOWED or not resolved:
        raise _too_steep(name, std)


def _too_steep(name: str, std: float) -> ConvergenceError:
    return ConvergenceError(
        f"activation {name} is too steep on pre-activations of standard deviation {std:.3g}: "
        "quadrature does not resolve where it turns. Use a smaller gamma, weight_variance or "
        "bias_variance."
    )


def pair_moments(activation: Activation, q: float, gap: float) -> Averaged:
    r"""Averages over two pre-activations of correlation 1 - g, in this order.

    .. math:: \tfrac12 E[(\phi(u_1) - \phi(u_2))^2], \quad E[\phi'(u_1)\phi'(u_2)]
    """
    f = piecewise(activation)

    def combine(first: Array, second: Array) -> Array:
        difference = (first[0] - second[0]) ** 2 / 2
        square = first[0] ** 2
        return np.stack([difference, first[1] * second[1], square, first[1] ** 2])

    values, changes = _refined(
        lambda level: gaussian.pair_average(f, math.sqrt(q), gap, combine, level), activation, q
    )
    difference, _, square, slope = values
    scales = np.array([difference + math.sqrt(difference * square), slope])
    errors = changes[:2] + ROUNDING * scales
    cut = gaussian.pair_partition(f, math.sqrt(q))
    if cut.deviation > _UNFOLLOWED:
        raise _too_steep(activation.name, math.sqrt(q))
    errors += 2 * cut.left_out
    errors[1] += _unseen_pairs(activation, f, math.sqrt(q), gap, slope)
    return Averaged(values[:2], errors)


def _unseen_pairs(
    activation: Activation, f: gaussian.Piecewise, std: float, gap: float, slope: float
) -> float:
    """What E[φ′(u₁)φ′(u₂)] may leave out where one of them is within rounding of a power.

    Given that, the other is N((1 − g)k, s²); what both leave out together is less than what one
    leaves out of E[φ′²], and by the Cauchy–Schwarz inequality so is all with E[φ′²].
    """
    alone = unseen_slopes(activation, std)
    if not alone:
        return 0.0
    spread, total = std * math.sqrt(gap * (2 - gap)), alone
    for part in unseen(activation):
        other = gaussian.average(
            f, spread, lambda values, _: np.abs(values[1:]), 0, (1 - gap) * part.at
        )
        density = math.exp(-((part.at / std) ** 2) / 2) / (2.5 * std)
        total += 2 * part.slopes * density * float(other[0])
    return min(total, 2 * math.sqrt(alone * (slope + alone)))


@np.errstate(over="ignore", invalid="ignore")  # an overflow is refused by name
def _refined(
    average: Callable[[int], Array], activation: Activation, q: float
) -> tuple[Array, Array]:
    """Refine until two levels agree; return the finer and the change."""
    fine = average(0)
    for level in range(1, gaussian.LEVELS):
        coarse, fine = fine, average(level)
        if not np.isfinite(fine).all():
            raise ValueError(
                f"activation {activation.name} overflows on pre-activations of second moment "
                f"{q:.3g}. Use one that grows slower, or a smaller weight_variance."
            )
        changes = np.abs(fine - coarse)
        if (changes <= _GOAL * np.abs(fine)).all():
            break
    return fine, changes
