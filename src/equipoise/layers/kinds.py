"""The kinds of normalisation layers that can be exchanged: how to read and how to build each."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from equipoise.instrument.normalisers import (
    BATCH,
    GROUP,
    INSTANCE,
    LAYER,
    RMS,
    NormaliserKind,
    kind_of,
    register,
)
from equipoise.layers.batch_renorm import (
    BatchRenorm1d,
    BatchRenorm2d,
    BatchRenorm3d,
    RenormSchedule,
)
from equipoise.layers.four_things import (
    FourThingsBatchNorm1d,
    FourThingsBatchNorm2d,
    FourThingsBatchNorm3d,
)
from equipoise.layers.frozen_batch_norm import FrozenBatchNorm
from equipoise.layers.ghost_batch_norm import GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d
from equipoise.layers.lp_norm import LpNorm
from equipoise.layers.noisy_batch_norm import NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d
from equipoise.layers.synchronised_batch_norm import (
    SynchronisedBatchNorm1d,
    SynchronisedBatchNorm2d,
    SynchronisedBatchNorm3d,
)

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
PARAMETERS = ("weight", "bias")

# A layer's default where its predecessor has none.
_EPS, _MOMENTUM = 1e-5, 0.1

# Wu and He 2018, section 4: 32 groups, their default. Narrow layers get fewer.
GROUPS = 32
_VIRTUAL_BATCH_SIZE = 32


def _batch_kind(
    name: str, *classes: type[nn.Module], corrects_statistics: bool = False
) -> NormaliserKind:
    return register(
        NormaliserKind(
            name,
            classes,
            shares_batch_statistics=True,
            channels_first=True,
            corrects_statistics=corrects_statistics,
        )
    )


_RENORM = _batch_kind(
    "batch_renorm", BatchRenorm1d, BatchRenorm2d, BatchRenorm3d, corrects_statistics=True
)
_GHOST = _batch_kind("ghost", GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d)
_FOUR_THINGS = _batch_kind(
    "four_things", FourThingsBatchNorm1d, FourThingsBatchNorm2d, FourThingsBatchNorm3d
)
_NOISY = _batch_kind("noisy", NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d)
_SYNCHRONISED = _batch_kind(
    "synchronised", SynchronisedBatchNorm1d, SynchronisedBatchNorm2d, SynchronisedBatchNorm3d
)
_batch_kind("lp", LpNorm)
_FROZEN = register(
    NormaliserKind(
        "frozen", (FrozenBatchNorm,), shares_batch_statistics=False, channels_first=True
    )
)

SOURCES = {
    kind.name: kind
    for kind in (
        BATCH, _RENORM, _GHOST, _FOUR_THINGS, _NOISY, _SYNCHRONISED, _FROZEN, INSTANCE, GROUP,
        LAYER, RMS,
    )
}  # fmt: skip
"""Kinds that can be exchanged, by name."""

TARGETS = (*SOURCES, "none")
"""Names of the kinds that :func:`build` makes."""


class CannotConvertError(Exception):
    """Why one layer stays as it is; caught by ``convert``."""


@dataclass(frozen=True, slots=True)
class Normaliser:
    """What the successor of a normalisation layer needs to know about it.

    Attributes:
        module: The layer itself.
        kind: Name of its kind.
        channels: Features C that it normalises.
        dims: Dimensions of positions that its input may have behind ``[N, C]``; empty if its
            class leaves them open.
        channels_last: Whether it normalises the last dimension.
        eps: Its ε.
        momentum: Of its running statistics; None for cumulative ones.
        affine: Whether it has γ.
        track_running_stats: Whether a batch norm keeps running statistics; True for other
            layers, so that a batch norm in their place does.
        device: Of its tensors; None if it has none.
        dtype: Of its tensors; None if it has none.
    """

    module: nn.Module
    kind: str
    channels: int
    dims: tuple[int, ...]
    channels_last: bool
    eps: float
    momentum: float | None
    affine: bool
    track_running_stats: bool
    device: torch.device | None
    dtype: torch.dtype | None


@dataclass(frozen=True, slots=True)
class Options:
    """Choices for the new layers, explained at :func:`~equipoise.layers.convert`."""

    groups: int | None = None
    virtual_batch_size: int | None = None
    example_weight: float = 0.0
    schedule: RenormSchedule | None = None
    process_group: dist.ProcessGroup | None = None


def exchangeable_kind(module: nn.Module) -> NormaliserKind | None:
    """The kind of a layer that can be exchanged: of exactly a registered class, no subclass."""
    kind = kind_of(module)
    if kind is None or type(module) not in kind.classes or SOURCES.get(kind.name) is not kind:
        return None
    return kind


def read(module: nn.Module, kind: NormaliserKind, dims: int | None) -> Normaliser:
    """Describe a layer.

    Args:
        module: A layer of that kind.
        kind: One of :data:`SOURCES`.
        dims: Dimensions of positions where the layer's class leaves them open.

    Raises:
        CannotConvertError: If it normalises several dimensions at once.
    """
    eps = getattr(module, "eps", None)
    tensor = next(
        (t for n in (*PARAMETERS, *STATISTICS) if (t := tensor_of(module, n)) is not None), None
    )
    return Normaliser(
        module=module,
        kind=kind.name,
        channels=_channels(module),
        dims=_possible_dims(_dims(module), dims),
        channels_last=not kind.channels_first,
        eps=_EPS if eps is None else eps,
        momentum=getattr(module, "momentum", _MOMENTUM),
        affine=tensor_of(module, "weight") is not None,
        track_running_stats=not kind.shares_batch_statistics
        or tensor_of(module, "running_mean") is not None,
        device=None if tensor is None else tensor.device,
        dtype=None if tensor is None else tensor.dtype,
    )


def tensor_of(module: nn.Module, name: str) -> Tensor | None:
    """The module's parameter or buffer of that name, if it has one."""
    value = getattr(module, name, None)
    return value if isinstance(value, Tensor) else None


