"""Divergences of latent variables that pull the wrong way, too hard, or hardly."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

import equipoise as eq
from equipoise.diagnosis.mistakes.losses.latents import of_latents
from support.traced_passes import found_by

GENERATOR = torch.Generator().manual_seed(0)
FEATURES, LATENT = 32, 4
# Of few causes, each number with a variance of about 1.
MIXING = torch.randn(3, FEATURES, generator=GENERATOR) / 3**0.5
X = torch.randn(128, 3, generator=GENERATOR) @ MIXING
SIGN = ("critical", "The divergence of the latent variables has the wrong sign")
SLIGHT = ("note", "The divergence of the latent variables hardly counts")
DEAR = ("critical", "The latent variables will tell nothing: their divergence costs too much")


class Autoencoder(nn.Module):
    """Variational, with the law of its latent variables made as a test says."""

    def __init__(self, law=lambda mean, other: Normal(mean, (0.5 * other).exp())):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 2 * LATENT))
        self.decoder = nn.Sequential(nn.Linear(LATENT, 32), nn.ReLU(), nn.Linear(32, FEATURES))
        self.law = law

    def forward(self, x):
        mean, other = self.encoder(x).chunk(2, 1)
        law = self.law(mean, other)
        drawn = law.mean + law.stddev * torch.randn_like(law.mean)
        return self.decoder(drawn), law, drawn, other


def squares(decoded, x):
    return (decoded - x).square().sum(1).mean()


def mean_squares(decoded, x):
    return F.mse_loss(decoded, x)


def by_hand(law, drawn, other):
    return 0.5 * (law.mean.pow(2) + other.exp() - 1 - other)


def of_laws(law, drawn, other):
    return kl_divergence(law, Normal(torch.zeros_like(law.mean), torch.ones_like(law.mean)))


def of_draws(law, drawn, other):
    standard = Normal(torch.zeros_like(drawn), torch.ones_like(drawn))
    return law.log_prob(drawn) - standard.log_prob(drawn)


def means_turned(law, drawn, other):
    return 0.5 * (-law.mean.pow(2) + other.exp() - 1 - other)


def variances_turned(law, drawn, other):
    return 0.5 * (law.mean.pow(2) - other.exp() - 1 + other)


def logarithms_turned(law, drawn, other):
    return 0.5 * (law.mean.pow(2) + other.exp() - 1 + other)


def loss_of(divergence, weight=1.0, error=squares):
    def loss(model, x):
        decoded, *latent = model(x)
        return error(decoded, x) + weight * divergence(*latent).sum(1).mean()

    return loss


def found(loss, model=None, x=X):
    model = Autoencoder() if model is None else model
    torch.manual_seed(0)
    return found_by(of_latents, model, x, loss)


def softplus_law(mean, other):
    return Normal(mean, F.softplus(other) + 1e-3)


def root_law(mean, other):
    return Normal(mean, other.exp().sqrt())


@pytest.mark.parametrize("divergence", [by_hand, of_laws, of_draws])
def test_a_divergence_and_its_negative(divergence):
    assert found(loss_of(divergence)) == []
    assert found(loss_of(divergence, -1.0)) == [SIGN]
    assert found(loss_of(divergence, -0.1)) == [SIGN]


@pytest.mark.parametrize(("weight", "is_slight"), [(1.0, False), (1e-2, False), (1e-5, True)])
def test_a_divergence_that_hardly_counts(weight, is_slight):
    assert found(loss_of(by_hand, weight)) == [SLIGHT] * is_slight
    by_means = loss_of(by_hand, weight / FEATURES, mean_squares)
    assert found(by_means) == [SLIGHT] * is_slight


@pytest.mark.parametrize("law", [softplus_law, root_law])
def test_other_ways_to_a_deviation(law):
    assert found(loss_of(of_laws), Autoencoder(law)) == []
    assert found(loss_of(of_laws, -1.0), Autoencoder(law)) == [SIGN]


@pytest.mark.parametrize("divergence", [means_turned, variances_turned, logarithms_turned])
def test_parts_of_a_divergence_that_are_turned(divergence):
    assert found(loss_of(divergence)) == [SIGN]


def trained(loss, law=None):
    """Part of the variance that is left by means of what is encoded, and the divergence."""
    model = Autoencoder() if law is None else Autoencoder(law)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(400):
        optimizer.zero_grad()
        loss(model, X).backward()
        optimizer.step()
    mean, other = model.encoder(X).chunk(2, 1)
    left = (model.decoder(mean) - X).square().mean() / X.var(0, correction=0).mean()
    return left.item(), by_hand(Normal(mean, 1.0), None, other).sum(1).mean().item()


def test_a_divergence_that_is_too_dear():
    """Latent variables tell nothing after the very training that the finding foretells."""
    healthy = [(squares, 1.0), (squares, 4.0), (mean_squares, 1 / FEATURES), (mean_squares, 0.0)]
    for error, weight in healthy:
        assert found(loss_of(by_hand, weight, error)) == []
    assert trained(loss_of(by_hand, 4.0))[0] < 0.7
    dear = loss_of(by_hand, 4.0, mean_squares)
    assert found(dear) == [DEAR]
    left, divergence = trained(dear)
    assert left > 0.99
    assert divergence < 0.02


def binary(decoded, x):
    return F.binary_cross_entropy_with_logits(decoded, x)


def binary_sums(decoded, x):
    return F.binary_cross_entropy_with_logits(decoded, x, reduction="sum") / len(x)


def test_errors_of_binary_targets():
    x = (X > 0).float()
    assert found(loss_of(by_hand, 1.0, binary_sums), x=x) == []
    assert found(loss_of(by_hand, 1.0, binary), x=x) == [DEAR]


def test_few_samples_far_from_the_others_are_worth_telling():
    """Which of them it is costs little, as they are few, and wins much."""
    x = 0.01 * X
    x[0] = 60.0
    loss = loss_of(by_hand, 1.0, mean_squares)
    assert found(loss, x=x) == []


def at_capacity(capacity):
    """As to understand disentangling."""

    def loss(model, x):
        decoded, *latent = model(x)
        divergence = by_hand(*latent).sum(1).mean()
        return mean_squares(decoded, x) + 100 * (divergence - capacity).abs()

    return loss


def free_bits(model, x):
    decoded, *latent = model(x)
    return mean_squares(decoded, x) + by_hand(*latent).mean(0).clamp(min=0.5).sum()


def known_otherwise(model, x):
    """What is drawn is classified, too, which may win more."""
    decoded, law, drawn, other = model(x)
    told = F.cross_entropy(drawn, (x[:, 0] > 0).long())
    return mean_squares(decoded, x) + by_hand(law, drawn, other).sum(1).mean() + told


def seen_otherwise(model, x):
    """What is decoded is compared by its features as well."""
    decoded, *latent = model(x)
    features = F.mse_loss(model.encoder(decoded), model.encoder(x).detach())
    return mean_squares(decoded, x) + by_hand(*latent).sum(1).mean() + 100 * features


@pytest.mark.parametrize(
    "loss", [at_capacity(0.0), at_capacity(25.0), free_bits, known_otherwise, seen_otherwise]
)
def test_neighbours_that_are_meant_so(loss):
    assert found(loss) == []


class Actor(nn.Module):
    """Draws actions, whose entropy is to be large, and whose value a critic tells."""

    def __init__(self):
        super().__init__()
        self.layers, self.critic = nn.Linear(FEATURES, 8), nn.Linear(FEATURES + 4, 1)


def soft_actor_critic(model, x):
    mean, deviation = model.layers(x).chunk(2, 1)
    law = Normal(mean, deviation.clamp(-5, 2).exp())
    drawn = law.rsample()
    action = drawn.tanh()
    likelihood = (law.log_prob(drawn) - (1 - action.pow(2) + 1e-6).log()).sum(1)
    return (0.2 * likelihood - model.critic(torch.cat([x, action], 1))[:, 0]).mean()


def test_an_entropy_is_no_divergence():
    assert found(soft_actor_critic, Actor()) == []


class Noisy(nn.Module):
    """Adds noise of a learnt size to what a layer gives."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 16), nn.Linear(16, FEATURES)
        self.size = nn.Parameter(torch.ones(16))

    def forward(self, x):
        h = self.first(x).relu()
        return self.last(h + self.size.exp() * torch.randn_like(h))


def test_noise_without_a_divergence():
    assert found(lambda m, x: mean_squares(m(x), x) + 0.01 * m.size.exp().sum(), Noisy()) == []


def test_the_verdict_says_so_first():
    loss = loss_of(by_hand, -1.0)
    report = eq.checkup(Autoencoder, (X, X), loss_fn=lambda model, batch: loss(model, batch[0]))
    assert report.verdict.sentence.startswith("Not ready to train: the divergence of the latent")
