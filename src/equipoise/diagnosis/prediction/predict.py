"""What theory says about each block that was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from equipoise.diagnosis.prediction.blocks import FoundBlock
from equipoise.diagnosis.prediction.normalisations import Normalisation
from equipoise.diagnosis.record import Block
from equipoise.records.estimate import Estimate
from equipoise.theory.activation.catalogue import Activation
from equipoise.theory.batch_norm.explosion import max_trainable_depth
from equipoise.theory.batch_norm.setting import SMALLEST_BATCH
from equipoise.theory.batch_norm.spectra.eigenvalues import backward_spectrum
from equipoise.theory.networks.feature_norms import group_norm, layer_norm
from equipoise.theory.simulation.networks import Architecture

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
    architecture: Architecture = field(default_factory=Architecture)

    @property
    def uses_the_batch(self) -> bool:
        """Whether samples of a batch see one another."""
        return self.architecture.normaliser == "batch norm"


def predict(found: FoundBlock) -> tuple[Block, Conditions | None]:
    """Predict a block's growth rate, or say why theory does not apply."""
    conditions, uneven = None, False
    reason = found.reason or too_small(found.normalisation)
    rate = depth = None
    if reason is None and found.activation is not None:
        conditions, uneven = conditions_of(found, found.activation)
        try:
            rate = predicted_rate(conditions)
            depth = max_trainable_depth(rate) if rate.value > 0 else 0.0
        except ValueError as error:
            conditions, reason = None, str(error)
    return as_block(found, rate, depth, reason, uneven), conditions


def too_small(normalisation: Normalisation) -> str | None:
    """Why a batch is too small for theory, if it is."""
    if normalisation.normaliser == "batch norm" and normalisation.rows < SMALLEST_BATCH:
        return f"a batch of {normalisation.rows} is too small: batch norm needs at least 4 samples"
    return None


def conditions_of(found: FoundBlock, activation: Activation) -> tuple[Conditions, bool]:
    """The block in theory's terms, and whether its channels differ."""
    normalisation = found.normalisation
    gamma, beta, uneven = _affine(normalisation)
    weight_variance, bias_variance = variances(found.feeding)
    return (
        Conditions(
            activation,
            normalisation.rows,
            normalisation.eps,
            gamma,
            beta,
            weight_variance,
            bias_variance,
            Architecture(normalisation.normaliser, normalisation.group_size),
        ),
        uneven,
    )


def as_block(
    found: FoundBlock,
    rate: Estimate | None,
    depth: float | None,
    reason: str | None,
    uneven: bool,
    extra: tuple[str, ...] = (),
) -> Block:
    """The record of a block."""
    normalisation = found.normalisation
    gamma, beta, _ = _affine(normalisation)
    weight_variance, _ = variances(found.feeding)
    kind = normalisation.normaliser.replace(" ", "_")
    return Block(
        layer=found.layer,
        kind=type(found.norm).__name__ if found.norm is not None else kind,
        activation=found.activation.name if found.activation is not None else "",
        following=found.path.following,
        batch_size=normalisation.rows,
        features=normalisation.features,
        eps=normalisation.eps,
        gamma=gamma,
        beta=beta,
        weight_variance=weight_variance,
        rate=rate,
        max_depth=depth,
        reason=reason,
        caveats=(*_caveats(found, uneven), *extra) if reason is None else (),
    )


def predicted_rate(conditions: Conditions) -> Estimate:
    """The growth of gradients; its stability is on the estimate, not in a warning."""
    c, size = conditions, conditions.architecture.group_size
    if c.uses_the_batch:
        return backward_spectrum(
            c.activation,
            c.batch_size,
            eps=c.eps,
            gamma=c.gamma,
            beta=c.beta,
            weight_variance=c.weight_variance,
        ).G
    law = layer_norm if size is None else partial(group_norm, group_size=size)
    return law(
        c.activation,
        eps=c.eps,
        gamma=c.gamma,
        beta=c.beta,
        weight_variance=c.weight_variance,
        bias_variance=c.bias_variance,
    ).rate


def typical_conditions(conditions: Sequence[Conditions | None]) -> Conditions | None:
    """The middle block's conditions, if all blocks differ in batch and weights at most."""
    known = [c for c in conditions if c is not None]
    if not known or len(known) < len(conditions):
        return None
    kinds = {
        (
            c.activation.name,
            c.eps,
            round(c.gamma, _DIGITS),
            round(c.beta, _DIGITS),
            c.architecture,
        )
        for c in known
    }
    return known[len(known) // 2] if len(kinds) == 1 else None


def _affine(found: Normalisation) -> tuple[float, float, bool]:
    """γ, β, and whether they differ between channels."""
    weight, bias = (
        t.detach().double() if t is not None else None for t in (found.weight, found.bias)
    )
    gamma = float(weight.square().mean().sqrt()) if weight is not None else 1.0
    beta = float(bias.mean()) if bias is not None else 0.0
    spreads = [float(t.std()) for t in (weight, bias) if t is not None and t.numel() > 1]
    return gamma, beta, max(spreads, default=0.0) > _UNIFORM


def variances(feeding: nn.Module | None) -> tuple[float, float]:
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
    if found.normalisation.normaliser != "batch norm":
        caveats.append("the rate is derived by Equipoise for wide layers, not by a paper")
    if found.normalisation.is_convolution:
        caveats.append(
            "positions count as samples, which is derived by Equipoise for wide layers with "
            "circular padding and stride 1, deep enough that the image is forgotten"
        )
    if found.path.pooled:
        caveats.append("pooling between the layers is not part of the theory")
    if uneven:
        caveats.append("scales or shifts differ between channels; their averages were used")
    return tuple(caveats)
