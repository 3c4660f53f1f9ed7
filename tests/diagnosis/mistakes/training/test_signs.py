"""Gradients that point up the loss, and those that merely differ from its slope."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import equipoise as eq
from equipoise.diagnosis.mistakes.training.signs import of_signs
from support.model_state import left_alone
from support.traced_passes import traced_pass

X = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
BATCH = X, torch.arange(32) % 3


def loss_fn(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


class Net(nn.Module):
    """With dropout and a batch norm; in its forward pass, what a test does to the features."""

    def __init__(self, inside=lambda h: h):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3)
        self.last, self.inside = nn.Linear(16, 3), inside
        self.multiplier = nn.Parameter(torch.ones(1))

    def forward(self, x):
        h = self.inside(self.drop(self.norm(self.first(x)).relu()))
        return self.inside(self.last(h)) * self.multiplier


def found(model, loss=loss_fn):
    traced = traced_pass(model, BATCH, loss)
    with left_alone(model):
        return of_signs(traced)


def turned(h):
    """Outputs whose gradient is turned, and with it that of all weights before them."""
    if h.shape[1] == 3 and h.requires_grad:
        h.register_hook(torch.neg)
    return h


def on_all_parameters(hook):
    model = Net()
    for parameter in model.parameters():
        parameter.register_hook(hook)
    return model


def on_module(register, hook):
    model = Net()
    getattr(model.last, register)(hook)
    return model


def by_full_hook(module, given, output):
    return tuple(None if g is None else -g for g in given)


def by_pre_hook(module, output):
    return tuple(-g for g in output)


@pytest.mark.parametrize(
    "build",
    [
        lambda: on_all_parameters(torch.neg),
        lambda: on_all_parameters(lambda g: -3 * g),
        lambda: on_module("register_full_backward_hook", by_full_hook),
        lambda: on_module("register_full_backward_pre_hook", by_pre_hook),
    ],
)
def test_hooks_that_turn_gradients(build):
    model = build()
    (one,) = found(model)
    assert (one.severity, one.title) == (
        "critical",
        "Gradients have the wrong sign: training climbs",
    )
    optimizer = torch.optim.SGD(model.first.parameters(), 0.02)  # the claim itself
    model.drop.eval()
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = loss_fn(model, BATCH)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    assert losses[-1] > losses[0]


def test_hooks_of_the_forward_pass_are_seen_by_the_loss():
    model = Net(turned)
    model.multiplier.requires_grad_(False)
    (one,) = found(model)
    assert one.detail.startswith("A step against the gradient raises the loss")


class Reversal(torch.autograd.Function):
    """As adversaries of domains have on purpose."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def adversarial(model, batch):
    """With a judge that is not trained: all gradients are turned, and no hook is to blame."""
    model.last.requires_grad_(False)
    features = Reversal.apply(model.first(batch[0]))
    return F.cross_entropy(model.last(features), batch[1])


def without_gradient(model, batch):
    """Its slope is minus its gradient: twice as much goes with numbers that are detached."""
    loss = loss_fn(model, batch)
    return loss - 2 * loss.detach() + 5


def weighted_without_gradient(model, batch):
    loss = loss_fn(model, batch)
    with torch.no_grad():
        same = loss_fn(model, batch)
    return loss - 2 * same + 5


@pytest.mark.parametrize(
    ("build", "loss"),
    [
        (Net, loss_fn),
        (lambda: nn.Linear(6, 3), without_gradient),
        (lambda: nn.Linear(6, 3), weighted_without_gradient),
        (lambda: on_all_parameters(lambda g: g.clamp(-1e-3, 1e-3)), loss_fn),
        (lambda: on_all_parameters(lambda g: 0.1 * g), loss_fn),
        (lambda: on_all_parameters(torch.zeros_like), loss_fn),
        (lambda: Net(torch.round), loss_fn),
        (lambda: Net(lambda h: h + (h.sign() - h).detach()), loss_fn),  # straight through
        (Net, adversarial),
        (Net, lambda m, b: -loss_fn(m, b)),  # which has its own finding
        (Net, lambda m, b: 0 * loss_fn(m, b)),
        (lambda: Net(turned).bfloat16(), lambda m, b: loss_fn(m, (b[0].bfloat16(), b[1]))),
    ],
)
def test_other_gradients_are_none(build, loss):
    assert found(build(), loss) == []


def test_a_multiplier_that_is_to_climb_is_none():
    model = Net()
    model.multiplier.register_hook(torch.neg)
    assert found(model) == []


def test_the_checkup_says_it():
    report = eq.checkup(lambda: on_all_parameters(torch.neg), BATCH, seeds=2)
    assert report.findings[0].severity == "critical"
    assert any("wrong sign" in one.title for one in report.findings)
    assert not any("could be looked for" in one.title for one in report.findings)
