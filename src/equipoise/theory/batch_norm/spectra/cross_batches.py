r"""What two different batches through the same network have to do with one another."""

from __future__ import annotations

from dataclasses import dataclass, replace

from equipoise.records.estimate import Estimate
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.batch_norm.setting import Method, make_setting
from equipoise.theory.batch_norm.spectra.eigenvalues import solve_by


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


def cross_batch(
    activation: ActivationLike,
    batch_size: int,
    *,
    eps: float = 0.0,
    gamma: float = 1.0,
    beta: float = 0.0,
    weight_variance: float = 1.0,
    bias_variance: float = 0.0,
    method: Method = "auto",
) -> CrossBatch:
    r"""How two batches correlate deep in a network, and how fast that is reached.

    .. math:: c_{CB} = \sigma_w^2 (E\phi(w_1))^2 + \sigma_b^2, \qquad
              \lambda_{CB} = \frac{2\,\Gamma(\frac B2)^2}{\Gamma(\frac{B-1}2)^2}
              \frac{B}{(B-1)^2}\frac{E[\phi(w_1)w_1]^2}{\kappa}

    (ε = 0, γ = 1, β = 0). Gradients of one batch explode, but what two batches' gradients have in
    common dies out wherever :math:`\lambda_{CB} < 1`.

    Args:
        activation: A name, a module, or an elementwise callable on float64 tensors.
        batch_size: Samples of each batch, at least 4.
        eps: Batch norm's ε, in units of the pre-activations' variance.
        gamma: Batch norm's scale.
        beta: Batch norm's shift.
        weight_variance: :math:`\sigma_w^2`, fan-in times the variance of the weights.
        bias_variance: :math:`\sigma_b^2`, the variance of the biases.
        method: As in :func:`backward_spectrum`.

    Returns:
        Second moment, correlation and eigenvalues, each with a bound on its numerical error.

    Raises:
        ValueError: As :func:`backward_spectrum`.

    Examples:
        >>> pair = cross_batch("relu", 8)
        >>> print(pair.c, pair.correlation, pair.forward)
        0.170898 0.341797 0.709677
        >>> print(cross_batch("abs", 8).backward)  # an even function: no gradient in common
        0

    References:
        [yang2019], Appendices D, E and F; the equality of both eigenvalues and ε > 0 derived here.
    """
    solution = solve_by(
        make_setting(
            activation,
            batch_size,
            eps=eps,
            gamma=gamma,
            beta=beta,
            weight_variance=weight_variance,
            bias_variance=bias_variance,
        ),
        method,
    )
    c, q = solution.cross_covariance, solution.q
    correlation = c.value / q.value if q.value else 1.0
    error = (c.error + abs(correlation) * q.error) / q.value if q.value else 0.0
    rate = replace(solution.cross_rate, stable=solution.stable)
    return CrossBatch(c, Estimate(correlation, error, q.method), rate, rate)


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


def weight_gradients(
    activation: ActivationLike,
    batch_size: int,
    *,
    eps: float = 0.0,
    gamma: float = 1.0,
    beta: float = 0.0,
    weight_variance: float = 1.0,
    bias_variance: float = 0.0,
    method: Method = "auto",
) -> WeightGradients:
    r"""Size and growth of the gradients of the weights that feed a batch norm.

    .. math:: E\Big(\frac{\partial\mathcal L}{\partial W_{ij}}\Big)^2 = \langle\Sigma_x, \Pi\rangle
              = \frac{\kappa}{\sigma_w^2}\,\mathrm{tr}\,\Pi

    because batch norm's gradients sum to 0 over the batch. For the same reason the gradient of a
    bias in front of batch norm is 0. Arguments as in :func:`cross_batch`.

    Raises:
        ValueError: As :func:`backward_spectrum`.

    Examples:
        >>> print(weight_gradients("identity", 5).per_trace)  # κ = B/(B - 1)
        1.25

    References:
        [yang2019], Appendix G.
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
    solution, variance = solve_by(setting, method), setting.weight_variance
    kappa = solution.kappa
    per_trace = Estimate(kappa.value / variance, kappa.error / variance, kappa.method)
    return WeightGradients(per_trace, replace(solution.rate, stable=solution.stable))
