"""What theory says before any network is built."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.records.estimate import Estimate


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
