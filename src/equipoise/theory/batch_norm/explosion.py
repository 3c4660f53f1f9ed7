r"""How fast gradients explode, and what that means for depth."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

from equipoise.records.estimate import Estimate
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.batch_norm.setting import Method, make_setting
from equipoise.theory.batch_norm.spectra.eigenvalues import solve_by

# Gradient variances that differ by e^16 (norms by e^8 ≈ 3000) mark the end of the trainable
# region in Fig. 2 of [yang2019].
TRAINABLE_FACTOR = 16.0


class UnstableFixedPointWarning(UserWarning):
    """The BSB1 fixed point is not linearly stable, so deep networks do not stay near it."""


def explosion_rate(
    activation: ActivationLike,
    batch_size: int,
    *,
    eps: float = 0.0,
    gamma: float = 1.0,
    beta: float = 0.0,
    weight_variance: float = 1.0,
    bias_variance: float = 0.0,
    method: Method = "auto",
) -> Estimate:
    r"""Factor by which each layer multiplies the squared gradient norm.

    Deep inside a wide random network :math:`h^l = W^l\phi(\gamma\,\mathrm{BN}(h^{l-1})+\beta)`,

    .. math:: \lambda_G = \frac{E\|\partial\mathcal L/\partial h^{l-1}\|^2}
                               {E\|\partial\mathcal L/\partial h^{l}\|^2}
              = \frac{E[(B-1-w_1^2)\phi'(w_1)^2 + (1+w_1w_2)\phi'(w_1)\phi'(w_2)]}{\kappa(B-3)}

    (the right-hand side at ε = 0, γ = 1, β = 0), where :math:`w_1, w_2` are two samples of a
    normalised batch.

    Args:
        activation: A name (``"relu"``), a module, or an elementwise callable on float64
            tensors; see :func:`as_activation`.
        batch_size: Samples that share batch statistics, at least 4.
        eps: Batch norm's ε, in units of the pre-activations' variance.
        gamma: Batch norm's scale.
        beta: Batch norm's shift.
        weight_variance: :math:`\sigma_w^2`, fan-in times the variance of the weights.
        bias_variance: :math:`\sigma_b^2`; without effect on the rate.
        method: ``"closed form"`` exists for positive-homogeneous activations at ε = β = 0;
            ``"quadrature"`` always; ``"auto"`` takes the former where it can.

    Returns:
        The rate with a bound on its numerical error. Above 1, gradients explode. ``stable`` is
        False where the fixed point that the rate belongs to is not linearly stable; networks
        then end in another state, and grow at another rate.

    Raises:
        ValueError: If ``batch_size < 4``, a number is out of range, the activation is not
            usable, or a closed form is asked for where none is known.

    Warns:
        UnstableFixedPointWarning: If ``stable`` is False.

    Examples:
        >>> explosion_rate("identity", 32).value == 30 / 29  # (B - 2) / (B - 3)
        True
        >>> print(explosion_rate("relu", 10**6))  # tends to π / (π - 1)
        1.46694
        >>> f"{explosion_rate('tanh', 64, eps=0.999).value - 1:.2e}"  # ε_c = 1 is critical
        '1.51e-07'

    References:
        [yang2019], Theorems 7 and 8; extended to ε > 0, γ and β here.
    """
    setting = make_setting(
        activation,
        batch_size,
        eps=eps,
        gamma=gamma,
        beta=beta,
        weight_variance=weight_variance,
        bias_variance=bias_variance,
    )
    solution = solve_by(setting, method)
    rate = replace(solution.rate, stable=solution.stable)
    if not rate.stable:
        warnings.warn(
            f"the BSB1 fixed point of {setting.activation.name} at batch size {batch_size} is "
            "not linearly stable: deep networks leave it, and their gradients grow at another "
            f"rate than {rate.value:.4g}.",
            UnstableFixedPointWarning,
            stacklevel=2,
        )
    return rate


def depth_scale(rate: Estimate | float) -> float:
    r"""Layers over which the squared gradient norm changes by a factor e.

    .. math:: \xi = 1 / \log\lambda_G

    Infinite at a rate of 1; negative where gradients vanish.

    Raises:
        ValueError: If the rate is not positive.

    Examples:
        >>> round(depth_scale(explosion_rate("relu", 10**6)), 3)
        2.61
        >>> depth_scale(1.0)
        inf

    References:
        [yang2019], Section 4.
    """
    value = rate.value if isinstance(rate, Estimate) else float(rate)
    if not value > 0:
        raise ValueError(f"a growth rate must be positive, got {value}.")
    logarithm = math.log(value)
    return 1 / logarithm if logarithm else math.inf


def max_trainable_depth(rate: Estimate | float, factor: float = TRAINABLE_FACTOR) -> float:
    r"""Depth at which gradients of the first and the last layer differ by e^factor.

    .. math:: L_{max} = \mathrm{factor}\cdot|\xi|

    Args:
        rate: Growth of the squared gradient norm per layer, positive.
        factor: Logarithm of the ratio of squared norms that still trains.

    Raises:
        ValueError: If the rate or the factor is not positive.

    Examples:
        >>> round(max_trainable_depth(explosion_rate("relu", 10**6)), 1)
        41.8

    References:
        [yang2019], Fig. 2 (the white dashed line).
    """
    if not factor > 0:
        raise ValueError(f"factor must be positive, got {factor}.")
    return factor * abs(depth_scale(rate))
