"""Losses that fall without bound, whichever way the outputs go."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from equipoise.diagnosis.mistakes.losses.aims import of_aims
from equipoise.diagnosis.mistakes.losses.unbounded import falls_without_bound
from support.traced_passes import traced_pass

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(48, 6, generator=GENERATOR)
Z = torch.randn(48, 6, generator=GENERATOR)
CLASS = torch.randint(4, (48,), generator=GENERATOR)
VALUE = X[:, 0] - X[:, 1] + 0.3 * torch.randn(48, generator=GENERATOR)
TIME, EVENT = torch.exp(-VALUE), (torch.rand(48, generator=GENERATOR) < 0.7).float()


def layers(width=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, width))


def found(loss, *batch, width=4, model=None):
    model = layers(width) if model is None else model
    one = falls_without_bound(traced_pass(model, (X, *batch), loss))
    return None if one is None else (one.severity, one.title)


def cox_by_sorting(model, batch):
    x, time, event = batch
    order = time.argsort(descending=True)
    score = model(x)[order, 0]
    return -((score - score.logcumsumexp(0)) * event[order]).sum() / event.sum()


def cox_by_risk_sets(model, batch):
    x, time, event = batch
    score = model(x)[:, 0]
    risk = (time >= time[:, None]).float()
    return -((score - (risk * score.exp()).sum(1).log()) * event).mean()


def cox_by_rows(model, batch):
    x, time, event = batch
    order = time.argsort(descending=True)
    score = model(x)[order].squeeze(1)
    return -(score - score.logcumsumexp(0))[event[order] > 0].mean()


def of_mixture(model, batch):
    weights, means, scales = model(batch[0]).chunk(3, 1)
    logarithms = -0.5 * ((batch[1][:, None] - means) / scales.exp()).square() - scales
    return -(F.log_softmax(weights, 1) + logarithms).logsumexp(1).mean()


def of_counts(model, batch):
    rate = model(batch[0])[:, 0]
    return (rate.exp() - batch[1].abs().round() * rate).mean()


def of_many_labels(model, batch):
    x, y = batch
    z = model(x)
    hot = F.one_hot(y, 4).float()
    return (F.softplus(z) - z * hot).sum(1).mean()


def of_pairs_of_views(model, batch):
    one, other = model(batch[0]), model(batch[1])
    logits = -torch.cdist(one, other).square()
    return F.cross_entropy(logits, torch.arange(len(one)))


def of_lengths_of_time(model, batch):
    """Negative log-likelihood of Weibull's law, with a shape and a scale."""
    shape, scale = model(batch[0]).chunk(2, 1)
    z = (batch[1][:, None].log() - scale) * F.softplus(shape)
    return (z.exp() - z - F.softplus(shape).log()).mean()


