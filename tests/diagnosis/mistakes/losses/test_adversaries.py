"""Generators that a critic's loss trains toward the wrong side."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.losses.adversaries import of_adversaries
from support.traced_passes import traced_pass

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(24, 6, generator=GENERATOR)
WRONG = [("critical", "The generator learns to be told from real data")]
NOTED = [("note", "The critic's loss has a gradient by the generator")]


class Pair(nn.Module):
    def __init__(self, *, is_given, in_place=False):
        super().__init__()
        torch.manual_seed(0)
        self.noise, self.is_given = torch.randn(24, 4), is_given
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
        self.critic = nn.Sequential(
            nn.Linear(6, 16), nn.LeakyReLU(0.2, inplace=in_place), nn.Linear(16, 1)
        )
        self.encoder = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 6))

    def fake(self):
        return self.generator(self.noise if self.is_given else torch.randn(24, 4))


def found(loss):
    """With noise that is drawn in the pass, with noise that is given, and writing in place."""
    drawn, given, in_place = (
        [(one.severity, one.title) for one in of_adversaries(traced_pass(pair, X, loss))]
        for pair in (
            Pair(is_given=False),
            Pair(is_given=True),
            Pair(is_given=False, in_place=True),
        )
    )
    assert drawn == given == in_place
    return drawn


def logistic(scores, side):
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, (side + 1) / 2))


# What it costs that scores are not on a side, 1 for real data.
SCORES = {
    "logistic": logistic,
    "mean": lambda scores, side: -side * scores.mean(),
    "hinge": lambda scores, side: F.relu(1 - side * scores).mean(),
    "squares": lambda scores, side: (scores - 2 * side).square().mean(),
}


def of_critic(cost, *, cut):
    def loss(model, x):
        fake = model.fake()
        return cost(model.critic(x), 1.0) + cost(
            model.critic(fake.detach() if cut else fake), -1.0
        )

    return loss


def of_generator(cost, side):
    return lambda model, x: cost(model.critic(model.fake()), side)


def both(first, second):
    return lambda model, x: first(model, x) + second(model, x)


@pytest.mark.parametrize("name", SCORES)
class TestGenerators:
    def test_toward_the_wrong_side(self, name):
        cost = SCORES[name]
        assert found(both(of_critic(cost, cut=True), of_generator(cost, -1.0))) == WRONG

    def test_toward_the_right_side(self, name):
        cost = SCORES[name]
        assert found(both(of_critic(cost, cut=True), of_generator(cost, 1.0))) == []

    def test_one_of_the_losses_alone(self, name):
        cost = SCORES[name]
        assert found(of_critic(cost, cut=True)) == []
        assert found(of_generator(cost, 1.0)) == []
        assert found(of_generator(cost, -1.0)) == []  # the side of real data is not seen

    def test_a_critic_that_is_not_cut_off(self, name):
        cost = SCORES[name]
        assert found(of_critic(cost, cut=False)) == NOTED
        assert found(both(of_critic(cost, cut=False), of_generator(cost, 1.0))) == NOTED


def without_gradient(model, x):
    with torch.no_grad():
        fake = model.fake()
    return model.critic(fake).mean() - model.critic(x).mean()


def saturating(model, x):
    """The generator's loss is the negative of the critic's, and not its logarithm."""
    score = model.critic(model.fake())
    return of_critic(logistic, cut=True)(model, x) - logistic(score, -1.0)


def relativistic(model, x):
    fake = model.fake()
    first = F.softplus(model.critic(fake.detach()) - model.critic(x)).mean()
    return first + F.softplus(model.critic(x) - model.critic(fake)).mean()


def of_latents(model, x):
    """An adversarial autoencoder: what is drawn is real, and codes are not."""
    code = model.encoder(x)
    drawn = torch.randn(24, 6)
    critic = logistic(model.critic(drawn), 1.0) + logistic(model.critic(code.detach()), -1.0)
    return critic + logistic(model.critic(code), 1.0) + (code - x).square().mean()


def of_information(model, x):
    """Pairs that belong together, and others, both of codes that are learnt."""
    joint = model.critic(model.encoder(x) * x)
    return (
        F.softplus(-joint).mean() + F.softplus(model.critic(model.encoder(x) * x.flip(0))).mean()
    )


def of_domains(model, x):
    one, other = (model.critic(model.encoder(part)) for part in x.chunk(2))
    return logistic(one, 1.0) + logistic(other, -1.0)


def of_two_views(model, x):
    z = [model.encoder(x + 0.1 * torch.randn_like(x)) for _ in range(2)]
    return 1 - F.cosine_similarity(*z).mean()


def of_energies(model, x):
    chain = x + 0.1 * torch.randn_like(x)
    return model.critic(x).mean() - model.critic(chain).mean()


def of_one_pass(model, x):
    scores = model.critic(torch.cat([x, model.fake().detach()]))
    return logistic(scores[:24], 1.0) + logistic(scores[24:], -1.0)


@pytest.mark.parametrize(
    "loss",
    [
        without_gradient,
        saturating,
        relativistic,
        of_latents,
        of_information,
        of_domains,
        of_two_views,
        of_energies,
        of_one_pass,
    ],
)
def test_other_games(loss):
    assert found(loss) == []
