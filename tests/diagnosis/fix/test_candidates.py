"""What is proposed of initial weights, and that it does what its words say."""

import pytest
import torch
from torch import nn

from equipoise.diagnosis.fix import candidates
from equipoise.diagnosis.fix.applied import apply, change_graph
from equipoise.diagnosis.fix.propose import propose
from equipoise.diagnosis.fix.words import in_words
from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation.propagate import propagate
from equipoise.training.losses import cross_entropy

DEPTH, WIDTH = 8, 64


def network(weights: float, bias: float) -> nn.Sequential:
    """ReLU layers without norms, whose hidden layers were spoilt."""
    torch.manual_seed(0)
    layers = []
    for _ in range(DEPTH):
        layer = nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            layer.weight.mul_(weights)
            layer.bias.add_(bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, WIDTH, generator=generator), torch.arange(32) % 10


def sizes(model: nn.Sequential) -> list[float]:
    """Mean squares of the outputs of all layers with weights."""
    found, x = [], batch()[0]
    with torch.no_grad():
        for layer in model:
            x = layer(x)
            if isinstance(layer, nn.Linear):
                found.append(float(x.square().mean()))
    return found


def correlation(model: nn.Sequential) -> float:
    with torch.no_grad():
        y = nn.functional.normalize(model(batch()[0]), dim=1)
    return float((y @ y.T).mean())


@pytest.mark.parametrize(("weights", "bias"), [(0.2, 0.0), (6.0, 0.0), (1.0, -10.0), (1.0, 3.0)])
class TestBalanceFromATextbooksStart:
    def remedies(self, model):
        return list(candidates.of_balance(propagate(trace(model, batch(), cross_entropy))))

    def test_gives_every_layer_outputs_of_size_one_that_differ(self, weights, bias):
        model = network(weights, bias)
        first = self.remedies(model)[0]
        assert "biases at 0" in in_words(first)
        apply(model, first)
        assert all(0.5 < size < 2 for size in sizes(model)[:-1])
        assert sizes(model)[-1] < 2
        assert correlation(model) < 0.9

    def test_is_predicted_first_of_all_weights(self, weights, bias):
        model = network(weights, bias)
        found = propagate(trace(model, batch(), cross_entropy))
        first, *others = propose(found, model, 32, "weights")
        assert "biases at 0" in in_words(first.remedy)
        assert first.predicted > 0.9
        assert all(first.predicted >= other.predicted - 0.05 for other in others)

    def test_the_trace_changes_as_the_model_does(self, weights, bias):
        model = network(weights, bias)
        graph = trace(model, batch(), cross_entropy)
        remedy = self.remedies(model)[0]
        changed = propagate(change_graph(graph, remedy, model))
        apply(model, remedy)
        again = propagate(trace(model, batch(), cross_entropy))
        for a, b in zip(changed.sites, again.sites, strict=True):
            if a.second_moment is not None and a.operation == "addmm":
                assert a.second_moment == pytest.approx(b.second_moment, rel=1e-5)


def test_without_biases_sizes_alone_are_balanced():
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
    words = [
        in_words(r) for r in candidates.of_balance(propagate(trace(model, batch(), cross_entropy)))
    ]
    assert words[0].startswith("balance")
    assert not any("biases" in word for word in words)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.last(self.inner(x).relu())


class TestSizesThatAreFarOff:
    def found(self):
        torch.manual_seed(0)
        model = nn.Sequential(*(Residual() for _ in range(3)), nn.Linear(WIDTH, 10))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(8)
        return model, propagate(trace(model, batch(), cross_entropy))

    def test_are_mended_first_where_there_is_no_time_to_predict(self):
        model, found = self.found()
        first, *_ = propose(found, model, 32, "weights", patience=-1.0)
        assert first.predicted is None
        assert "balance" in in_words(first.remedy)

    def test_the_first_of_every_family_is_predicted_before_further_ones_are_made(
        self, monkeypatch
    ):
        model, found = self.found()
        done = []
        balanced = candidates._balanced

        def watched(graph, start, until):
            done.append("made")
            yield from balanced(graph, start, until)

        monkeypatch.setattr(candidates, "_balanced", watched)
        monkeypatch.setattr(
            "equipoise.diagnosis.fix.propose._probability", lambda *_: done.append("predicted")
        )
        propose(found, model, 32)
        assert done.count("made") == 2
        assert "predicted" in done[: done.index("made", done.index("made") + 1)]


class OwnRMSNorm(nn.Module):
    """As language models write it."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


class UnitLength(nn.Module):
    def forward(self, x):
        return nn.functional.normalize(x, dim=-1)


class Root(nn.Module):
    """Of data that no weight made: no size of weights is taken away."""

    def forward(self, x):
        return x.square().mean(-1, keepdim=True).sqrt() + x


@pytest.mark.parametrize(
    ("norm", "hidden"),
    [
        (nn.Identity(), True),
        (Root(), True),
        (nn.LayerNorm(WIDTH), False),
        (nn.RMSNorm(WIDTH), False),
        (OwnRMSNorm(WIDTH), False),
        (UnitLength(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_weights_before_a_norm_are_not_multiplied(norm, hidden):
    """Its output does not depend on their size, however the norm is written."""
    torch.manual_seed(0)
    layers = (nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    if isinstance(norm, Root):
        model = nn.Sequential(norm, *(part for one in layers for part in (one, nn.ReLU())))
    else:
        model = nn.Sequential(*(part for one in layers for part in (one, norm, nn.ReLU())))
    found = candidates.of_gains(propagate(trace(model, batch(), cross_entropy)))
    assert any("multiply hidden weights" in in_words(r) for r in found) == hidden


def test_one_sweep_balances_when_time_is_up(monkeypatch):
    """Each predicts the whole model; of a recurrent one they took 30 seconds."""
    found, sweeps = propagate(trace(network(6.0, 0.0), batch(), cross_entropy)), []

    def counted(graph):
        sweeps.append(graph)
        return propagate(graph)

    monkeypatch.setattr(candidates, "propagate", counted)
    late = list(candidates.of_balance(found, until=0.0))
    assert len(sweeps) == len(late) >= 1
    sweeps.clear()
    remedies = list(candidates.of_balance(found))
    assert len(sweeps) > len(remedies)
