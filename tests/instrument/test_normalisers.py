"""The registry of normalisation layers: PyTorch's kinds, their subclasses, and layers by name."""

import torch
from torch import nn
from torch.nn.utils import parametrizations

from equipoise.instrument.normalisers import (
    NormaliserKind,
    is_batch_norm,
    is_channels_first,
    is_normaliser,
    kind_of,
    register,
    rows_sharing_statistics,
    shares_batch_statistics,
)
from equipoise.layers import BatchRenorm1d, GhostBatchNorm2d
from equipoise.layers.frozen_batch_norm import FrozenBatchNorm
from support.cases import each


class OwnStatistics(nn.modules.batchnorm._NormBase):
    """A user's layer on PyTorch's base."""


class GroupNormAct(nn.GroupNorm):
    """More than a group norm."""


@each(
    ("module", "name", "shares", "channels_first"),
    [
        (nn.BatchNorm2d(2), "batch", True, True),
        (nn.LazyBatchNorm1d(), "batch", True, True),
        (nn.SyncBatchNorm(2), "batch", True, True),
        (nn.InstanceNorm1d(2), "instance", False, True),
        (nn.LazyInstanceNorm3d(), "instance", False, True),
        (OwnStatistics(2, 1e-5, 0.1, True, True), "custom", True, True),
        (nn.GroupNorm(1, 2), "group", False, True),
        (GroupNormAct(1, 2), "group", False, True),
        (parametrizations.spectral_norm(nn.BatchNorm2d(2)), "batch", True, True),
        (nn.LayerNorm(2), "layer", False, False),
        (nn.RMSNorm(2), "rms", False, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_pytorchs_layers_and_their_subclasses(module, name, shares, channels_first):
    assert kind_of(module).name == name
    assert is_normaliser(module)
    assert shares_batch_statistics(module) == shares
    assert is_channels_first(module) == channels_first
    assert is_batch_norm(module) == (name == "batch")


class LlamaRMSNorm(nn.Module):
    """A language model's own layer."""


class NormalisedBlock(nn.Sequential):
    """A block that is named after its normaliser."""


def test_a_layer_named_after_a_norm_counts_without_facts():
    for module in (LlamaRMSNorm(), nn.LocalResponseNorm(2)):
        assert is_normaliser(module)
        assert kind_of(module) is None
        assert not shares_batch_statistics(module)
        assert not is_channels_first(module)


def test_other_layers_and_blocks_do_not():
    for module in (nn.Linear(2, 2), nn.Identity(), NormalisedBlock(nn.Linear(2, 2))):
        assert not is_normaliser(module)


class NormLinear(nn.Linear):
    """A layer with a matrix that is named after a norm, like the cosine heads of face models."""


class NormalNoise(nn.Module):
    """Named after a distribution."""


class Normalize(nn.Module):
    """Named after what it does."""


class NormConv(nn.Conv2d):
    """The same of a convolution."""


class HeadNorm(nn.Module):
    """One scale for each head and feature."""

    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(4, 1, 16))


class MapNorm(nn.Module):
    """One scale for each place of a map."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 4, 4))


class GlobalResponseNorm(nn.Module):
    """Scales of shape [1, 1, 1, C] are those of a norm."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 1, 1, 8))


@each(
    ("module", "counts"),
    [
        (NormLinear(3, 8), False),
        (NormConv(3, 8, 1), False),
        (HeadNorm(), True),
        (MapNorm(), True),
        (NormalNoise(), False),
        (Normalize(), True),
        (GlobalResponseNorm(), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_name_alone_does_not_make_a_matrix_a_scale(module, counts):
    assert is_normaliser(module) == counts


@each(
    ("module", "rows"),
    [
        (nn.BatchNorm2d(2), 64),
        (nn.BatchNorm2d(2).eval(), None),
        (nn.BatchNorm2d(2, track_running_stats=False).eval(), 64),
        (GhostBatchNorm2d(2, virtual_batch_size=2), 32),
        (GhostBatchNorm2d(2, virtual_batch_size=8), 64),
        (BatchRenorm1d(2), None),  # corrects by running statistics
        (FrozenBatchNorm(2), None),
        (nn.GroupNorm(1, 2), None),
        (nn.Linear(2, 2), None),
    ],
)
def test_rows_that_share_statistics(module, rows):
    """Four samples of sixteen positions."""
    assert rows_sharing_statistics(module, 64, 4) == rows


def test_a_registered_layer_counts_whatever_its_name_and_children():
    class Whitening(nn.Sequential):
        pass

    class Faster(Whitening):
        pass

    layer = Faster(nn.Linear(2, 2))
    assert not is_normaliser(layer)
    kind = NormaliserKind(
        "whitening", (Whitening,), shares_batch_statistics=True, channels_first=False
    )
    assert register(kind) is kind
    assert is_normaliser(layer)
    assert kind_of(layer) is kind
    assert (shares_batch_statistics(layer), is_channels_first(layer)) == (True, False)
