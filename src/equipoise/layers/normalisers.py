"""The kinds of normalisation layers that can be exchanged: how to read and how to build each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from equipoise.layers.batch_renorm import BatchRenorm1d, BatchRenorm2d, BatchRenorm3d
from equipoise.layers.four_things import (
    FourThingsBatchNorm1d,
    FourThingsBatchNorm2d,
    FourThingsBatchNorm3d,
)
from equipoise.layers.ghost_batch_norm import GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d
from equipoise.layers.noisy_batch_norm import NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d
from equipoise.layers.schedule import RenormSchedule

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
PARAMETERS = ("weight", "bias")

# A layer's default where its predecessor has none.
_EPS, _MOMENTUM = 1e-5, 0.1

# Wu and He 2018, section 4: 32 groups, their default. Narrow layers get fewer.
_GROUPS = 32
_VIRTUAL_BATCH_SIZE = 32

_BATCH = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_RENORM = (BatchRenorm1d, BatchRenorm2d, BatchRenorm3d)
_GHOST = (GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d)
_FOUR_THINGS = (FourThingsBatchNorm1d, FourThingsBatchNorm2d, FourThingsBatchNorm3d)
_NOISY = (NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d)
_INSTANCE = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)

_Layer = TypeVar("_Layer", bound=nn.Module)


class CannotConvertError(Exception):
    """Why one layer stays as it is; never leaves this package."""


@dataclass(frozen=True, slots=True)
class Normaliser:
    """A normalisation layer as its successor needs to know it.

    Attributes:
        module: The layer itself.
        kind: Its key in the table of kinds.
        channels: Features C that it normalises.
        dims: Dimensions of positions that its input may have behind ``[N, C]``; empty if the
            layer does not tell.
        channels_last: Whether it normalises the last dimension.
        eps: Its ε.
        momentum: Of its running statistics; None for cumulative ones.
        affine: Whether it has γ.
        track_running_stats: Whether a batch norm keeps running statistics; True for others,
            whose successor may.
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
    """Choices for the new layers; what each means stands at :func:`~equipoise.layers.convert`."""

    groups: int | None = None
    virtual_batch_size: int | None = None
    example_weight: float = 0.0
    schedule: RenormSchedule | None = None


Build = Callable[[Normaliser, Options], nn.Module]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of normaliser.

    Attributes:
        classes: Exactly these classes are of the kind.
        build: Makes the successor of a layer of another kind.
        batch_statistics: Whether its running statistics describe a population of samples.
    """

    classes: tuple[type[nn.Module], ...]
    build: Build
    batch_statistics: bool = False


def read(module: nn.Module, kind: str, dims: int | None) -> Normaliser:
    """Describe a layer.

    Args:
        module: A layer of that kind.
        kind: Key in :data:`KINDS`.
        dims: Dimensions of positions where the layer does not tell.

    Raises:
        CannotConvertError: If it normalises several dimensions at once.
    """
    eps = getattr(module, "eps", None)
    tensor = next(
        (t for n in (*PARAMETERS, *STATISTICS) if (t := tensor_of(module, n)) is not None), None
    )
    return Normaliser(
        module=module,
        kind=kind,
        channels=_channels(module),
        dims=_narrow(_dims(module), dims),
        channels_last=isinstance(module, nn.LayerNorm | nn.RMSNorm),
        eps=_EPS if eps is None else eps,
        momentum=getattr(module, "momentum", _MOMENTUM),
        affine=tensor_of(module, "weight") is not None,
        track_running_stats=not KINDS[kind].batch_statistics
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


def _narrow(known: tuple[int, ...], given: int | None) -> tuple[int, ...]:
    if given is not None and (not known or given in known):
        return (given,)
    return known


def _of_dims(source: Normaliser, *classes: type[_Layer]) -> type[_Layer]:
    """The 1d, 2d or 3d class that fits the layer's input."""
    _needs_channels_first(source)
    if not source.dims:
        raise CannotConvertError(
            f"{type(source.module).__name__} does not tell how many dimensions its input has: "
            "pass dims= (0 for [N, C], 2 for images)"
        )
    return classes[max(source.dims[-1], 1) - 1]


