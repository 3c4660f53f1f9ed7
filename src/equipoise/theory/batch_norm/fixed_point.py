"""Where the covariance of a batch settles deep inside a batch-normalised network."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.records.estimate import Estimate
from equipoise.theory.activation.adapt import ActivationLike, as_activation
from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.setting import SMALLEST_BATCH, make_setting
from equipoise.theory.batch_norm.solver.small_signals import critical_variance
from equipoise.theory.batch_norm.solver.solve import solve


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


def bsb1_fixed_point(
    activation: ActivationLike,
    batch_size: int,
    *,
    eps: float = 0.0,
    gamma: float = 1.0,
    beta: float = 0.0,
    weight_variance: float = 1.0,
    bias_variance: float = 0.0,
) -> FixedPoint:
    r"""Solve for the fixed point of the covariance map among BSB1 matrices.

    .. math:: q = \sigma_w^2 E[\phi(w_1)^2] + \sigma_b^2, \quad
              qc = \sigma_w^2 E[\phi(w_1)\phi(w_2)] + \sigma_b^2, \quad \kappa = q(1 - c)

    with two samples :math:`w_1, w_2` of a normalised batch; at ε > 0, γ ≠ 1 or β ≠ 0 with
    φ(γRw + β) and an average over the radius R, which itself depends on κ.

    Args:
        activation: A name, a module, or an elementwise callable on float64 tensors.
        batch_size: Samples that share batch statistics, at least 4.
        eps: Batch norm's ε, in units of the pre-activations' variance.
        gamma: Batch norm's scale.
        beta: Batch norm's shift.
        weight_variance: :math:`\sigma_w^2`, fan-in times the variance of the weights.
        bias_variance: :math:`\sigma_b^2`, the variance of the biases.

    Returns:
        The fixed point; each number with a bound on its numerical error. Where ε exceeds
        :func:`critical_eps`, ``kappa`` is 0: all samples become equal.

    Raises:
        ValueError: If ``batch_size < 4``, a number is out of range or the activation is not
            usable.

    Examples:
        >>> point = bsb1_fixed_point("identity", 5)
        >>> print(point.q, point.c, point.kappa)  # 1, -1/(B - 1), B/(B - 1)
        1 -0.25 1.25

    References:
        [yang2019], Section 3.1 and Appendix B.3 (BSB1 fixed points); ε > 0 derived here.
    """
    solution = solve(
        make_setting(
            activation,
            batch_size,
            eps=eps,
            gamma=gamma,
            beta=beta,
            weight_variance=weight_variance,
            bias_variance=bias_variance,
        )
    )
    return FixedPoint(solution.q, solution.c, solution.kappa)


def critical_eps(
    activation: ActivationLike,
    *,
    gamma: float = 1.0,
    beta: float = 0.0,
    weight_variance: float = 1.0,
    batch_size: int | None = None,
) -> float:
    r"""The ε above which small differences between samples die out with depth.

    .. math:: \varepsilon_c = \sigma_w^2\gamma^2\phi'(\beta)^2

    Just below it small differences survive barely, gradients neither explode nor vanish, and the
    depth scale diverges. Above it the state in which all samples are equal is stable; where φ is
    steeper elsewhere than at β, networks that start far from it may still keep another state,
    which :func:`bsb1_fixed_point` then returns.

    Args:
        activation: A name, a module, or an elementwise callable on float64 tensors.
        gamma: Batch norm's scale.
        beta: Batch norm's shift.
        weight_variance: :math:`\sigma_w^2`, fan-in times the variance of the weights.
        batch_size: Only needed where φ has a kink at β, as ReLU has at 0. Gradients then do
            not become balanced near the critical ε, though samples still become equal.

    Raises:
        ValueError: If φ has a kink at β and no batch size is given, or is not usable.

    Examples:
        >>> critical_eps("tanh"), critical_eps("relu", beta=2.0)
        (1.0, 1.0)
        >>> round(critical_eps("relu", batch_size=64), 4)
        0.3394

    References:
        [yang2019], Section 4 and Fig. 4c, d.
    """
    setting = make_setting(
        activation,
        SMALLEST_BATCH if batch_size is None else batch_size,
        eps=0.0,
        gamma=gamma,
        beta=beta,
        weight_variance=weight_variance,
        bias_variance=0.0,
    )
    kinks = as_activation(activation).kinks
    if batch_size is None and any(kink.at == setting.beta for kink in kinks):
        raise ValueError(
            f"activation {setting.activation.name} has a kink at beta = {beta:g}, where the "
            "critical eps depends on the batch size. Give batch_size=..., or move beta."
        )
    f = Response(setting.activation, setting.gamma, setting.beta)
    return setting.weight_variance * critical_variance(f, setting.batch_size)
