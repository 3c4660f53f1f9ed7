"""What theory says about each block that was found."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equipoise.diagnosis.blocks import FoundBlock
from equipoise.records import Block, Estimate
from equipoise.theory import (
    Activation,
    UnstableFixedPointWarning,
    explosion_rate,
    max_trainable_depth,
)

# Scales or shifts that spread more than this around their mean are no longer one number.
_UNIFORM = 0.05
_DIGITS = 6


@dataclass(frozen=True, slots=True, eq=False)
class Conditions:
    """The arguments of theory that a block stands for."""

    activation: Activation
    batch_size: int
    eps: float
    gamma: float
    beta: float
    weight_variance: float
    bias_variance: float


def predict(found: FoundBlock) -> tuple[Block, Conditions | None]:
    """Predict a block's growth rate, or say why theory does not apply."""
    norm = found.norm
    gamma, beta, uneven = _affine(found)
    eps = found.eps
    weight_variance, bias_variance = _variances(found.feeding)
    reason = found.reason
    if reason is None and found.batch_size < 4:
        reason = f"a batch of {found.batch_size} is too small: batch norm needs at least 4 samples"
    conditions = rate = depth = None
    if reason is None and found.activation is not None:
        conditions = Conditions(
            found.activation, found.batch_size, eps, gamma, beta, weight_variance, bias_variance
        )
        try:
            rate = predicted_rate(conditions)
            depth = max_trainable_depth(rate) if rate.value > 0 else 0.0
        except ValueError as error:
            conditions, reason = None, str(error)
    block = Block(
        layer=found.layer,
        kind=type(norm).__name__ if norm is not None else "batch_norm",
        activation=found.activation.name if found.activation is not None else "",
        following=found.following,
        batch_size=found.batch_size,
        features=found.features,
        eps=eps,
        gamma=gamma,
        beta=beta,
        weight_variance=weight_variance,
        rate=rate,
        max_depth=depth,
        reason=reason,
        caveats=_caveats(found, uneven) if reason is None else (),
    )
    return block, conditions


def predicted_rate(conditions: Conditions) -> Estimate:
    """The explosion rate; its stability is on the estimate, not in a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnstableFixedPointWarning)
        return explosion_rate(
            conditions.activation,
            conditions.batch_size,
            eps=conditions.eps,
            gamma=conditions.gamma,
            beta=conditions.beta,
            weight_variance=conditions.weight_variance,
        )


def typical_conditions(conditions: Sequence[Conditions | None]) -> Conditions | None:
    """The middle block's conditions, if all blocks differ in batch and weights at most."""
    known = [c for c in conditions if c is not None]
    if not known or len(known) < len(conditions):
        return None
    kinds = {
        (c.activation.name, c.eps, round(c.gamma, _DIGITS), round(c.beta, _DIGITS)) for c in known
    }
    return known[len(known) // 2] if len(kinds) == 1 else None


def _affine(found: FoundBlock) -> tuple[float, float, bool]:
    """γ, β, and whether they differ between channels."""
    weight, bias = (
        t.detach().double() if t is not None else None for t in (found.weight, found.bias)
    )
    gamma = float(weight.square().mean().sqrt()) if weight is not None else 1.0
    beta = float(bias.mean()) if bias is not None else 0.0
    spreads = [float(t.std()) for t in (weight, bias) if t is not None and t.numel() > 1]
    return gamma, beta, max(spreads, default=0.0) > _UNIFORM


def _variances(feeding: nn.Module | None) -> tuple[float, float]:
    """Fan-in times the mean square of the weights, and the mean square of the biases."""
    weight, bias = getattr(feeding, "weight", None), getattr(feeding, "bias", None)
    if not isinstance(weight, Tensor):
        return 1.0, 0.0
    with torch.no_grad():
        weight_variance = float(weight.double().square().mean()) * weight[0].numel()
        bias_variance = float(bias.double().square().mean()) if isinstance(bias, Tensor) else 0.0
    return weight_variance, bias_variance


def _caveats(found: FoundBlock, uneven: bool) -> tuple[str, ...]:
    caveats = []
    if found.is_convolution:
        caveats.append(
            "positions of a feature map are correlated, so the effective batch is smaller than "
            "the rows counted"
        )
    if found.pooled:
        caveats.append("pooling between the layers is not part of the theory")
    if uneven:
        caveats.append("scales or shifts differ between channels; their averages were used")
    return tuple(caveats)
