"""Losses that reward errors, or that compare outputs with nothing."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F

import equipoise as eq
from equipoise.diagnosis.mistakes.losses.aims import of_aims
from support.traced_passes import found_by, traced_pass

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(32, 6, generator=GENERATOR), torch.arange(32) % 3
TURNED = ("critical", "The loss has its sign turned")
NOTHING = ("critical", "The loss compares outputs with nothing")


def layers(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, outputs))


def found(loss, model=None, **options):
    model = layers() if model is None else model
    return found_by(of_aims, model, (X, Y), loss, **options)


def of_fit(compare):
    return lambda model, batch: compare(model(batch[0]), batch[1])


def numbers(classes):
    return F.one_hot(classes, 3).float()


# Losses of outputs and classes, that are to be made small.
LOSSES = {
    "cross-entropy": F.cross_entropy,
    "cross-entropy with weights of classes": lambda z, y: F.cross_entropy(
        z, y, weight=torch.tensor([1.0, 2.0, 3.0])
    ),
    "picked": lambda z, y: -z.log_softmax(1).gather(1, y[:, None]).mean(),
    "indexed": lambda z, y: -z.log_softmax(1)[torch.arange(len(y)), y].mean(),
    "one-hot": lambda z, y: -(z.log_softmax(1) * numbers(y)).sum(1).mean(),
    "binary": lambda z, y: F.binary_cross_entropy_with_logits(z, numbers(y)),
    "probabilities": lambda z, y: F.binary_cross_entropy(z.sigmoid(), numbers(y)),
    "squares": lambda z, y: F.mse_loss(z, numbers(y)),
    "squares by hand": lambda z, y: (z - numbers(y)).square().mean(),
    "squares far away": lambda z, y: (z - (9 + numbers(y))).square().mean(),
    "sizes": lambda z, y: (z - numbers(y)).abs().sum(),
    "Huber's": lambda z, y: F.smooth_l1_loss(z, numbers(y), reduction="none").mean(),
    "likelihood of a law": lambda z, y: -Normal(z, 0.3).log_prob(numbers(y)).mean(),
    "decibels": lambda z, y: 10 * F.mse_loss(z, numbers(y)).log10(),
    "with a penalty": lambda z, y: F.cross_entropy(z, y) + 0.1 * z.square().mean(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_negative(name):
    loss = of_fit(LOSSES[name])
    assert found(loss) == []
    assert found(lambda model, batch: -loss(model, batch)) == [TURNED]


def test_what_falls_with_errors_makes_them_large():
    """The very training that the finding foretells."""
    model = layers()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(200):
        loss = model(X).log_softmax(1).gather(1, Y[:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 10 * losses[0] < 0


class Adversary(nn.Module):
    """Features, a head for classes, and one that is not to tell another property."""

    def __init__(self):
        super().__init__()
        self.features, self.head, self.adversary = layers(8), nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x):
        h = self.features(x).relu()
        return self.head(h), self.adversary(h)


def against_an_adversary(model, batch):
    classes, property_ = model(batch[0])
    return F.cross_entropy(classes, batch[1]) - 0.1 * F.cross_entropy(property_, batch[1] % 2)


def forgetting(model, batch):
    """Of one class, and not of the others."""
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return losses[batch[1] > 0].mean() - 0.2 * losses[batch[1] == 0].mean()


def correlated_negatively(model, batch):
    outputs, targets = model(batch[0]), batch[1][:, None].float()
    spread = (outputs - outputs.mean(1, keepdim=True)).square().mean()
    return (outputs - targets).square().mean() - 0.5 * spread


def weighed_by_rewards(model, batch):
    rewards = batch[0][:, 0]
    return (F.cross_entropy(model(batch[0]), batch[1], reduction="none") * rewards).mean()


def weighed_by_costs(model, batch):
    costs = batch[0][:, 0].abs()
    return (-F.cross_entropy(model(batch[0]), batch[1], reduction="none") * costs).mean()


def gain_less_cost(model, batch):
    return -(model(batch[0]).sigmoid().sum(1) + 3 - 0.1 * batch[1]).mean()


def explained(model, batch):
    y = batch[1].float()
    return (y - model(batch[0])[:, 0]).square().sum() / (y - y.mean()).square().sum() - 1


def misled(model, batch):
    """A discriminator, by a generator, as in the first paper on them."""
    logits = model(torch.randn_like(batch[0]))
    return -F.binary_cross_entropy_with_logits(logits, torch.zeros_like(logits))


def episode(model, batch):
    """One of which the rewards are all costs."""
    return -(likelihood(model, batch).sum() * batch[2].sum())


def episodes(model, batch):
    """One by one, by what came of each."""
    gains = [-a * b for a, b in zip(likelihood(model, batch), batch[2], strict=True)]
    return torch.stack(gains).mean()


def episodes_of_costs(model, batch):
    costs = [a * -b for a, b in zip(likelihood(model, batch), batch[2], strict=True)]
    return torch.stack(costs).mean()


def failures(model, batch):
    _, _, cost = batch
    return (likelihood(model, batch) * cost).mean()


def likelihood(model, batch):
    return model(batch[0]).log_softmax(1).gather(1, batch[1][:, None])[:, 0]


def errors(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


LOST = -torch.rand(32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("loss", "came"),
    [
        (episode, LOST),
        (episode, torch.tensor(-200.0)),
        (episodes, LOST),
        (episodes_of_costs, LOST),
        (failures, (LOST < -0.5).float()),
    ],
)
def test_rewards_below_zero_and_costs_weigh_likelihoods(loss, came):
    assert of_aims(traced_pass(layers(), (X, Y, came), loss)) == []


@pytest.mark.parametrize(
    "weighed",
    [
        lambda model, batch: (errors(model, batch) * batch[2]).sum() / batch[2].sum(),
        lambda model, batch: errors(model, batch).sum() / (batch[2] + X[:, 0].abs()).sum(),
        lambda model, batch: (errors(model, batch) * (batch[2] > 0)).mean(),
    ],
)
def test_masks_and_lengths_are_no_rewards(weighed):
    def turned(model, batch):
        return -weighed(model, batch)

    batch = X, Y, (LOST < -0.5).float()
    (one,) = of_aims(traced_pass(layers(), batch, turned))
    assert (one.severity, one.title) == TURNED


@pytest.mark.parametrize(
    "loss",
    [
        forgetting,
        correlated_negatively,
        weighed_by_rewards,
        weighed_by_costs,
        gain_less_cost,
        explained,
        misled,
    ],
)
def test_neighbours_that_are_meant_so(loss):
    assert found(loss) == []


def test_an_adversary_beside_a_task():
    assert found(against_an_adversary, Adversary()) == []


@pytest.mark.parametrize(
    ("loss", "outputs", "expected"),
    [
        (lambda z: -z.mean(), 3, [NOTHING]),
        (lambda z: z.sum(1).mean() / 7, 3, [NOTHING]),
        (lambda z: -z.mean(), 1, []),  # as a generator's, by its critic
        (lambda z: z[:16].mean() - z[16:].mean(), 3, []),
        (lambda z: -z[:, 0].mean(), 3, []),
        (lambda z: z.square().mean(), 3, [NOTHING]),
        (lambda z: z.mean() + 0.1 * z.square().mean(), 3, []),
    ],
)
def test_outputs_compared_with_nothing(loss, outputs, expected):
    assert found(lambda model, batch: loss(model(batch[0])), layers(outputs)) == expected


def test_the_verdict_says_so_first():
    report = eq.checkup(layers, (X, Y), loss_fn=lambda m, b: -F.mse_loss(m(b[0]), numbers(b[1])))
    assert report.verdict.sentence == "Not ready to train: the loss has its sign turned"