# Losses of models with so many outputs, and what they take beside inputs.
LIKELIHOODS = {
    "Cox, sorted": (cox_by_sorting, 1, (TIME, EVENT)),
    "Cox, with sets at risk": (cox_by_risk_sets, 1, (TIME, EVENT)),
    "Cox, of rows with an event": (cox_by_rows, 1, (TIME, EVENT)),
    "mixture": (of_mixture, 9, (VALUE,)),
    "views": (of_pairs_of_views, 8, (X + 0.1 * Z,)),
    "lengths of time": (of_lengths_of_time, 2, (TIME,)),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihoods_and_their_negatives(name):
    loss, width, batch = LIKELIHOODS[name]
    assert of_aims(traced_pass(layers(width), (X, *batch), loss)) == []
    turned = lambda model, batch: -loss(model, batch)  # noqa: E731
    assert found(turned, *batch, width=width) == ("critical", "The loss has its sign turned")


class Values(nn.Module):
    """Values of actions, and a copy that is not trained."""

    def __init__(self):
        super().__init__()
        self.values = layers(3)
        self.target = copy.deepcopy(self.values).requires_grad_(False)


@pytest.mark.parametrize("distance", [F.smooth_l1_loss, F.mse_loss, F.l1_loss])
@pytest.mark.parametrize("sign", [1, -1])
def test_errors_of_values(distance, sign):
    def loss(model, batch):
        state, reward, following = batch
        value = model.values(state).gather(1, (CLASS % 3)[:, None])[:, 0]
        with torch.no_grad():
            best = model.target(following).max(1).values
        return sign * distance(value, reward + 0.99 * best)

    expected = ("critical", "The loss has its sign turned") if sign < 0 else None
    assert found(loss, VALUE, Z, model=Values()) == expected


def critic(model, batch):
    return model(batch[1]).mean() - model(batch[0]).mean()


def mutual_information(model, batch):
    joint, apart = model(batch[0]), model(batch[1])
    return apart.exp().mean().log() - joint.mean()


def contrastive_divergence(model, batch):
    return (model(batch[0]) - model(batch[1])).mean()


def policy(weights):
    def loss(model, batch):
        chosen = F.log_softmax(model(batch[0]), 1).gather(1, CLASS[:, None])[:, 0]
        return -(chosen * weights(batch[1])).mean()

    return loss


def of_normal_law(model, batch):
    """A policy of continuous actions, whose costs are to become rare."""
    logarithm = -0.5 * (batch[1] - model(batch[0])[:, 0]).square()
    return (logarithm * TIME).mean()


def of_failures(model, batch):
    logarithm = -0.5 * (batch[1] - model(batch[0])[:, 0]).square()
    return (logarithm * EVENT).mean()


def of_deviations(model, batch):
    mean, scale = model(batch[0]).chunk(2, 1)
    z = (batch[1][:, None] - mean) / scale.exp()
    return (0.5 * z.square() + scale).mean()


def preferences(model, batch):
    return -F.logsigmoid(0.1 * (model(batch[0]) - model(batch[1]))).mean()


def quantile(model, batch):
    error = batch[1] - model(batch[0])[:, 0]
    return torch.max(0.9 * error, -0.1 * error).mean()


def generator_that_saturates(model, batch):
    return -F.softplus(model(batch[0])).mean()


def least_sure(model, batch):
    """Of all samples alike, as where nothing is known of them."""
    probabilities = model(batch[0]).softmax(1)
    return (probabilities * probabilities.log()).sum(1).mean()


def apart(model, batch):
    z = F.normalize(model(batch[0]))
    return torch.pdist(z).square().mul(-2).exp().mean().log()


HEALTHY = {
    "critic": (critic, 1, Z),
    "mutual information": (mutual_information, 1, Z),
    "contrastive divergence": (contrastive_divergence, 1, Z),
    "gains": (policy(lambda v: v), 4, VALUE),
    "costs": (policy(lambda v: -v.abs()), 4, VALUE),
    "failures": (policy(lambda v: -(v < 0).float()), 4, VALUE),
    "costs of a normal law": (of_normal_law, 1, VALUE),
    "failures of a normal law": (of_failures, 1, VALUE),
    "deviations": (of_deviations, 2, VALUE),
    "preferences": (preferences, 1, Z),
    "quantile": (quantile, 1, VALUE),
    "saturating generator": (generator_that_saturates, 1, Z),
    "least sure": (least_sure, 4, Z),
    "apart": (apart, 4, Z),
    "counts": (of_counts, 1, VALUE),
    "many labels": (of_many_labels, 4, CLASS),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_other_losses_that_fall_far(name):
    loss, width, given = HEALTHY[name]
    assert found(loss, given, width=width) is None


def variance(model, batch):
    z = model(batch[0])
    return -(z - z.mean(0)).square().mean()


def test_weights_that_a_norm_bounds():
    """The largest variance of orthogonal projections, as of principal components."""
    bounded = parametrizations.orthogonal(nn.Linear(6, 2, bias=False))
    assert found(variance, model=bounded) is None
    assert found(variance, model=nn.Linear(6, 2)) is not None


def test_a_penalty_of_weights_bounds_outputs():
    model = nn.Linear(6, 2, bias=False)

    def loss(model, batch):
        excess = model.weight @ model.weight.T - torch.eye(2)
        return variance(model, batch) + 100 * excess.square().sum()

    assert found(loss, model=model) is None


class Adversary(nn.Module):
    """A generator of inputs on which two networks are to differ."""

    def __init__(self):
        super().__init__()
        self.generator, self.student = layers(6), layers(4)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)


def test_networks_that_are_to_differ():
    def loss(model, batch):
        x = model.generator(batch[0])
        return -(model.student(x) - 2 * model.teacher(x)).abs().mean()

    assert found(loss, model=Adversary()) is None


def test_a_loss_that_is_assumed_or_infinite_is_left_out():
    turned = lambda model, batch: -cox_by_sorting(model, batch)  # noqa: E731
    batch = X, TIME, EVENT
    assert falls_without_bound(traced_pass(layers(1), batch, turned)) is not None
    assert falls_without_bound(traced_pass(layers(1), batch, turned, assumed=True)) is None
    infinite = lambda model, batch: turned(model, batch) * math.inf  # noqa: E731
    assert falls_without_bound(traced_pass(layers(1), batch, infinite)) is None


def of_episodes(model, batch):
    """One likelihood at a time, times what came of it."""
    means = model(batch[0])[:, :2]
    likelihoods = -0.5 * (batch[1][:, :2] - means).square().sum(1)
    return -torch.stack([a * b for a, b in zip(likelihoods, batch[2], strict=True)]).mean()


@pytest.mark.parametrize("came", [-1.0 - VALUE.abs(), torch.full((48,), -200.0)])
def test_what_came_of_an_episode_lies_below_zero(came):
    assert found(of_episodes, Z, came) is None


def test_weights_of_one_size_are_no_rewards():
    turned = lambda model, batch: -of_episodes(model, batch)  # noqa: E731
    assert found(turned, Z, torch.full((48,), 2.0)) is not None
