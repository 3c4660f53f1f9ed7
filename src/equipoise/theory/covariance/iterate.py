"""Follow the covariance of a batch through the layers of an infinitely wide network.

Where the BSB1 fixed point is unstable, or another attractor exists beside it, this shows where
networks end up: with all samples alike, or with a few samples much larger than the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from equipoise.numerics.checks import check_whole
from equipoise.numerics.options import named_options
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.batch_norm.fixed_point.solve import bsb1_fixed_point
from equipoise.theory.batch_norm.setting import (
    SMALLEST_BATCH,
    Setting,
    SettingOptions,
    as_setting,
)
from equipoise.theory.covariance.bn_map import Method, bn_map

Array = NDArray[np.float64]

# Relative change of the last step below which a trajectory counts as settled. Rounding leaves
# 1e-15; a change of 1e-8 that shrinks by 0.99 a step leaves 1e-6 to go.
_SETTLED = 1e-8
# Relative spread of entries below which a matrix counts as BSB1.
_ALIKE = 1e-3
# A batch below this fraction of its start counts as died out.
_DIED_OUT = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class CovarianceTrajectory:
    """The covariance of a batch, layer by layer; index 0 is the start.

    Args:
        covariances: Second moments of the pre-activations, of shape ``[steps + 1, B, B]``.
        diagonal_variance: Variance over the batch of the samples' second moments,
            ``[steps + 1]``.
        off_diagonal_variance: Variance over pairs of samples of their shared moments,
            ``[steps + 1]``.
        error: Largest error that one step commits on an entry, ``[steps + 1]``; one standard
            error if ``method`` is ``"monte carlo"``. Where the map is unstable, later steps
            magnify it.
        method: How each step was computed.
    """

    covariances: Array
    diagonal_variance: Array
    off_diagonal_variance: Array
    error: Array
    method: str

    @property
    def last_change(self) -> float:
        """Relative change of the last step, in the Frobenius norm; infinite without steps."""
        if len(self.covariances) < 2:
            return math.inf
        before, after = self.covariances[-2:]
        # Relative to what was left at least, so that a batch that dies out settles.
        size = max(np.linalg.norm(after), _DIED_OUT * np.linalg.norm(self.covariances[0]))
        return float(np.linalg.norm(after - before) / size) if size else 0.0

    @property
    def has_settled(self) -> bool:
        """Whether the last step changed the covariance by less than 1e-8 of its norm."""
        return self.last_change < _SETTLED

    @property
    def spread(self) -> float:
        """Root of the two variances at the end, relative to the mean second moment."""
        total = self.diagonal_variance[-1] + self.off_diagonal_variance[-1]
        mean = np.diagonal(self.covariances[-1]).mean()
        return float(np.sqrt(total) / mean) if mean else 0.0

    @property
    def is_bsb1(self) -> bool:
        """Whether all samples are alike at the end, to 1e-3 of their second moment."""
        return self.spread < _ALIKE


@named_options
def iterate_map(
    setting: Setting | ActivationLike,
    batch_size: int | None = None,
    *,
    steps: int,
    start: ArrayLike | Tensor | None = None,
    perturbation: float = 0.0,
    method: Method = "auto",
    generator: torch.Generator | None = None,
    **options: Unpack[SettingOptions],
) -> CovarianceTrajectory:
    r"""Iterate the covariance map of batch norm, from a perturbed start.

    .. math:: \Sigma^{l+1} = \sigma_w^2\,V_{B_\phi}(\Sigma^l) + \sigma_b^2\,\mathbf 1\mathbf 1^T

    The perturbation makes samples unequal. With independent standard normal :math:`z_a`, one
    per sample,

    .. math:: \Sigma^0_{ab} = \Sigma_{ab}\sqrt{f_a f_b}, \quad
              f_a = e^{\tau z_a}, \quad \tau^2 = \log(1 + \mathrm{perturbation}^2),

    so that the factors :math:`f_a` on the samples' second moments have a standard deviation of
    ``perturbation`` times their mean, and correlations stay as they are.

    Args:
        setting: A :class:`Setting`, or its activation, followed by its batch size and keywords.
        batch_size: Only beside an activation; at least 2 with a ``start``.
        steps: Layers to follow, 0 or more.
        start: A covariance of shape ``[B, B]``; by default the BSB1 fixed point.
        perturbation: Relative spread of the factors above, 0 or more.
        method: How each step is computed, as in :func:`bn_map`. Only ``"laplace"`` and
            ``"fourier"`` (what ``"auto"`` takes where it can) settle; ``"monte carlo"`` keeps
            jittering by its standard error.
        generator: Source of the perturbation and of Monte Carlo batches; by default one seeded
            with 0.

    Returns:
        Every covariance on the way, the start included.

    Raises:
        ValueError: If a number is out of range, the start is no covariance of that size, or
            the method does not apply.
        TypeError: If the activation is no activation at all.

    Examples:
        >>> calm = iterate_map("relu", 10, steps=100, perturbation=0.3)
        >>> calm.is_bsb1, calm.has_settled
        (True, True)
        >>> broken = iterate_map("alpha_relu(2)", 10, steps=60, perturbation=0.3)
        >>> broken.is_bsb1
        False

    References:
        [yang2019], Section 3 and Fig. 1c, d (symmetry breaking).
    """
    check_whole("steps", steps, 0)
    if not (math.isfinite(perturbation) and perturbation >= 0):
        raise ValueError(f"perturbation must be finite and not negative, got {perturbation}.")
    if start is not None and not isinstance(setting, Setting):
        # Without a fixed point to solve for, the map itself is defined from two samples on.
        size = check_whole("batch_size", batch_size, 2)
        setting = Setting(setting, max(size, SMALLEST_BATCH), **options)
    else:
        setting = as_setting(setting, batch_size, options)
        size = setting.batch_size
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    cov = _fixed_point(setting) if start is None else _checked_start(start, size)
    cov = _perturbed(cov, perturbation, generator)
    covariances, errors, name = [cov], [0.0], str(method)
    for _ in range(steps):
        mapped = bn_map(
            cov,
            setting.activation,
            method,
            eps=setting.eps,
            gamma=setting.gamma,
            beta=setting.beta,
            generator=generator,
        )
        cov = setting.weight_variance * mapped.value + setting.bias_variance
        covariances.append(cov)
        errors.append(setting.weight_variance * float(mapped.error.max()))
        name = mapped.method
    stacked = np.stack(covariances)
    return CovarianceTrajectory(stacked, *_variances(stacked), np.array(errors), name)


def _variances(covariances: Array) -> tuple[Array, Array]:
    """Var(Σ_aa) over samples and Var(Σ_ab) over pairs a ≠ b, each of shape ``[steps + 1]``."""
    first, second = np.triu_indices(covariances.shape[-1], 1)
    diagonal = np.diagonal(covariances, axis1=1, axis2=2)
    return diagonal.var(1), covariances[:, first, second].var(1)


def _perturbed(cov: Array, size: float, generator: torch.Generator) -> Array:
    if not size:
        return cov
    draw = torch.randn(len(cov), generator=generator, dtype=torch.float64, device=generator.device)
    factor = np.exp(math.sqrt(math.log1p(size**2)) / 2 * draw.cpu().numpy())
    return np.asarray(cov * factor * factor[:, None])


def _fixed_point(setting: Setting) -> Array:
    point = bsb1_fixed_point(setting)
    q, kappa = point.q.value, point.kappa.value
    return kappa * np.eye(setting.batch_size) + (q - kappa)


def _checked_start(start: ArrayLike | Tensor, batch_size: int) -> Array:
    values = start.detach().cpu().numpy() if isinstance(start, Tensor) else start
    cov = np.array(values, dtype=np.float64)
    if cov.shape != (batch_size, batch_size):
        raise ValueError(
            f"start must have shape ({batch_size}, {batch_size}), got {cov.shape}. "
            "Give a covariance of one batch, or set batch_size to its size."
        )
    return cov
