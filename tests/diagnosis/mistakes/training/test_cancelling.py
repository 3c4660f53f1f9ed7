"""Gradients that cancel to rounding where a tensor is used twice."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import equipoise as eq
from equipoise.diagnosis.mistakes.training.cancelling import of_cancelling
from support.model_state import left_alone
from support.traced_passes import traced_pass

X = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(32) % 3


class Net(nn.Module):
    """Two layers of weights, and between them what a test puts there."""

    def __init__(self, between, width):
        super().__init__()
        self.between = between
        self.first, self.last = nn.Linear(6, width), nn.Linear(width, 3)

    def forward(self, x):
        return self.last(self.between(self.first(x)))


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def severities(model, loss=cross_entropy):
    return [finding.severity for finding in of_cancelling(traced_pass(model, (X, Y), loss))]


def standardised(x):
    return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)


def through(x):
    return x + (x.sign() - x).detach()


@pytest.mark.parametrize(
    ("between", "width", "expected"),
    [
        (F.normalize, 1, ["warning"]),
        (lambda x: x / x.abs(), 1, ["warning"]),
        (standardised, 2, ["warning"]),  # which keeps which one is larger
        (F.normalize, 2, []),
        (standardised, 3, []),
        (through, 8, []),
        (lambda x: x + x.relu(), 8, []),
        (lambda x: x * torch.sigmoid(1.7 * x), 8, []),
        (lambda x: x.softmax(1) * x, 8, []),
        (lambda x: x - 1e9 * (x > 9).float() * x, 8, []),
    ],
)
def test_inside_of_a_model(between, width, expected):
    torch.manual_seed(0)
    assert severities(Net(between, width)) == expected


def likelihood(axis):
    """That of the order in which things happen, after Cox."""

    def loss(model, batch):
        risk = model(batch[0])[:, :1]
        return -(risk - risk.logcumsumexp(axis)).mean() + 0 * batch[1].sum()

    return loss


def farthest(model, batch):
    """A triplet of the farthest and the nearest, with masks of large numbers."""
    z = model(batch[0])
    distances, same = torch.cdist(z, z), batch[1][:, None] == batch[1]
    near = (distances + 1e9 * same).min(1)[0]
    return F.relu((distances * same).max(1)[0] - near + 1).mean()


def penalised(model, batch):
    """Derivatives by the inputs, and twice."""
    x = batch[0].clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return (slope.norm(dim=1) - 1).square().mean() + 0 * batch[1].sum()


def layers():
    return nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(), nn.Linear(16, 3))


class Normalised(nn.Module):
    """Batch norm less what it computes, beside a leaky ReLU whose slopes are drawn."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        h = self.first(x)
        own = (h - h.mean(0)) / torch.sqrt(h.var(0, unbiased=False) + self.norm.eps)
        drawn = 1e-20 * torch.rrelu(h, training=True)
        return self.norm(h) - own + drawn


def test_what_is_repeated_moves_neither_statistics_nor_random_numbers():
    torch.manual_seed(0)
    model = Normalised()
    traced = traced_pass(model, (X, Y), lambda m, b: (m(b[0]) * b[0][:, :3]).sum())
    with left_alone(model):
        assert len(of_cancelling(traced)) == 1


def overlap(model, batch):
    """Of boxes that lie inside of those that are wanted: their centres do not count as yet."""
    centre, size = 0.5 + 0.01 * model(batch[0])[:, :2].tanh().unbind(1)[0], 0.2
    low, high = centre - size, centre + size
    inside = torch.minimum(high, torch.full_like(high, 0.9)) - torch.maximum(
        low, torch.full_like(low, 0.1)
    )
    return 1 - (inside / 0.8).mean()


def test_numbers_that_cancel_where_one_box_holds_another():
    """As in the loss of DETR."""
    assert severities(Net(torch.tanh, 4), overlap) == []


def test_of_a_loss():
    torch.manual_seed(0)
    assert severities(layers(), likelihood(1)) == ["critical"]
    for loss in (likelihood(0), farthest, penalised):
        assert severities(layers(), loss) == []


def test_the_check_up_does_not_promise_training():
    found = eq.checkup(layers, (X, Y), loss_fn=likelihood(1))
    assert "The loss does not depend on the weights" in [one.title for one in found.findings]
    assert not found.verdict.sentence.startswith("Will")


def test_potentials_of_optimal_transport():
    """Their gradients cancel once they have converged; costs keep theirs."""

    def loss(model, batch):
        cost = torch.cdist(model(batch[0]), batch[0][:, :3]).square()
        first, second = cost.new_zeros(32), cost.new_zeros(32)
        for _ in range(60):
            first = -torch.logsumexp(second - cost, 1)
            second = -torch.logsumexp(first[:, None] - cost, 0)
        return first.mean() + second.mean()

    assert severities(Net(nn.Identity(), 8), loss) == []
