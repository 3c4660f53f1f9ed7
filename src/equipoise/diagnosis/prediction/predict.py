"""What theory predicts for each block that was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equipoise.diagnosis.prediction.blocks import FoundBlock
from equipoise.diagnosis.prediction.normalisations import Normalisation
from equipoise.diagnosis.record import Block
from equipoise.records.estimate import Estimate
from equipoise.theory.activation.catalogue import Activation
from equipoise.theory.batch_norm.explosion import max_trainable_depth
from equipoise.theory.batch_norm.setting import SMALLEST_BATCH, Setting
from equipoise.theory.batch_norm.spectra.eigenvalues import backward_spectrum
from equipoise.theory.networks.feature_norms import group_norm, layer_norm
from equipoise.theory.simulation.networks import Architecture

# Scales or shifts with a larger standard deviation are not described by one number.
_UNIFORM = 0.05
_DIGITS = 6


class Network(NamedTuple):
    """The theory's network for a block."""

    setting: Setting
    architecture: Architecture


def predict(found: FoundBlock) -> tuple[Block, Network | None]:
    """Predict a block's growth rate, or say why theory does not apply."""
    network, uneven = None, False
    reason = found.reason or too_small(found.normalisation)
    rate = depth = None
    if reason is None and found.activation is not None:
        try:
            network, uneven = network_of(found, found.activation)
            rate = predicted_rate(network)
            depth = max_trainable_depth(rate) if rate.value > 0 else 0.0
        except ValueError as error:
            network, reason = None, str(error)
    return as_block(found, rate, depth, reason, uneven), network


def too_small(normalisation: Normalisation) -> str | None:
    """Why a batch is too small for theory, or None if it is not."""
    if normalisation.normaliser == "batch norm" and normalisation.rows < SMALLEST_BATCH:
        return f"a batch of {normalisation.rows} is too small: batch norm needs at least 4 samples"
    return None


def network_of(found: FoundBlock, activation: Activation) -> tuple[Network, bool]:
    """The block in theory's terms, and whether its channels differ."""
    normalisation = found.normalisation
    gamma, beta, uneven = affine(normalisation)
    weight_variance, bias_variance = variances(found.feeding)
    rows = normalisation.rows
    if normalisation.normaliser != "batch norm":
        rows = max(rows, SMALLEST_BATCH)  # samples are independent, so any batch size will do
    setting = Setting(
        activation,
        rows,
        eps=normalisation.eps,
        gamma=gamma,
        beta=beta,
        weight_variance=weight_variance,
        bias_variance=bias_variance,
    )
    architecture = Architecture(normalisation.normaliser, normalisation.group_size)
    return Network(setting, architecture), uneven


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
    gamma, beta, _ = affine(normalisation)
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


def predicted_rate(network: Network) -> Estimate:
    """The growth of gradients; instability is noted on the estimate instead of warned of."""
    setting, architecture = network
    if architecture.normaliser == "batch norm":
        return backward_spectrum(setting).G
    if architecture.group_size is not None:
        return group_norm(setting, architecture.group_size).rate
    return layer_norm(setting).rate


def typical_network(networks: Sequence[Network | None]) -> Network | None:
    """The middle block's network, if all blocks differ in batch size and weights at most."""
    known = [network for network in networks if network is not None]
    if not known or len(known) < len(networks):
        return None
    kinds = {
        (
            setting.activation.name,
            setting.eps,
            round(setting.gamma, _DIGITS),
            round(setting.beta, _DIGITS),
            architecture,
        )
        for setting, architecture in known
    }
    return known[len(known) // 2] if len(kinds) == 1 else None


def affine(found: Normalisation) -> tuple[float, float, bool]:
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
