"""The loop takes the steps that a plain loop takes, and ends where the loss does."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import equipoise
from equipoise.training import cross_entropy, evaluate, train
from equipoise.training.record import Evaluation


def problem(steps: int = 6, dtype: torch.dtype = torch.float64):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)
    generator = torch.Generator().manual_seed(1)
    batches = [
        (
            torch.randn(7, 5, generator=generator, dtype=dtype),
            torch.randint(3, (7,), generator=generator),
        )
        for _ in range(steps)
    ]
    return model, batches


def plain(model, batches, optimizer):
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = cross_entropy(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_the_same_steps_as_a_plain_loop(optimizer):
    (model, batches), (twin, _) = problem(), problem()
    history = train(model, batches, cross_entropy, optimizer(model.parameters(), lr=0.05))
    assert list(history.losses) == plain(twin, batches, optimizer(twin.parameters(), lr=0.05))
    assert all(
        torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True)
    )
    assert history.diverged_at is None


def test_a_preconditioner_works_in_it():
    (model, batches), (twin, _) = problem(), problem()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with equipoise.BNP(model).attach(optimizer):
        preconditioned = train(model, batches, cross_entropy, optimizer)
    bare = train(twin, batches, cross_entropy, torch.optim.SGD(twin.parameters(), lr=0.05))
    assert preconditioned.losses[0] == bare.losses[0]
    assert preconditioned.losses[-1] != bare.losses[-1]


def test_a_schedule_is_followed():
    model, batches = problem()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    rates = []
    train(
        model,
        batches,
        cross_entropy,
        optimizer,
        scheduler=schedule,
        listener=lambda step, loss: rates.append(schedule.get_last_lr()[0]),
    )
    assert rates == pytest.approx([1, 0.1, 0.1, 0.01, 0.01, 0.001])


def test_divergence_ends_it_and_is_kept():
    model, batches = problem(steps=300)
    history = train(
        model,
        batches,
        lambda m, b: m(b[0]).square().sum(),
        torch.optim.SGD(model.parameters(), 50),
    )
    assert history.diverged_at == len(history.losses) - 1 < 299
    assert not math.isfinite(history.losses[-1])
    assert all(math.isfinite(loss) for loss in history.losses[:-1])
    assert history.mean_loss() == math.inf


def test_evaluations_come_at_their_steps_and_change_nothing():
    (model, batches), (twin, _) = problem(), problem()
    x, y = batches[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    history = train(
        model,
        batches,
        cross_entropy,
        optimizer,
        evaluate=lambda step: evaluate(model, x, y, cross_entropy, step=step),
        evaluate_at=(0, 3, 6),
    )
    assert [evaluation.step for evaluation in history.evaluations] == [0, 3, 6]
    assert history.evaluations[0].loss == pytest.approx(history.losses[0], abs=1e-15)
    bare = train(twin, batches, cross_entropy, torch.optim.SGD(twin.parameters(), lr=0.05))
    assert history.losses == bare.losses


class TestEvaluate:
    def test_modes_are_restored_one_by_one(self):
        model = nn.Sequential(nn.Linear(5, 3), nn.Dropout(), nn.BatchNorm1d(3))
        model[1].eval()
        evaluate(model, torch.randn(4, 5), torch.tensor([0, 1, 2, 0]), cross_entropy)
        assert [module.training for module in model] == [True, False, True]

    def test_parts_add_up_to_the_whole(self):
        model, _ = problem()
        x, y = torch.randn(10, 5, dtype=torch.float64), torch.randint(3, (10,))
        parts = evaluate(model, x, y, cross_entropy, rows=3)
        whole = evaluate(model, x, y, cross_entropy)
        assert parts.loss == pytest.approx(whole.loss, abs=1e-14)
        assert parts.accuracy == whole.accuracy

    def test_accuracy_is_that_of_every_position(self):
        """It was the number of right positions over that of samples, above 1."""
        logits = torch.eye(4)[torch.tensor([[0, 1, 2], [3, 0, 1]])].movedim(-1, 1)  # [N, C, T]
        targets = torch.tensor([[0, 1, 3], [3, -100, -100]])
        assert evaluate(nn.Identity(), logits, targets, cross_entropy).accuracy == 3 / 4

    def test_numbers_are_no_classes(self):
        x = torch.zeros(4, 1)
        found = evaluate(nn.Identity(), x, x + 2, lambda m, b: (m(b[0]) - b[1]).square().mean())
        assert found == Evaluation(0, 4.0, None)


def test_an_evaluation_on_no_samples_is_refused():
    with pytest.raises(ValueError, match=r"at least one sample, got inputs of shape \(0, 5\)"):
        evaluate(nn.Linear(5, 3), torch.zeros(0, 5), torch.zeros(0).long(), cross_entropy)


@pytest.fixture(autouse=True)
def _distributions_check(monkeypatch):
    """As in a new process: torch.compile turns checks off for good."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)


class Density(nn.Module):
    """A normal law, whose scale is an exponential: torch.distributions refuses one of nan or 0."""

    def __init__(self):
        super().__init__()
        self.mean, self.logarithm = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return -torch.distributions.Normal(self.mean, self.logarithm.exp()).log_prob(x).mean()


def test_a_distribution_that_refuses_what_has_diverged_ends_it():
    model = Density()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e6)
    history = train(model, [torch.randn(8) + 3] * 20, lambda m, x: m(x), optimizer)
    assert history.diverged_at is not None
    assert not math.isfinite(history.losses[-1])


@pytest.mark.parametrize("message", ["my own", "Expected parameter scale"])
def test_other_errors_are_raised(message):
    checks = torch.distributions.Distribution._validate_args

    calls = []

    def refuse(model, x):
        calls.append(x)
        raise ValueError(message)

    model = Density()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=message):
        train(model, [torch.randn(8)], refuse, optimizer)
    assert torch.distributions.Distribution._validate_args is checks
    assert len(calls) == 1  # what is no distribution's is not run again


def test_a_sample_outside_of_a_support_is_an_error():
    """Its density is a finite number, which means nothing."""

    def loss(model, x):
        return -torch.distributions.Exponential(model.mean.exp()).log_prob(x).mean()

    model = Density()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="support"):
        train(model, [torch.full((4,), -1.0)], loss, optimizer)