def _channels(module: nn.Module) -> int:
    shape = getattr(module, "normalized_shape", None)
    if shape is not None:
        if len(shape) != 1:
            raise CannotConvertError(f"it normalises {len(shape)} dimensions at once")
        return int(shape[0])
    # Every kind has one of the two, which nn.Module does not declare.
    return int(getattr(module, "num_channels", None) or module.num_features)  # type: ignore[arg-type]


def _dims(module: nn.Module) -> tuple[int, ...]:
    if isinstance(module, nn.InstanceNorm1d):
        return (1,)
    for dims, digit in (((0, 1), "1d"), ((2,), "2d"), ((3,), "3d")):
        if type(module).__name__.endswith(digit):
            return dims
    return ()


def _possible_dims(known: tuple[int, ...], given: int | None) -> tuple[int, ...]:
    if given is not None and (not known or given in known):
        return (given,)
    return known


def build(kind: str, source: Normaliser, options: Options) -> nn.Module:
    """Make the successor of a layer.

    Args:
        kind: One of :data:`TARGETS`.
        source: The layer.
        options: Choices that the layer leaves open.

    Raises:
        CannotConvertError: If the kind does not fit the layer's inputs.
    """
    match kind:
        case "none":
            return nn.Identity()
        case "batch":
            return _like_batch_norm(source, BATCH)
        case "batch_renorm":
            return _like_batch_norm(source, _RENORM, schedule=options.schedule)
        case "ghost":
            size = options.virtual_batch_size or _VIRTUAL_BATCH_SIZE
            return _like_batch_norm(source, _GHOST, virtual_batch_size=size)
        case "four_things":
            return _like_batch_norm(
                source,
                _FOUR_THINGS,
                groups=math.gcd(options.groups or source.channels, source.channels),
                virtual_batch_size=options.virtual_batch_size,
                example_weight=options.example_weight,
            )
        case "noisy":
            return _like_batch_norm(source, _NOISY)
        case "synchronised":
            return _like_batch_norm(source, _SYNCHRONISED, process_group=options.process_group)
        case "frozen":
            _check_channels_first(source)
            return FrozenBatchNorm(
                source.channels, source.eps, source.affine, source.device, source.dtype
            )
        case "instance":
            return _instance_norm(source)
        case "group":
            return _group_norm(source, math.gcd(options.groups or GROUPS, source.channels))
        case "layer" if source.channels_last:
            return _over_last_dimension(source, nn.LayerNorm)
        case "layer":
            # One group is layer norm with its γ per channel; nn.LayerNorm would normalise
            # positions.
            return _group_norm(source, 1)
        case "rms":
            return _rms_norm(source)
    raise AssertionError(f"no kind {kind!r}")


def _like_batch_norm(source: Normaliser, kind: NormaliserKind, **options: Any) -> nn.Module:
    _check_channels_first(source)
    if not source.dims:
        raise CannotConvertError(
            f"{type(source.module).__name__} does not tell how many dimensions its input has: "
            "pass dims= (0 for [N, C], 2 for images)"
        )
    return kind.classes[max(source.dims[-1], 1) - 1](
        source.channels,
        eps=source.eps,
        momentum=source.momentum,
        affine=source.affine,
        track_running_stats=source.track_running_stats,
        device=source.device,
        dtype=source.dtype,
        **options,
    )


def _check_channels_first(source: Normaliser) -> None:
    if source.channels_last and source.dims != (0,):
        raise CannotConvertError(
            "it normalises the last dimension, which is the channels' only for inputs [N, C]: "
            "pass dims=0 if that is what it gets"
        )


def _instance_norm(source: Normaliser) -> nn.Module:
    # [N, C] would be taken for one sample [C, L] without a batch, and normalised over channels.
    if 0 in source.dims:
        raise CannotConvertError(
            "instance norm needs positions, and its inputs may be [N, C]: pass dims=1 if they "
            "are [N, C, L]"
        )
    return _like_batch_norm(replace(source, track_running_stats=False), INSTANCE)


def _group_norm(source: Normaliser, groups: int) -> nn.Module:
    _check_channels_first(source)
    return nn.GroupNorm(
        groups,
        source.channels,
        eps=source.eps,
        affine=source.affine,
        device=source.device,
        dtype=source.dtype,
    )


def _rms_norm(source: Normaliser) -> nn.Module:
    if not source.channels_last and source.dims != (0,):
        raise CannotConvertError(
            "nn.RMSNorm normalises the last dimension, which is not that of the channels: pass "
            "dims=0 if its inputs are [N, C]"
        )
    return _over_last_dimension(source, nn.RMSNorm)


def _over_last_dimension(
    source: Normaliser, kind: type[nn.LayerNorm] | type[nn.RMSNorm]
) -> nn.Module:
    return kind(
        source.channels,
        eps=source.eps,
        elementwise_affine=source.affine,
        device=source.device,
        dtype=source.dtype,
    )
