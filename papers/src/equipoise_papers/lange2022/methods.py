"""The ways to train that the paper compares, and the controls that it lacks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from equipoise import layers, models
from equipoise.instrument import LossFunction
from equipoise.layers import RenormSchedule
from equipoise.models import Norm, make_norm
from equipoise.preconditioners import BNP
from equipoise.training import cross_entropy

# The values of TensorFlow, which the paper used.
_MOMENTUM, _EPS = 0.01, 1e-3
# Summers and Dinneen (2020) decay γ and β as much as other weights.
_GAMMA_BETA_DECAY = 1e-4
# From this batch size on the four things take virtual batches instead of groups of channels.
_LARGE_BATCH, _VIRTUAL_BATCH = 32, 16
# Shares of a training, as in Ioffe (2017): 5,000, 25,000 and 40,000 of about 130,000 steps.
_RENORM_WARMUP, _RENORM_D, _RENORM_R = 0.04, 0.2, 0.3


@dataclass(frozen=True, slots=True)
class Method:
    """One way to train.

    Args:
        label: Its name in figures.
        norm: Kind of normaliser, ``"none"`` for no other.
        standardised: Whether inputs are standardised once, by statistics of the training set.
        preconditioner: Options of BNP; ``None`` for no preconditioning.
        adam: Whether the optimiser is Adam instead of plain SGD.
        copies: How often each sample of a batch is given. Two copies have the mean and the
            variance of one; so batch norm trains on a single sample, which PyTorch refuses.
    """

    label: str
    norm: Norm = "none"
    standardised: bool = False
    preconditioner: dict[str, Any] | None = None
    adam: bool = False
    copies: int = 1


METHODS: dict[str, Method] = {
    "vanilla": Method("vanilla"),
    "standardised": Method("vanilla, standardised inputs", standardised=True),
    "bn": Method("BN", "batch"),
    "ln": Method("LN", "layer"),
    "gn": Method("GN", "group"),
    "renorm": Method("BN Renorm", "batch_renorm"),
    "four_things": Method("BN w/ 4 Things", "four_things", adam=True),
    "bnp_paper": Method("BNP (paper)", preconditioner={"preset": "paper"}),
    "bnp": Method("BNP", preconditioner={}),
    "bn_copies": Method("BN, samples twice", "batch", copies=2),
    "renorm_copies": Method("BN Renorm, samples twice", "batch_renorm", copies=2),
    "adam": Method("vanilla, Adam", adam=True),
    "bnp_adam": Method("BNP with Adam", preconditioner={}, adam=True),
}


def build(
    network: str, method: Method, batch_size: int, steps: int, shape: torch.Size
) -> nn.Module:
    """Build the paper's network with the method's normaliser; weights are Glorot uniform."""
    norms = _norms(method.norm, batch_size, steps)
    if network == "fc":
        net = models.mlp(
            shape.numel(), 10, depth=3, width=100, norm=norms(0), after_activation=True
        )
        return models.glorot_uniform_(net)
    size, channels = (int(shape[-2]), int(shape[-1])), int(shape[0])
    # The tutorial's valid padding needs 18 pixels a side.
    padding: Literal["valid", "same"] = "valid" if min(size) >= 18 else "same"
    return models.cnn5(
        10, channels, image_size=size, padding=padding, norm=norms(2), dense_norm=norms(0)
    )


def optimizer(method: Method, model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """Plain SGD, or Adam with PyTorch's defaults."""
    if method.adam:
        return torch.optim.Adam(model.parameters(), lr=rate)
    return torch.optim.SGD(model.parameters(), lr=rate)


def attached(
    method: Method, model: nn.Module, stepper: torch.optim.Optimizer
) -> AbstractContextManager[Any]:
    """Attach BNP to the optimiser, if the method has it."""
    if method.preconditioner is None:
        return nullcontext()
    return BNP(model, **method.preconditioner).attach(stepper)


def loss_of(method: Method) -> LossFunction:
    """Cross-entropy, with the four things' weight decay of γ and β."""
    if method.norm != "four_things":
        return cross_entropy

    def decayed(model: nn.Module, batch: Any) -> torch.Tensor:
        penalty = layers.gamma_beta_penalty(model, _GAMMA_BETA_DECAY) if model.training else 0.0
        return cross_entropy(model, batch) + penalty

    return decayed


def _norms(kind: Norm, batch_size: int, steps: int) -> Callable[[int], Norm]:
    """Normalisers by the number of spatial dimensions, with TensorFlow's settings."""

    def make(dims: int) -> Norm:
        if kind == "batch_renorm":
            renorm = layers.BatchRenorm1d if dims == 0 else layers.BatchRenorm2d
            return partial(renorm, eps=_EPS, momentum=_MOMENTUM, schedule=_schedule(steps))
        if kind == "four_things" and batch_size >= _LARGE_BATCH:
            four = layers.FourThingsBatchNorm1d if dims == 0 else layers.FourThingsBatchNorm2d
            return partial(four, eps=_EPS, momentum=_MOMENTUM, virtual_batch_size=_VIRTUAL_BATCH)
        return partial(make_norm, kind, dims=dims, group_size=4, eps=_EPS, momentum=_MOMENTUM)

    if kind == "none":
        return lambda dims: "none"
    return make


def _schedule(steps: int) -> RenormSchedule:
    return RenormSchedule(
        warmup=round(_RENORM_WARMUP * steps),
        d_steps=round(_RENORM_D * steps),
        r_steps=round(_RENORM_R * steps),
    )
