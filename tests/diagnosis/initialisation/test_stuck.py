"""Zero weights that no training can move, and those that move in the first steps."""

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.diagnosis.initialisation.stuck import stuck_at_zero
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


@pytest.mark.parametrize(
    ("model", "stuck"),
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
def test_weights_are_stuck_where_training_leaves_them_at_zero(model, stuck):
    zeros = [n for n, p in model.named_parameters() if p.ndim > 1 and not p.any()]
    before = fingerprint(model)
    assert stuck_at_zero(model, cross_entropy, BATCH) == stuck
    assert not differences(before, fingerprint(model))
    train(model)
    parameters = dict(model.named_parameters())
    assert tuple(name for name in zeros if not parameters[name].any()) == stuck


def test_the_check_up_does_not_promise_that_they_train():
    report = eq.checkup(lambda: net(2, 4), BATCH, loss_fn="cross-entropy")
    assert report.verdict.trainability is None
    assert report.verdict.severity == "critical"
    assert "2.weight" in report.verdict.details
    with pytest.raises(ValueError, match=r"2.weight, 4.weight start at zero and stay"):
        eq.assert_trainable(lambda: net(2, 4), BATCH, loss_fn="cross-entropy")
    assert eq.checkup(lambda: net(4), BATCH, loss_fn="cross-entropy").verdict.trainability
