r"""How fast gradients explode, and what that means for depth."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Unpack

from equipoise.numerics.checks import check_positive, is_number
from equipoise.numerics.options import named_options
from equipoise.records.estimate import Estimate
from equipoise.records.warn import warn_user
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.batch_norm.fixed_point.solve import Method, solve
from equipoise.theory.batch_norm.setting import Setting, SettingOptions, as_setting

# Gradient variances that differ by e^16 (norms by e^8 ≈ 3000) mark the end of the trainable
# region in Fig. 2 of [yang2019].
TRAINABLE_FACTOR = 16.0


class UnstableFixedPointWarning(UserWarning):
    """The BSB1 fixed point is not linearly stable, so deep networks do not stay near it."""


@named_options
def explosion_rate(
    setting: Setting | ActivationLike,
    batch_size: int | None = None,
    *,
    method: Method = "auto",
    **options: Unpack[SettingOptions],
) -> Estimate:
    r"""Factor by which each layer multiplies the squared gradient norm.

    Deep inside a wide random network :math:`h^l = W^l\phi(\gamma\,\mathrm{BN}(h^{l-1})+\beta)`,

    .. math:: \lambda_G = \frac{E\|\partial\mathcal L/\partial h^{l-1}\|^2}
                               {E\|\partial\mathcal L/\partial h^{l}\|^2}
              = \frac{E[(B-1-w_1^2)\phi'(w_1)^2 + (1+w_1w_2)\phi'(w_1)\phi'(w_2)]}{\kappa(B-3)}

    (the right-hand side at ε = 0, γ = 1, β = 0), where :math:`w_1, w_2` are two samples of a
    normalised batch.

    Args:
        setting: A :class:`Setting`, or its activation, followed by its batch size and keywords.
        batch_size: Only beside an activation.
        method: ``"closed form"`` exists for positive-homogeneous activations at ε = β = 0;
            ``"quadrature"`` always; ``"auto"`` takes the former where it can, and at ε > 0 the
            part of it that is left.

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
        1.4669
        >>> f"{explosion_rate('tanh', 64, eps=0.999).value - 1:.2e}"  # ε_c = 1 is critical
        '1.51e-07'

    References:
        [yang2019], Theorems 7 and 8; extended to ε > 0, γ and β here.
    """
    setting = as_setting(setting, batch_size, options)
    solution = solve(setting, method)
    rate = replace(solution.rate, stable=solution.stable)
    if not rate.stable:
        warn_user(
            f"the BSB1 fixed point of {setting.activation.name} at batch size "
            f"{setting.batch_size} is not linearly stable: deep networks leave it, and their "
            f"gradients grow at another rate than {rate.value:.4g}.",
            UnstableFixedPointWarning,
        )
    return rate


def depth_scale(rate: Estimate | float) -> float:
    r"""Layers over which the squared gradient norm changes by a factor e.

    .. math:: \xi = 1 / \log\lambda_G

    Infinite at a rate of 1; negative where gradients vanish.

    Raises:
        ValueError: If the rate is not a positive number.

    Examples:
        >>> round(depth_scale(explosion_rate("relu", 10**6)), 3)
        2.61
        >>> depth_scale(1.0)
        inf

    References:
        [yang2019], Section 4.
    """
    value = rate.value if isinstance(rate, Estimate) else rate
    if not is_number(value) or not value > 0:
        raise ValueError(
            "a growth rate must be a positive number, such as explosion_rate('relu', 8); got "
            f"{value!r}."
        )
    logarithm = math.log(value)
    return 1 / logarithm if logarithm else math.inf


@named_options
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
    check_positive(factor=factor)
    return factor * abs(depth_scale(rate))


@dataclass(frozen=True, slots=True)
class WeightGradients:
    r"""Gradients with respect to a layer's weights, deep in a network.

    Args:
        per_trace: :math:`E(\partial\mathcal L/\partial W_{ij})^2` for tr Π = 1, where Π is the
            batch's second moment of gradients with respect to one neuron's pre-activations.
        rate: Factor per layer by which the squared gradients grow on the way back.
    """

    per_trace: Estimate
    rate: Estimate


@named_options
def weight_gradients(
    setting: Setting | ActivationLike,
    batch_size: int | None = None,
    *,
    method: Method = "auto",
    **options: Unpack[SettingOptions],
) -> WeightGradients:
    r"""Size and growth of the gradients of the weights that feed a batch norm.

    .. math:: E\Big(\frac{\partial\mathcal L}{\partial W_{ij}}\Big)^2 = \langle\Sigma_x, \Pi\rangle
              = \frac{\kappa}{\sigma_w^2}\,\mathrm{tr}\,\Pi

    because batch norm's gradients sum to 0 over the batch. For the same reason the gradient of a
    bias in front of batch norm is 0. Arguments as in :func:`explosion_rate`.

    Raises:
        ValueError: As :func:`explosion_rate`.

    Examples:
        >>> print(weight_gradients("identity", 5).per_trace)  # κ = B/(B - 1)
        1.25

    References:
        [yang2019], Appendix G.
    """
    setting = as_setting(setting, batch_size, options)
    solution, variance = solve(setting, method), setting.weight_variance
    kappa = solution.kappa
    per_trace = Estimate(kappa.value / variance, kappa.error / variance, kappa.method)
    return WeightGradients(per_trace, replace(solution.rate, stable=solution.stable))
