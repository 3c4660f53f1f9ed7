r"""Networks without normalisation: where signals settle and how gradients grow.

In a wide network :math:`h^l = W^l\phi(h^{l-1}) + b^l` the second moment q of one sample and the
correlation c of two follow one-dimensional maps. Every number here belongs to their fixed point.

Symbols: σ_w², σ_b²: weight and bias variance, u, u₁, u₂: pre-activations of second moment q and
correlation c, g = 1 - c.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from equipoise.numerics.options import named_options
from equipoise.records.estimate import Estimate
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.batch_norm.setting import SMALLEST_BATCH, Setting
from equipoise.theory.networks.gaussian_averages import ROUNDING, moments
from equipoise.theory.networks.vanilla.correlation import settle_correlation
from equipoise.theory.networks.vanilla.variance import mean_square_slope_at_zero, settle_variance

# Relative step of q for the sensitivity of the χ to its error.
_STEP = 1e-3


@dataclass(frozen=True, slots=True)
class VanillaNetwork:
    r"""The fixed point of a network without normalisation, and what happens near it.

    Args:
        q: Second moment :math:`q^*` of a pre-activation.
        c: Correlation :math:`c^*` of two samples.
        chi_q: Factor by which a deviation of q changes per layer.
        chi_c: Factor by which a deviation of c changes per layer.
        chi_1: Factor by which the squared gradient norm grows per layer towards the input; a
            rate for :func:`max_trainable_depth`.
    """

    q: Estimate
    c: Estimate
    chi_q: Estimate
    chi_c: Estimate
    chi_1: Estimate

    @property
    def phase(self) -> Literal["ordered", "critical", "chaotic"]:
        """Ordered: samples become equal and gradients vanish; chaotic: both the opposite."""
        if _is_one(self.chi_1):
            return "critical"
        return "chaotic" if self.chi_1.value > 1 else "ordered"

    @property
    def xi_q(self) -> float:
        """Layers over which a deviation of q shrinks e-fold, −1 / log(χ_q) in magnitude."""
        return 0.0 - _inverse_log(self.chi_q)

    @property
    def xi_c(self) -> float:
        """Layers over which a deviation of c shrinks e-fold, -1/log χ_c."""
        return 0.0 - _inverse_log(self.chi_c)

    @property
    def xi_gradient(self) -> float:
        """Layers over which the squared gradient norm changes e-fold, 1 / log(χ_1) in size."""
        return abs(_inverse_log(self.chi_1))


@named_options
def vanilla(
    activation: ActivationLike, *, weight_variance: float, bias_variance: float = 0.0
) -> VanillaNetwork:
    r"""Fixed point and growth rates of a wide network without normalisation.

    .. math:: q = \sigma_w^2 E[\phi(u)^2] + \sigma_b^2, \quad
              qc = \sigma_w^2 E[\phi(u_1)\phi(u_2)] + \sigma_b^2

    .. math:: \chi_q = \frac{\sigma_w^2}{2q} E[\phi(u)^2(u^2/q - 1)], \quad
              \chi_c = \sigma_w^2 E[\phi'(u_1)\phi'(u_2)], \quad
              \chi_1 = \sigma_w^2 E[\phi'(u)^2]

    Args:
        activation: A name, a module, or an elementwise callable on float64 tensors.
        weight_variance: :math:`\sigma_w^2`, fan-in times the variance of the weights, positive.
        bias_variance: :math:`\sigma_b^2`, the variance of the biases.

    Returns:
        The fixed point; each number with a bound on its numerical error.

    Notes:
        Where q has several stable fixed points, the returned one is next to the start
        :math:`\sigma_w^2 + \sigma_b^2`, which inputs of unit second moment give, on the side to
        which the map moves it. c starts between 0 and 1, as real data do: in the chaotic phase
        it ends below 1, in the ordered phase and at its edge at 1.

        Without biases, signals may die out: q = 0. Then all samples become equal to 0, and c = 1
        is the limit of small biases; the χ are those of φ's slopes at 0.

        With slopes of constant size on either side of 0 (ReLU, identity) and :math:`\chi_1 = 1`
        every q is a fixed point; the returned one is that of inputs of unit second moment,
        :math:`\sigma_w^2`. The identity also keeps every c, and c = 1 is then a convention.

    Raises:
        ValueError: If q grows without bound, a number is out of range, or the activation is not
            usable: waves such as sin cannot be followed over pre-activations of a standard
            deviation beyond some 150.

    Examples:
        >>> network = vanilla("relu", weight_variance=2.0)
        >>> print(network.q, network.c, network.chi_1, network.phase)
        2 1 1 critical
        >>> vanilla("tanh", weight_variance=4.0).phase
        'chaotic'

    References:
        [yang2019], Section 3 (networks without batch norm); [schoenholz2017].
    """
    # Without normalisation the batch size does not matter.
    return _solve(
        Setting(
            activation,
            SMALLEST_BATCH,
            weight_variance=weight_variance,
            bias_variance=bias_variance,
        )
    )


@lru_cache(maxsize=256)
def _solve(setting: Setting) -> VanillaNetwork:
    q = settle_variance(setting)
    shape = setting.activation.homogeneity
    if q.value == 0 or (shape is not None and shape.alpha == 1):
        chi = setting.weight_variance * mean_square_slope_at_zero(setting.activation)
        growth = Estimate(chi, ROUNDING / 4 * chi, "closed form")
        return VanillaNetwork(q, Estimate(1.0, 0.0, "closed form"), growth, growth, growth)
    chi_q, chi_1 = _variance_rates(setting, q)
    c, chi_c = settle_correlation(setting, q, chi_1)
    return VanillaNetwork(q, c, chi_q, chi_c, chi_1)


def _variance_rates(setting: Setting, q: Estimate) -> tuple[Estimate, Estimate]:
    """χ_q and χ_1."""
    here = moments(setting.activation, q.value)
    beside = moments(setting.activation, q.value * (1 + _STEP))
    sensitivity = abs(beside.values - here.values) / _STEP * q.relative_error
    values, errors = (
        setting.weight_variance * part for part in (here.values, here.errors + 2 * sensitivity)
    )
    chi_q, chi_1 = (Estimate(float(values[i]), float(errors[i]), q.method) for i in (1, 2))
    return chi_q, chi_1


def _is_one(chi: Estimate) -> bool:
    return abs(chi.value - 1) <= chi.error


def _inverse_log(chi: Estimate) -> float:
    """1 / log |χ|; infinite where χ may be 1."""
    if _is_one(chi):
        return -math.inf
    return 1 / math.log(abs(chi.value)) if chi.value else 0.0
