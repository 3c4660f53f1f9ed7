"""Every trainable parameter is in exactly one layer, and layers are in order of use."""

import pytest
import torch
from torch import nn

from equipoise.instrument.replay import Replay
from equipoise.probes.hessian.blocks import layers, named, whole
from support.probe_models import MODELS, batch, build, loss_fn


def replay(model, loss=loss_fn, data=None):
    return Replay(model, loss, batch() if data is None else data)


def names(model, loss=loss_fn, data=None):
    return [block.name for block in layers(replay(model, loss, data))]


class Backwards(nn.Module):
    """Registered last, used first."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.last, self.first = nn.Linear(4, 1), nn.Linear(6, 4)

    def forward(self, x):
        return self.last(self.first(x)) * self.scale


class TestLayers:
    @pytest.mark.parametrize("name", MODELS)
    def test_partition_the_trainable_parameters(self, name):
        found = replay(build(name))
        indices = [index for block in layers(found) for index in block.indices]
        assert sorted(indices) == list(whole(found).indices) == list(range(len(found.parameters)))

    def test_in_order_of_use(self):
        assert names(Backwards()) == ["first", "last", "Backwards"]

    def test_parameters_of_attention_that_no_module_call_shows(self):
        model = nn.MultiheadAttention(6, 2, batch_first=True)
        x = torch.ones(2, 3, 6)
        found = names(model, lambda m, x: m(x, x, x)[0].sum(), x)
        assert found == ["MultiheadAttention", "out_proj"]

    def test_parametrizations_belong_to_their_layer(self):
        assert names(build("parametrizations")) == ["0", "2"]

    def test_a_shared_parameter_is_in_its_first_layer(self):
        blocks = layers(replay(build("tied weights")))
        assert [(block.name, len(block.indices)) for block in blocks] == [("0", 2), ("2", 1)]

    def test_frozen_parameters_are_in_none(self):
        assert names(build("frozen parameters")) == ["1", "4", "8", "9", "12"]

    def test_unused_ones_come_last(self):
        assert names(build("containers"))[-1] == "unused"

    def test_compiled_models_have_the_names_of_the_original(self):
        model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1))
        with torch.compiler.set_stance("force_eager"):
            assert names(torch.compile(model, backend="eager")) == ["0", "1"]


class TestNamed:
    def test_one_parameter_or_several_by_any_iterable(self):
        model = build("plain")
        groups = {"a": model[0].weight, "b": model[4].parameters(), "c": {model[2].bias}}
        found = {block.name: block.indices for block in named(replay(model), groups)}
        assert found == {"a": (0,), "b": (4, 5), "c": (3,)}

    def test_repeated_members_count_once(self):
        model = build("plain")
        (block,) = named(replay(model), {"a": [model[0].bias, model[0].weight, model[0].bias]})
        assert block.indices == (0, 1)

    @pytest.mark.parametrize(
        ("group", "holds"), [([], "no parameter"), ([torch.ones(1)], "something else")]
    )
    def test_what_is_no_group(self, group, holds):
        with pytest.raises(ValueError, match=f"block 'a' needs trainable .* and holds {holds}"):
            named(replay(build("plain")), {"a": group})
