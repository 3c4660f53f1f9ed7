"""The registry of normalisation layers: what counts as a normaliser, and what each kind does.

PyTorch's own kinds are registered here, those of :mod:`equipoise.layers` when that room is
imported. :func:`register` adds your own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.conv import _ConvNd

# "NormalNoise" is named after a distribution, "Normalize" after what it does.
_NAMED_AFTER_A_NORM = re.compile(r"norm(?!al(?!i[sz]))", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NormaliserKind:
    """One kind of normalisation layer.

    Attributes:
        name: What it is called, such as ``"batch"``.
        classes: The layers of this kind. Subclasses that are not registered themselves count
            as well.
        shares_batch_statistics: Whether training normalises by statistics over several samples,
            so that a sample's output depends on the others in its batch.
        channels_first: Whether channels are dimension 1 of the input, rather than the last.
        bases: Abstract classes whose subclasses are of this kind, like those of ``classes``.
        corrects_statistics: Whether training comes to normalise by running statistics, so that
            those of few samples do no harm.
    """

    name: str
    classes: tuple[type[nn.Module], ...]
    shares_batch_statistics: bool
    channels_first: bool
    bases: tuple[type[nn.Module], ...] = ()
    corrects_statistics: bool = False


_KINDS: dict[type[nn.Module], NormaliserKind] = {}


def register(kind: NormaliserKind) -> NormaliserKind:
    """Add a kind of normalisation layer; of two kinds with one class, the later holds.

    Examples:
        >>> class Centred(nn.Module):
        ...     def forward(self, x):
        ...         return x - x.mean(0)
        >>> is_normaliser(Centred())
        False
        >>> _ = register(
        ...     NormaliserKind(
        ...         "centred", (Centred,), shares_batch_statistics=True, channels_first=False
        ...     )
        ... )
        >>> is_normaliser(Centred()), shares_batch_statistics(Centred())
        (True, True)
    """
    _KINDS.update(dict.fromkeys((*kind.classes, *kind.bases), kind))
    return kind


def kind_of(module: nn.Module) -> NormaliserKind | None:
    """The kind of a registered layer, or of the nearest one that its class derives from.

    Examples:
        >>> kind_of(nn.SyncBatchNorm(2)).name
        'batch'
        >>> kind_of(nn.Linear(2, 2)) is None
        True
    """
    return next((_KINDS[c] for c in type(module).__mro__ if c in _KINDS), None)


def is_normaliser(module: nn.Module) -> bool:
    """Whether a module normalises activations.

    Beside registered layers, any module without children whose class is named after a norm
    counts, such as a language model's own ``LlamaRMSNorm``, unless it has a matrix: a linear
    layer may be named after a norm too.

    Examples:
        >>> class NormLinear(nn.Linear): ...
        >>> is_normaliser(nn.LayerNorm(2)), is_normaliser(NormLinear(2, 2))
        (True, False)
    """
    if kind_of(module) is not None:
        return True
    named = _NAMED_AFTER_A_NORM.search(type(module).__name__) is not None
    return named and not list(module.children()) and not _has_matrix(module)


def _has_matrix(module: nn.Module) -> bool:
    """Whether a module mixes features; scales may be of shape ``[1, C, 1, 1]`` or more."""
    if isinstance(module, nn.Linear | _ConvNd):
        return True
    return any(p.ndim == 2 and min(p.shape) > 1 for p in module.parameters())


def rows_sharing_statistics(module: nn.Module, rows: int, samples: int) -> int | None:
    """Over how many rows a layer averages in the mode that it is in.

    Args:
        module: Any module.
        rows: Samples, times positions of a feature map.
        samples: Samples.

    Returns:
        ``None`` where it normalises by statistics of single samples, by running ones, or by
        none at all.

    Examples:
        >>> rows_sharing_statistics(nn.BatchNorm2d(2), 64, 4)
        64
        >>> rows_sharing_statistics(nn.BatchNorm2d(2).eval(), 64, 4) is None
        True
    """
    kind = kind_of(module)
    if kind is None or not kind.shares_batch_statistics or kind.corrects_statistics:
        return None
    if not module.training and getattr(module, "running_mean", None) is not None:
        return None
    together = getattr(module, "virtual_batch_size", None)
    if not isinstance(together, int):
        return rows
    return rows // max(samples, 1) * min(together, samples)


def is_batch_norm(module: nn.Module) -> bool:
    """Whether a module is PyTorch's batch norm or derives from it.

    Its statistics are over samples for each channel alone, and its evaluation is batch norm's.
    Not all layers that share batch statistics are.
    """
    return isinstance(module, BATCH.bases)


def shares_batch_statistics(module: nn.Module) -> bool:
    """Whether a module is a registered normaliser by statistics over several samples."""
    kind = kind_of(module)
    return kind is not None and kind.shares_batch_statistics


def is_channels_first(module: nn.Module) -> bool:
    """Whether a module is a registered normaliser with channels in dimension 1."""
    kind = kind_of(module)
    return kind is not None and kind.channels_first


BATCH = register(
    NormaliserKind(
        "batch",
        (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
        shares_batch_statistics=True,
        channels_first=True,
        bases=(nn.modules.batchnorm._BatchNorm,),
    )
)
INSTANCE = register(
    NormaliserKind(
        "instance",
        (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
        shares_batch_statistics=False,
        channels_first=True,
        bases=(nn.modules.instancenorm._InstanceNorm,),
    )
)
GROUP = register(
    NormaliserKind("group", (nn.GroupNorm,), shares_batch_statistics=False, channels_first=True)
)
LAYER = register(
    NormaliserKind("layer", (nn.LayerNorm,), shares_batch_statistics=False, channels_first=False)
)
RMS = register(
    NormaliserKind("rms", (nn.RMSNorm,), shares_batch_statistics=False, channels_first=False)
)
# A user's layer on the base that PyTorch's batch and instance norm have in common.
register(
    NormaliserKind(
        "custom",
        (),
        shares_batch_statistics=True,
        channels_first=True,
        bases=(nn.modules.batchnorm._NormBase,),
    )
)
