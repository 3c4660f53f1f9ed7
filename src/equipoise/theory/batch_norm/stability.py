r"""When the symmetric fixed point is stable, and where it stops being so."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Unpack

from scipy.optimize import brentq

from equipoise.numerics.options import named_options
from equipoise.records.estimate import Estimate
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.activation.catalogue import Activation, alpha_relu
from equipoise.theory.batch_norm.fixed_point.solve import solve
from equipoise.theory.batch_norm.setting import (
    SMALLEST_BATCH,
    Setting,
    SettingOptions,
    as_setting,
)

LARGEST_BATCH = 10**6
# Factor between the batch sizes that are tried; no known eigenvalue turns within it.
_GROWTH = 1.5
_LARGEST_ALPHA = 64.0


@dataclass(frozen=True, slots=True)
class Stability:
    """Whether deep networks stay near the BSB1 fixed point.

    Args:
        stable: Whether all forward eigenvalues are below 1.
        margin: 1 minus the largest of them.
        along: Its direction: ``"G"``, ``"L"`` (samples become unequal) or ``"M"`` (their
            correlations do).
        critical_batch_size: The smallest batch size above 4 whose stability differs from that
            of the batch size before it; None if there is none up to 10⁶.
    """

    stable: bool
    margin: Estimate
    along: str
    critical_batch_size: int | None


@named_options
def stability(
    setting: Setting | ActivationLike,
    batch_size: int | None = None,
    **options: Unpack[SettingOptions],
) -> Stability:
    r"""Linear stability of the BSB1 fixed point.

    Stable if :math:`\max(\lambda^\uparrow_G, \lambda^\uparrow_L, \lambda^\uparrow_M) < 1`. A
    stable point need not be the only attractor: ReLU's is stable at every batch size, and yet at
    :math:`B \ge 64` states whose samples differ enough go elsewhere (:func:`iterate_map`).

    Args:
        setting: A :class:`Setting`, or its activation, followed by its batch size and keywords.
        batch_size: Only beside an activation.

    Raises:
        ValueError: If a number is out of range or the activation is not usable.

    Notes:
        The critical batch size is searched for on a geometric grid and by bisection; two
        crossings between neighbouring points of the grid would be missed.

    Examples:
        >>> stability("gelu", 16).critical_batch_size
        39
        >>> stability("tanh", 16).critical_batch_size is None
        True

    References:
        [yang2019], Section 3 and Appendix B.4.
    """
    setting = as_setting(setting, batch_size, options)
    solution = solve(setting)
    along, largest = max(zip("GLM", solution.forward, strict=True), key=lambda part: part[1].value)
    margin = Estimate(1 - largest.value, largest.error, largest.method, stable=solution.stable)
    crossing = _first_change(lambda size: solve(replace(setting, batch_size=size)).stable)
    return Stability(solution.stable, margin, along, crossing)


def alpha_transition(batch_size: int) -> Estimate:
    r"""The power α above which α-ReLU networks break the symmetry between samples.

    Solves :math:`\lambda^\uparrow_L(\alpha, B) = 1` in closed form.

    Args:
        batch_size: Samples that share batch statistics, at least 5.

    Raises:
        ValueError: If ``batch_size < 5``: at 4 the point is stable for every α.

    Examples:
        >>> print(f"{alpha_transition(10).value:.4f}")
        1.4007

    References:
        [yang2019], Fig. 1c, d; here from Appendix B.4.
    """

    def excess(alpha: float) -> float:
        return _along_l(alpha_relu(alpha), batch_size).value - 1

    if excess(_LARGEST_ALPHA) < 0:
        raise ValueError(
            f"alpha-ReLU has no transition at batch_size = {batch_size}: its fixed point is "
            f"stable for every alpha up to {_LARGEST_ALPHA:g}. Use a batch of at least 5."
        )
    # At α = 1, ReLU, λ↑_L < 1 for every B.
    root = float(brentq(excess, 1.0, _LARGEST_ALPHA, xtol=1e-15, rtol=1e-15))
    step = 1e-6 * root
    slope = (excess(root + step) - excess(root - step)) / (2 * step)
    error = 2 * _along_l(alpha_relu(root), batch_size).error / abs(slope) + 1e-15 * root
    return Estimate(root, error, "root of a closed form")


def _along_l(activation: Activation, batch_size: int) -> Estimate:
    return solve(Setting(activation, batch_size)).forward[1]


def _first_change(stable: Callable[[int], bool]) -> int | None:
    """The first batch size at which stability differs from that of the one before."""
    low, start = SMALLEST_BATCH, stable(SMALLEST_BATCH)
    while low < LARGEST_BATCH:
        high = min(LARGEST_BATCH, max(low + 1, math.floor(low * _GROWTH)))
        if stable(high) != start:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if stable(middle) == start else (low, middle)
            return high
        low = high
    return None
