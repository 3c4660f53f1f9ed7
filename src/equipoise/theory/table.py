"""Predictions for many settings at once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from equipoise.records import Estimate
from equipoise.theory.activation.adapt import ActivationLike, as_activation
from equipoise.theory.batch_norm.explosion import (
    UnstableFixedPointWarning,
    depth_scale,
    explosion_rate,
    max_trainable_depth,
)
from equipoise.theory.batch_norm.fixed_point import bsb1_fixed_point
from equipoise.theory.batch_norm.setting import make_setting
from equipoise.theory.batch_norm.spectra.eigenvalues import solve_by


@dataclass(frozen=True, slots=True)
class Prediction:
    """One activation at one batch size, deep inside a wide random network.

    Args:
        activation: Name of the activation.
        batch_size: Samples that share batch statistics.
        eps: The normaliser's ε.
        gamma: Its scale.
        beta: Its shift.
        rate: Factor per layer on the squared gradient norm, on the way back.
        depth_scale: Layers over which that norm changes by a factor of e.
        max_depth: Layers over which it changes by e^16.
        q: Mean square of the activations at the fixed point.
        c: Their correlation between two samples of a batch.
        kappa: q (1 − c), the variance that batch normalisation leaves after centring.
    """

    activation: str
    batch_size: int
    eps: float
    gamma: float
    beta: float
    rate: Estimate
    depth_scale: float
    max_depth: float
    q: Estimate
    c: Estimate
    kappa: Estimate


@dataclass(frozen=True, slots=True)
class SpectrumPrediction:
    """Every eigenvalue of one activation at one batch size.

    Args:
        activation: Name of the activation.
        batch_size: Samples that share batch statistics.
        eps: The normaliser's ε.
        gamma: Its scale.
        beta: Its shift.
        q: Mean square of the pre-activations at the fixed point.
        c: Their correlation between two samples of a batch.
        backward: Eigenvalues of the gradients' covariance along G, L and M.
        forward: Those of the pre-activations' covariance.
        cross_batch: The eigenvalue between two batches.
        stable: Whether networks stay near the fixed point.
    """

    activation: str
    batch_size: int
    eps: float
    gamma: float
    beta: float
    q: Estimate
    c: Estimate
    backward: tuple[Estimate, Estimate, Estimate]
    forward: tuple[Estimate, Estimate, Estimate]
    cross_batch: Estimate
    stable: bool

    @property
    def largest_error(self) -> float:
        """The largest of all error bounds, absolute."""
        return max(
            part.error
            for part in (self.q, self.c, *self.backward, *self.forward, self.cross_batch)
        )


def prediction_table(
    activations: Sequence[ActivationLike],
    batch_sizes: Sequence[int],
    *,
    eps: float = 0.0,
    gamma: float = 1.0,
    beta: float = 0.0,
    weight_variance: float = 1.0,
) -> list[Prediction]:
    """Predict rate, depth scale, trainable depth and fixed point for every combination.

    Instability is reported on each rate (``rate.stable``), not as a warning. Arguments as in
    :func:`explosion_rate`.

    Raises:
        ValueError: If any combination is out of range.

    Examples:
        >>> (row,) = prediction_table(["relu"], [64])
        >>> row.activation, round(row.rate.value, 4), round(row.max_depth)
        ('relu', 1.4931, 40)
    """
    rows = []
    for activation in map(as_activation, activations):
        for batch_size in batch_sizes:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnstableFixedPointWarning)
                rate = explosion_rate(
                    activation,
                    batch_size,
                    eps=eps,
                    gamma=gamma,
                    beta=beta,
                    weight_variance=weight_variance,
                )
            point = bsb1_fixed_point(
                activation,
                batch_size,
                eps=eps,
                gamma=gamma,
                beta=beta,
                weight_variance=weight_variance,
            )
            rows.append(
                Prediction(
                    activation=activation.name,
                    batch_size=batch_size,
                    eps=eps,
                    gamma=gamma,
                    beta=beta,
                    rate=rate,
                    depth_scale=depth_scale(rate) if rate.value > 0 else 0.0,
                    max_depth=max_trainable_depth(rate) if rate.value > 0 else 0.0,
                    q=point.q,
                    c=point.c,
                    kappa=point.kappa,
                )
            )
    return rows


def spectrum_table(
    activations: Sequence[ActivationLike],
    batch_sizes: Sequence[int],
    *,
    eps: float = 0.0,
    gamma: float = 1.0,
    beta: float = 0.0,
    weight_variance: float = 1.0,
) -> list[SpectrumPrediction]:
    """Fixed point and every eigenvalue for every combination.

    Arguments as in :func:`backward_spectrum`.

    Raises:
        ValueError: If any combination is out of range.

    Examples:
        >>> (row,) = spectrum_table(["identity"], [9])
        >>> [round(part.value, 12) for part in row.forward]
        [0.0, 0.8, 0.8]
    """
    rows = []
    for activation in map(as_activation, activations):
        for batch_size in batch_sizes:
            setting = make_setting(
                activation,
                batch_size,
                eps=eps,
                gamma=gamma,
                beta=beta,
                weight_variance=weight_variance,
                bias_variance=0.0,
            )
            solution = solve_by(setting, "auto")
            rows.append(
                SpectrumPrediction(
                    activation=activation.name,
                    batch_size=batch_size,
                    eps=eps,
                    gamma=gamma,
                    beta=beta,
                    q=solution.q,
                    c=solution.c,
                    backward=solution.flagged(solution.backward),
                    forward=solution.flagged(solution.forward),
                    cross_batch=replace(solution.cross_rate, stable=solution.stable),
                    stable=solution.stable,
                )
            )
    return rows
