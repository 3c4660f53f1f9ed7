r"""The weight variance at which gradients of networks without normalisation neither grow nor die.

With q as the unknown both conditions are explicit: the fixed point fixes the weight variance, and
what is left is one equation,

.. math:: \sigma_w^2 = \frac{q - \sigma_b^2}{E[\phi(u)^2]}, \qquad
          \chi_1(q) = (q - \sigma_b^2)\,\frac{E[\phi'(u)^2]}{E[\phi(u)^2]} = 1 .
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.optimize import brentq

from equipoise.numerics.options import named_options
from equipoise.records.estimate import Estimate
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.activation.catalogue import Activation
from equipoise.theory.batch_norm.setting import SMALLEST_BATCH, ConvergenceError, Setting
from equipoise.theory.networks.gaussian_averages import ROUNDING, moments
from equipoise.theory.networks.vanilla.variance import mean_square_slope_at_zero

# Where the signal q − σ_b² is searched, per scale of max(σ_b², 1). The sign of χ_1 − 1 counts
# where it exceeds what rounding could make of χ_1 = 1.
_SIGNALS = np.logspace(-6, 6, 49)
_NOISE = 1e-12
# Relative step of q for the slope of χ_1.
_STEP = 1e-3


@dataclass(frozen=True, slots=True)
class EdgeOfChaos:
    """Where gradients neither explode nor vanish without normalisation.

    Args:
        weight_variance: The weight variance at which χ_1 = 1.
        q: Second moment of a pre-activation there; 0 where the edge is the limit of small
            signals.
    """

    weight_variance: Estimate
    q: Estimate


@named_options
def edge_of_chaos(
    activation: ActivationLike, *, bias_variance: float = 0.0, near: float | None = None
) -> EdgeOfChaos:
    r"""Weight variance at which :math:`\chi_1 = \sigma_w^2E[\phi'(u)^2] = 1`.

    Only edges at which the second moment is stable count. Without biases, where φ(0) = 0, the
    edge may be the limit :math:`q \to 0` at :math:`\sigma_w^2 = 1/\phi'(0)^2`, as for tanh; with
    two slopes at 0, their mean square takes the place of :math:`\phi'(0)^2`.

    Args:
        activation: A name, a module, or an elementwise callable on float64 tensors.
        bias_variance: :math:`\sigma_b^2`, the variance of the biases.
        near: Which edge to take where there are several: that whose weight variance is nearest.

    Returns:
        The edge; both numbers with a bound on their numerical error.

    Raises:
        ValueError: If there is no edge, or several and ``near`` is not given, a number is out of
            range, or the activation is not usable. Waves such as sin are searched as far as
            quadrature can follow them.

    Examples:
        >>> print(edge_of_chaos("tanh").weight_variance, edge_of_chaos("relu").weight_variance)
        1 2
        >>> edge = edge_of_chaos("tanh", bias_variance=0.05)
        >>> print(edge.weight_variance, edge.q)
        1.761 0.57005

    References:
        [yang2019], Section 3 (networks without batch norm); [schoenholz2017].
    """
    # Without normalisation the batch size does not matter.
    setting = Setting(activation, SMALLEST_BATCH, bias_variance=bias_variance)
    phi, source = setting.activation, setting.bias_variance
    shape = phi.homogeneity
    if shape is not None and shape.alpha == 1:
        edges = [_of_constant_slopes(phi)] if source == 0 else []
    else:
        edges = [*_small_signals(phi, source), *_with_signal(phi, source)]
    return _only(edges, phi, source, near)


def _of_constant_slopes(phi: Activation) -> EdgeOfChaos:
    """Every q is a fixed point; the returned one is that of inputs of unit second moment."""
    variance = 1 / mean_square_slope_at_zero(phi)
    exact = Estimate(variance, ROUNDING / 4 * variance, "closed form")
    return EdgeOfChaos(exact, exact)


def _small_signals(phi: Activation, source: float) -> list[EdgeOfChaos]:
    """The edge at q → 0, if signals of small size shrink there and do not grow."""
    slope = mean_square_slope_at_zero(phi)
    if source or phi.values(np.zeros(1))[0] != 0 or not 0 < slope < math.inf:
        return []
    # Small, but large enough that E[φ²]/q differs from its limit by more than rounding.
    growths = (float(moments(phi, q).values[0]) / (q * slope) - 1 for q in (1e-4, 1e-3, 1e-2))
    growth = next((growth for growth in growths if abs(growth) > _NOISE), 0.0)
    if growth > 0:
        return []
    variance = Estimate(1 / slope, ROUNDING / 4 / slope, "limit of small signals")
    return [EdgeOfChaos(variance, Estimate(0.0, 0.0, "limit of small signals"))]


def _with_signal(phi: Activation, source: float) -> list[EdgeOfChaos]:
    """Edges at q > σ_b², where χ_1 − 1 changes its sign and q is stable."""
    signals = _SIGNALS * max(source, 1.0)
    distances: list[tuple[float, float, float]] = []
    for s in signals.tolist():
        try:
            distances.append((s, *_distance(phi, source, s)))
        except ConvergenceError:
            # Quadrature cannot follow φ over larger signals: there is an end to the search.
            if not distances:
                raise
            break
    clear = [(s, distance) for s, distance, error in distances if abs(distance) > error + _NOISE]
    edges = []
    for (low, before), (high, after) in pairwise(clear):
        if before * after < 0:
            log_signal = brentq(
                lambda x: _distance(phi, source, math.exp(x))[0],
                math.log(low),
                math.log(high),
                xtol=1e-15,
                rtol=1e-15,
            )
            edges += _stable(phi, source, math.exp(log_signal))
    return edges


def _distance(phi: Activation, source: float, signal: float) -> tuple[float, float]:
    """χ_1 − 1 at q = σ_b² + signal, and a bound on its error."""
    averaged = moments(phi, source + signal)
    (square, _, slope), errors = averaged.values, averaged.errors
    chi = float(signal * slope / square)
    return chi - 1, chi * (float(errors[0] / square + errors[2] / slope) + ROUNDING)


def _stable(phi: Activation, source: float, signal: float) -> list[EdgeOfChaos]:
    """The edge with its errors, or nothing where q runs away from it."""
    averaged = moments(phi, source + signal)
    square, derivative, _ = (float(value) for value in averaged.values)
    variance = signal / square
    if variance * derivative >= 1:
        return []
    distance, noise = _distance(phi, source, signal)
    beyond, _ = _distance(phi, source, signal * (1 + _STEP))
    q_error = signal * (noise + abs(distance)) / max(abs(beyond - distance) / _STEP, ROUNDING)
    # dσ_w²/dq = (1 − χ_q)/E[φ²].
    spread = (1 - variance * derivative) / square * q_error
    spread += variance * (float(averaged.errors[0]) / square + ROUNDING)
    method = "Gaussian quadrature on panels"
    return [
        EdgeOfChaos(Estimate(variance, spread, method), Estimate(source + signal, q_error, method))
    ]


def _only(
    edges: list[EdgeOfChaos], phi: Activation, source: float, near: float | None
) -> EdgeOfChaos:
    where = f"{phi.name} networks with bias_variance = {source:g}"
    if not edges:
        raise ValueError(
            f"{where} have no edge of chaos: chi_1 = 1 at no weight variance at which the second "
            "moment is stable. Try another bias_variance, or a normaliser."
        )
    if near is not None:
        return min(edges, key=lambda edge: abs(edge.weight_variance.value - near))
    if len(edges) > 1:
        found = ", ".join(f"{edge.weight_variance.value:.6g}" for edge in edges)
        raise ValueError(
            f"{where} have several edges of chaos, at weight variances {found}. "
            "Choose one with near=...."
        )
    return edges[0]
