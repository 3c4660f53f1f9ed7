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