def _needs_channels_first(source: Normaliser) -> None:
    if source.channels_last and source.dims != (0,):
        raise CannotConvertError(
            "it normalises the last dimension, which is the channels' only for inputs [N, C]: "
            "pass dims=0 if that is what it gets"
        )


def _like_batch_norm(source: Normaliser, *classes: type[_Layer]) -> _Layer:
    return _of_dims(source, *classes)(
        source.channels,
        eps=source.eps,
        momentum=source.momentum,
        affine=source.affine,
        track_running_stats=source.track_running_stats,
        device=source.device,
        dtype=source.dtype,
    )


def _batch(source: Normaliser, options: Options) -> nn.Module:
    return _like_batch_norm(source, *_BATCH)


def _batch_renorm(source: Normaliser, options: Options) -> nn.Module:
    layer = _like_batch_norm(source, *_RENORM)
    layer.schedule = RenormSchedule() if options.schedule is None else options.schedule
    return layer


def _ghost(source: Normaliser, options: Options) -> nn.Module:
    layer = _like_batch_norm(source, *_GHOST)
    layer.virtual_batch_size = options.virtual_batch_size or _VIRTUAL_BATCH_SIZE
    return layer


def _four_things(source: Normaliser, options: Options) -> nn.Module:
    layer = _like_batch_norm(source, *_FOUR_THINGS)
    layer.groups = math.gcd(options.groups or source.channels, source.channels)
    layer.virtual_batch_size = options.virtual_batch_size
    layer.example_weight = options.example_weight
    return layer


def _noisy(source: Normaliser, options: Options) -> nn.Module:
    return _like_batch_norm(source, *_NOISY)


def _instance(source: Normaliser, options: Options) -> nn.Module:
    # [N, C] would be taken for one sample [C, L] without a batch, and normalised over channels.
    if 0 in source.dims:
        raise CannotConvertError(
            "instance norm needs positions, and its inputs may be [N, C]: pass dims=1 if they "
            "are [N, C, L]"
        )
    source = replace(source, track_running_stats=False)
    return _like_batch_norm(source, *_INSTANCE)


def _group(source: Normaliser, options: Options) -> nn.Module:
    return _group_norm(source, math.gcd(options.groups or _GROUPS, source.channels))


def _group_norm(source: Normaliser, groups: int) -> nn.GroupNorm:
    _needs_channels_first(source)
    return nn.GroupNorm(
        groups,
        source.channels,
        eps=source.eps,
        affine=source.affine,
        device=source.device,
        dtype=source.dtype,
    )


def _layer(source: Normaliser, options: Options) -> nn.Module:
    # One group is layer norm with its γ per channel; nn.LayerNorm would normalise positions.
    if not source.channels_last:
        return _group_norm(source, 1)
    return nn.LayerNorm(
        source.channels,
        eps=source.eps,
        elementwise_affine=source.affine,
        device=source.device,
        dtype=source.dtype,
    )


def _rms(source: Normaliser, options: Options) -> nn.Module:
    if not source.channels_last and source.dims != (0,):
        raise CannotConvertError(
            "nn.RMSNorm normalises the last dimension, which is not that of the channels: pass "
            "dims=0 if its inputs are [N, C]"
        )
    return nn.RMSNorm(
        source.channels,
        eps=source.eps,
        elementwise_affine=source.affine,
        device=source.device,
        dtype=source.dtype,
    )


def _none(source: Normaliser, options: Options) -> nn.Module:
    return nn.Identity()


# A newcomer adds one line, and its builder.
KINDS: dict[str, Kind] = {
    "batch": Kind(_BATCH, _batch, batch_statistics=True),
    "batch_renorm": Kind(_RENORM, _batch_renorm, batch_statistics=True),
    "ghost": Kind(_GHOST, _ghost, batch_statistics=True),
    "four_things": Kind(_FOUR_THINGS, _four_things, batch_statistics=True),
    "noisy": Kind(_NOISY, _noisy, batch_statistics=True),
    "instance": Kind(_INSTANCE, _instance),
    "group": Kind((nn.GroupNorm,), _group),
    "layer": Kind((nn.LayerNorm,), _layer),
    "rms": Kind((nn.RMSNorm,), _rms),
    "none": Kind((), _none),
}
