"""Where every path from the batch meets, on networks whose paths are known."""

import pytest
import torch
from torch import nn

from equipoise import diagnosis
from equipoise.diagnosis.trainability.entrance import passages
from equipoise.instrument.recording.tracer import trace


def passed(model, batch, last=None):
    """Operations with their modules that all paths to the last layer pass."""
    graph = trace(model, batch, lambda model, x: model(x).square().mean())
    end = max(node.number for node in graph.nodes if node.module == (last or "head"))
    found = passages(graph, end)
    assert max(found) == end
    return [graph.nodes[number].module for number in sorted(found)]


class Branched(nn.Module):
    """A stream with one branch beside it, and a head."""

    def __init__(self, *, stem, shortcut=True):
        super().__init__()
        self.stem = stem
        self.branch = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
        self.shortcut = shortcut

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.branch(x) if self.shortcut else self.branch(x))


class Conditioned(nn.Module):
    """Layers that all take the same embedding of a time, as in diffusion models."""

    def __init__(self, *, features):
        super().__init__()
        self.times = nn.Linear(1, 8)
        self.first, self.second, self.head = (nn.Linear(8, 8) for _ in range(3))
        self.features = features

    def forward(self, x):
        when = x[:, :1] if self.features else torch.arange(len(x))[:, None] / len(x)
        shift = self.times(when)
        return self.head(self.second(self.first(x) + shift) + shift)


class TestPassages:
    def test_a_chain_is_passed_everywhere(self):
        layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
        assert passed(layers, torch.randn(4, 8), "2") == ["0", "1", "2"]

    def test_a_branch_is_not(self):
        model = Branched(stem=nn.Linear(8, 8))
        assert passed(model, torch.randn(4, 8)) == ["stem", "Branched", "head"]

    def test_unless_nothing_goes_around_it(self):
        model = Branched(stem=nn.Linear(8, 8), shortcut=False)
        assert passed(model, torch.randn(4, 8)) == ["stem", "branch", "head"]

    def test_what_is_looked_up_is_where_paths_begin(self):
        model = Branched(stem=nn.Embedding(20, 8))
        assert passed(model, torch.randint(20, (4, 5)))[0] == "stem"

    def test_the_batch_itself_can_go_around_a_layer(self):
        model = Branched(stem=nn.Identity())
        assert passed(model, torch.randn(4, 8)) == ["Branched", "head"]

    def test_a_table_of_positions_is_no_path(self):
        model = Conditioned(features=False)
        through = ["first", "Conditioned", "second", "Conditioned", "head"]
        assert passed(model, torch.randn(4, 8)) == through

    def test_but_features_of_the_batch_are(self):
        model = Conditioned(features=True)
        assert passed(model, torch.randn(4, 8)) == ["Conditioned", "head"]

    def test_paths_behind_the_end_do_not_count(self):
        """An autoencoder's loss takes the batch again."""
        model = Branched(stem=nn.Linear(8, 8))
        model.head = nn.Linear(8, 8)
        graph = trace(model, torch.randn(4, 8), lambda model, x: (model(x) - x).square().mean())
        end = max(node.number for node in graph.nodes if node.module == "head")
        assert graph.nodes[min(passages(graph, end))].module == "stem"


class Attending(nn.Module):
    """Blocks of attention on a stream of looked-up tokens; queries have little gradient."""

    def __init__(self, depth=2, width=64):
        super().__init__()
        self.embedding = nn.Embedding(50, width)
        self.blocks = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.head = nn.Linear(width, 50)

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            q, k, v = block(nn.functional.layer_norm(x, x.shape[-1:])).unsqueeze(1).chunk(3, -1)
            x = x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
        return self.head(x).transpose(1, 2)


@pytest.mark.parametrize("source", ["predicted", "measured"])
def test_a_stream_around_a_first_layer_does_not_vanish(source):
    torch.manual_seed(0)
    model = Attending()
    with torch.no_grad():
        for block in model.blocks:
            block.weight.mul_(0.01)
    tokens = torch.randint(50, (8, 12))
    found = diagnosis.trainability(model, (tokens, tokens), depth=False)
    assert getattr(found, source).vanishing < 1
    assert getattr(found, source).explosion < 1
