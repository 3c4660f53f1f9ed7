r"""How two different batches correlate deep inside one network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Unpack

from equipoise.numerics.options import named_options
from equipoise.records.estimate import Estimate
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.batch_norm.fixed_point.solve import Method, solve
from equipoise.theory.batch_norm.setting import Setting, SettingOptions, as_setting


@dataclass(frozen=True, slots=True)
class CrossBatch:
    r"""The fixed point of two batches (CBSB1) and its eigenvalue.

    Args:
        c: Second moment of two samples from different batches; the B × B block is constant.
        correlation: The same divided by q.
        forward: Factor per layer on a deviation Ξ of that block with GΞG = Ξ.
        backward: Factor per layer on the covariance of two batches' gradients. It equals
            ``forward`` for every activation.
    """

    c: Estimate
    correlation: Estimate
    forward: Estimate
    backward: Estimate


@named_options
def cross_batch(
    setting: Setting | ActivationLike,
    batch_size: int | None = None,
    *,
    method: Method = "auto",
    **options: Unpack[SettingOptions],
) -> CrossBatch:
    r"""How two batches correlate deep in a network, and how fast that is reached.

    .. math:: c_{CB} = \sigma_w^2 (E\phi(w_1))^2 + \sigma_b^2, \qquad
              \lambda_{CB} = \frac{2\,\Gamma(\frac B2)^2}{\Gamma(\frac{B-1}2)^2}
              \frac{B}{(B-1)^2}\frac{E[\phi(w_1)w_1]^2}{\kappa}

    (ε = 0, γ = 1, β = 0). Gradients of one batch explode, but what two batches' gradients have in
    common dies out wherever :math:`\lambda_{CB} < 1`.

    Args:
        setting: A :class:`Setting`, or its activation, followed by its batch size and keywords.
        batch_size: Only beside an activation.
        method: As in :func:`backward_spectrum`.

    Returns:
        Second moment, correlation and eigenvalues, each with a bound on its numerical error.

    Raises:
        ValueError: As :func:`backward_spectrum`.

    Examples:
        >>> pair = cross_batch("relu", 8)
        >>> print(pair.c, pair.correlation, pair.forward)
        0.1709 0.3418 0.70968
        >>> print(cross_batch("abs", 8).backward)  # an even function: no gradient in common
        0

    References:
        [yang2019], Appendices D, E and F; the equality of both eigenvalues and ε > 0 derived here.
    """
    solution = solve(as_setting(setting, batch_size, options), method)
    c, q = solution.cross_covariance, solution.q
    correlation = c.value / q.value if q.value else 1.0
    error = (c.error + abs(correlation) * q.error) / q.value if q.value else 0.0
    rate = replace(solution.cross_rate, stable=solution.stable)
    return CrossBatch(c, Estimate(correlation, error, q.method), rate, rate)
