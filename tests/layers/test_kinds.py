"""The registry's facts about the library's layers against what the layers do."""

import torch
from torch import nn

from equipoise.instrument.normalisers import (
    is_batch_norm,
    is_channels_first,
    kind_of,
    shares_batch_statistics,
)
from equipoise.layers import LpNorm
from equipoise.layers.kinds import SOURCES
from support.cases import each

LAYERS = {cls.__name__: (name, cls) for name, kind in SOURCES.items() for cls in kind.classes}
LAYERS["LpNorm"] = ("lp", LpNorm)
OPTIONS = {
    "instance": {"affine": True},
    "noisy": {"mean_limit": 0, "scale_limit": 1, "mean_spread": 0, "scale_spread": 0},
    "lp": {"p": 1},
}


@each(("name", "cls"), LAYERS.values(), ids=LAYERS)
class TestFacts:
    def layer(self, name, cls):
        return cls(*(2, 4) if name == "group" else (4,), **OPTIONS.get(name, {})).double()

    def inputs(self, name, cls):
        positions = {"1d": 1, "2d": 2, "3d": 3}.get(cls.__name__[-2:], 2)
        shape = (
            (3, *(5,) * positions, 4) if name in ("layer", "rms") else (3, 4, *(5,) * positions)
        )
        generator = torch.Generator().manual_seed(0)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def test_every_layer_has_its_kind(self, name, cls):
        assert kind_of(self.layer(name, cls)).name == name

    def test_shared_statistics(self, name, cls):
        """Measured: does the first sample's output depend on the last sample?"""
        layer, x = self.layer(name, cls), self.inputs(name, cls)
        other = x.clone()
        other[-1] *= 2
        depends = not torch.allclose(layer(x)[0], layer(other)[0])
        assert depends == shares_batch_statistics(layer)

    def test_where_channels_are(self, name, cls):
        """Measured: which dimension γ runs along."""
        layer, x = self.layer(name, cls), self.inputs(name, cls)
        before = layer(x)
        with torch.no_grad():
            layer.weight[0] *= 2
        changed = layer(x) != before
        first = changed[:, 0].any() and not changed[:, 1:].any()
        assert bool(first) == is_channels_first(layer)


def test_four_things_and_lp_norm_are_no_batch_norms():
    """Tools that fold batch norms into weights must leave them alone."""
    batch_norms = {name for name, cls in LAYERS.values() if issubclass(cls, nn.BatchNorm2d)}
    others = {name for name, _ in LAYERS.values()} - batch_norms
    assert others == {"four_things", "frozen", "lp", "instance", "group", "layer", "rms"}
    for name, cls in LAYERS.values():
        layer = TestFacts().layer(name, cls)
        assert is_batch_norm(layer) == (name in batch_norms)
