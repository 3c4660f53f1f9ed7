"""Normalisation layers by name, for the models of this room."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

from torch import nn

from equipoise.instrument.normalisers import BATCH, INSTANCE, is_batch_norm, kind_of
from equipoise.layers.four_things import (
    FourThingsBatchNorm1d,
    FourThingsBatchNorm2d,
    FourThingsBatchNorm3d,
)
from equipoise.layers.kinds import GROUPS, Options, build, read
from equipoise.layers.lp_norm import LpNorm
from equipoise.layers.noisy_batch_norm import ActivationNoise
from equipoise.numerics.checks import check_size
from equipoise.numerics.options import named_options

NormKind = Literal[
    "none",
    "batch",
    "layer",
    "group",
    "instance",
    "batch_renorm",
    "ghost",
    "four_things",
    "noisy",
    "noise",
    "l1",
    "l2",
    "linf",
]
Norm = NormKind | Callable[[int], nn.Module]
"""A kind of :func:`make_norm`, or a function of the channels that makes a module."""

NORMS: tuple[NormKind, ...] = get_args(NormKind)

# Lange et al. 2022, appendix B: channels in a group, in their networks for CIFAR.
CIFAR_GROUP_SIZE = 4

_ORDERS = {"l1": 1, "l2": 2, "linf": math.inf}


@named_options
def make_norm(
    kind: Norm,
    channels: int,
    *,
    dims: int = 2,
    group_size: int | None = None,
    eps: float = 1e-5,
    momentum: float | None = 0.1,
) -> nn.Module:
    """Make a normalisation layer with γ and β per channel.

    - ``"none"``: the identity.
    - ``"batch"``, ``"batch_renorm"``, ``"ghost"`` (virtual batches of 32), ``"instance"``.
    - ``"group"``: groups of channels, within each sample.
    - ``"layer"``: all channels and positions of a sample.
    - ``"four_things"``: batch norm with statistics over groups of channels, which also works
      for batches of one sample. The weight of the example in evaluation is 0; set the layer's
      ``example_weight`` after training.
    - ``"noisy"``: batch norm followed, in training, by noise of unstable distribution;
      ``"noise"``: the same noise without batch norm, and without γ and β.
    - ``"l1"``, ``"l2"``, ``"linf"``: subtract the batch's mean and divide by the average ℓp
      size of its values before that; see :class:`~equipoise.layers.LpNorm`.

    For other options (a schedule of batch renormalisation, centred ℓp sizes) pass a function,
    such as ``partial(BatchRenorm2d, schedule=schedule)``. TensorFlow's batch norm is
    ``partial(make_norm, "batch", dims=0, eps=1e-3, momentum=0.01)``.

    Args:
        kind: One of the names above; or a function of the channels that makes a module, to
            which the other arguments are not passed.
        channels: Channels C of the input.
        dims: Dimensions of positions behind ``[N, C]``: 0 for dense layers, 2 for images.
        group_size: Channels in a group, for ``"group"`` and ``"four_things"``, where they
            divide C; otherwise their greatest common divisor. None for 32 groups, or the
            greatest common divisor of 32 and C.
        eps: Added to every variance, or ℓp size.
        momentum: Weight of the present batch in running statistics, where there are any; None
            for their cumulative average.

    Raises:
        ValueError: If the kind or the number of dimensions is unknown, a size is not
            positive, the function makes no module, or the kind is unfit for inputs without
            positions.

    Examples:
        >>> make_norm("group", 16, group_size=4).num_groups
        4
        >>> make_norm(nn.BatchNorm1d, 16).num_features
        16

    References:
        [wu2018] for groups; [lange2022], appendix B, for groups of 4; [ioffe2017],
        [hoffer2017], [summers2020] and [santurkar2018] for the layers of
        :mod:`equipoise.layers`.
    """
    check_size(channels=channels)
    if callable(kind):
        return _call(kind, channels)
    if kind not in NORMS:
        raise ValueError(
            f"norm must be one of {', '.join(NORMS)}, got {kind!r}. For any other layer pass a "
            "function of the channels that makes it, as nn.BatchNorm2d does."
        )
    if dims not in range(4):
        raise ValueError(
            f"dims must be 0 for inputs [N, C], or the number 1, 2 or 3 of dimensions behind; "
            f"got {dims!r}."
        )
    if group_size is not None:
        check_size(group_size=group_size)
    if kind == "noise":
        return ActivationNoise()
    if kind in _ORDERS:
        return LpNorm(channels, eps=eps, momentum=momentum, p=_ORDERS[kind])
    if kind == "layer" and dims == 0:
        return nn.LayerNorm(channels, eps=eps)
    groups = _groups(channels, group_size)
    if dims == 0:
        _check_without_positions(kind, channels, groups)
    batch_norm = BATCH.classes[max(dims, 1) - 1](channels, eps=eps, momentum=momentum)
    return build(kind, read(batch_norm, BATCH, dims), Options(groups=groups))


def subtracts_constants(norm: nn.Module) -> bool:
    """Whether a layer subtracts any constant added to a channel, such as a bias before it.

    Examples:
        >>> [subtracts_constants(make_norm(kind, 8)) for kind in ("batch", "layer")]
        [True, False]
    """
    if isinstance(norm, FourThingsBatchNorm1d | FourThingsBatchNorm2d | FourThingsBatchNorm3d):
        return norm.groups == norm.num_features
    if isinstance(norm, LpNorm):
        return norm.centered
    # Batch renormalisation adds d, but no gradient flows through it: a bias would never move.
    return is_batch_norm(norm) or kind_of(norm) is INSTANCE


def _call(make: Callable[[int], nn.Module], channels: int) -> nn.Module:
    # A module instance is callable too, but would be called on a number.
    made = None if isinstance(make, nn.Module) else make(channels)
    if not isinstance(made, nn.Module):
        raise ValueError(
            f"norm must make a module when called with the channels, as nn.BatchNorm2d does; "
            f"got {make!r}. Every layer needs its own: pass the class or a function."
        )
    return made


def _groups(channels: int, group_size: int | None) -> int:
    if group_size is None:
        return math.gcd(GROUPS, channels)
    return channels // math.gcd(group_size, channels)


def _check_without_positions(kind: str, channels: int, groups: int) -> None:
    # [N, C] would be taken for one sample [C, L] without a batch, and normalised over channels.
    if kind == "instance":
        raise ValueError(
            "instance norm needs positions, which inputs [N, C] of dense layers do not have: "
            "choose 'layer', 'group' or 'none' there."
        )
    if kind == "group" and groups == channels:
        raise ValueError(
            f"groups of one channel would map inputs [N, {channels}] to 0: choose a "
            "group_size with a divisor in common with the channels, or 'layer'."
        )
