"""Parameters that one batch does not use, and others do."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.training.reach import MOST, of_reach
from support.model_state import left_alone
from support.traced_passes import traced_pass

GENERATOR = torch.Generator().manual_seed(0)
BATCHES = [(torch.randn(8, 6, generator=GENERATOR), torch.arange(8) % 3) for _ in range(6)]


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


class Experts(nn.Module):
    """Each batch goes to one expert; the last gets none."""

    def __init__(self, count=4):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(count))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        number = next(i for i, (known, _) in enumerate(BATCHES) if torch.equal(x, known))
        return self.head(self.experts[number % (len(self.experts) - 1)](x))


def found(batches):
    model = Experts()
    with left_alone(model):
        return of_reach(traced_pass(model, BATCHES[0], cross_entropy, batches=batches))


def test_what_other_batches_use_is_no_mistake():
    (finding,) = found(BATCHES)
    assert finding.title == "2 parameters without a gradient"
    assert "experts.3.weight" in finding.detail


def test_with_one_batch_all_others_seem_unused():
    (finding,) = found(BATCHES[:1])
    assert finding.title == MOST
    assert "in 6 parameters: " in finding.detail


class Networks(nn.Module):
    """Two networks of one shape, and one that takes what either makes."""

    def __init__(self):
        super().__init__()
        self.own, self.other = (
            nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)) for _ in range(2)
        )
        self.critic = nn.Linear(6, 1)


def critic_loss(model, batch):
    fake = model.other(torch.randn(8, 6)).detach()
    return model.critic(model.own(fake)).mean() - model.critic(model.own(batch[0])).mean()


def target_loss(model, batch):
    with torch.no_grad():
        aim = batch[0] + model.critic(model.other(batch[0]))
    return F.mse_loss(model.own(batch[0]), aim)


def detached_loss(model, batch):
    return model.critic(model.own(model.other(batch[0]).detach())).square().mean()


def branch_loss(model, batch):
    joined = model.own(batch[0]) + model.other(batch[0]).detach()
    return model.critic(joined).square().mean()


def forgetful_loss(model, batch):
    return model.critic(model.own(batch[0])).square().mean()


class Joined(Networks):
    """The same networks, of which a forward() forgets one."""

    def forward(self, x):
        return self.critic(self.own(x))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (critic_loss, "note"),
        (target_loss, "note"),
        (detached_loss, "warning"),
        (branch_loss, "warning"),
    ],
)
def test_networks_that_only_run_beside_what_is_trained_are_meant(loss, expected):
    """And not where all that is trained is behind them."""
    (finding,) = of_reach(traced_pass(Networks(), BATCHES[0], loss))
    assert finding.severity == expected
    assert ("trained by another loss" in finding.detail) == (expected == "note")


@pytest.mark.parametrize(("kind", "expected"), [(Networks, "note"), (Joined, "warning")])
def test_networks_that_do_not_run_are_meant_where_nothing_but_losses_runs_them(kind, expected):
    """A forward() that leaves a network out has forgotten it."""
    (finding,) = of_reach(traced_pass(kind(), BATCHES[0], forgetful_loss))
    assert finding.severity == expected
    assert ("another loss trains them" in finding.detail) == (expected == "note")


@pytest.mark.parametrize(("left_out", "missed"), [("other", 0), ("own", 1)])
def test_what_the_optimiser_leaves_out_need_not_have_a_gradient(left_out, missed):
    model = Joined()
    names = [name for name, _ in model.named_parameters() if name.startswith(left_out)]
    assert len(of_reach(traced_pass(model, BATCHES[0], forgetful_loss, left_out=names))) == missed
