"""Zero weights that no training can move, and those that move in the first steps."""

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.diagnosis.initialisation.stuck import Stuck, stuck
from equipoise.instrument.recording.tracer import trace
from support.model_state import differences, fingerprint

BATCH = torch.randn(16, 64, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 10


def net(*zeros):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    model.append(nn.Linear(32, 10))
    for at in zeros:
        nn.init.zeros_(model[at].weight)
        nn.init.zeros_(model[at].bias)
    return model


class LowRank(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.base = nn.Linear(64, 10).requires_grad_(False)
        self.a, self.b = nn.Parameter(a * torch.randn(64, 4)), nn.Parameter(torch.zeros(4, 10))

    def forward(self, x):
        return self.base(x) + x @ self.a @ self.b


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def train(model, steps=200):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, 1e-2, weight_decay=0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model, BATCH).backward()
        optimizer.step()


def biased(*biases):
    """A network whose hidden layers have these biases everywhere."""
    model = net()
    for layer, bias in zip((model[0], model[2]), biases, strict=True):
        nn.init.constant_(layer.bias, bias)
    return model


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (net(), ()),
        (net(4), ()),
        (net(2), ("2.weight",)),
        (net(2, 4), ("2.weight", "4.weight")),
        (net(0, 2, 4), ("0.weight", "2.weight", "4.weight")),
        (LowRank(0.1), ()),
        (LowRank(0.0), ("a", "b")),
    ],
)
def test_weights_are_stuck_where_training_leaves_them_at_zero(model, expected):
    zeros = [n for n, p in model.named_parameters() if p.ndim > 1 and not p.any()]
    before = fingerprint(model)
    assert stuck(model, cross_entropy, [BATCH]) == Stuck(zero=expected)
    assert not differences(before, fingerprint(model))
    train(model)
    parameters = dict(model.named_parameters())
    assert tuple(name for name in zeros if not parameters[name].any()) == expected


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (biased(0.0, 0.0), ()),
        (biased(-100.0, -100.0), ("0.weight", "2.weight", "4.weight")),
        (biased(0.0, -100.0), ("0.weight", "2.weight", "4.weight")),
        # What the second layer makes of its biases is an input that the last is trained on.
        (biased(-100.0, 0.5), ("0.weight", "2.weight")),
        (net(4), ()),
    ],
)
def test_weights_are_stuck_where_units_are_silent(model, expected):
    """Some are without a gradient at first only, as those behind a zero layer."""
    graph = trace(model, BATCH, cross_entropy)
    before = fingerprint(model)
    found = stuck(model, cross_entropy, [BATCH], graph.without_gradient)
    assert found == Stuck(silent=expected)
    assert not differences(before, fingerprint(model))
    weights = {name: p.detach().clone() for name, p in model.named_parameters() if p.ndim > 1}
    train(model)
    parameters = dict(model.named_parameters())
    assert tuple(n for n, w in weights.items() if torch.equal(w, parameters[n])) == expected


def test_experts_that_a_batch_does_not_ask_are_no_finding():
    """A small part of the weights without a gradient is left to the findings about layers."""

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList([nn.Linear(64, 10) for _ in range(4)])

        def forward(self, x):
            return sum(expert(x) * (i < 3) for i, expert in enumerate(self.experts))

    model = Experts()
    graph = trace(model, BATCH, cross_entropy)
    assert graph.without_gradient == ("experts.3.weight", "experts.3.bias")
    assert not stuck(model, cross_entropy, [BATCH], graph.without_gradient)


def test_the_check_up_does_not_promise_that_they_train():
    report = eq.checkup(lambda: net(2, 4), BATCH, loss_fn="cross-entropy")
    assert report.verdict.trainability is None
    assert report.verdict.severity == "critical"
    assert "2.weight" in report.verdict.details
    with pytest.raises(ValueError, match=r"2.weight, 4.weight start at zero, and still"):
        eq.assert_trainable(lambda: net(2, 4), BATCH, loss_fn="cross-entropy")
    assert eq.checkup(lambda: net(4), BATCH, loss_fn="cross-entropy").verdict.trainability


def test_nor_that_dead_units_do():
    report = eq.checkup(lambda: biased(-100.0, -100.0), BATCH, loss_fn="cross-entropy")
    assert report.verdict.trainability is None
    assert report.verdict.severity == "critical"
    with pytest.raises(ValueError, match=r"0.weight, 2.weight, 4.weight, on no sample"):
        eq.assert_trainable(lambda: biased(0.0, -100.0), BATCH, loss_fn="cross-entropy")
