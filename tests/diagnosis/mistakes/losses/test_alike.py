"""Losses of outputs alone that are least where all samples have one output."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.mistakes.losses.aims import of_aims
from equipoise.diagnosis.mistakes.losses.alike import all_alike
from support.model_state import left_alone
from support.traced_passes import found_by, traced_pass

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(32, 6, generator=GENERATOR)
VIEWS = X + 0.1 * torch.randn(32, 6, generator=GENERATOR), X
ALIKE = ("critical", "One answer for all inputs is as good as the right ones")


class Views(nn.Module):
    """An encoder, and what predicts one view's vector from the other's."""

    def __init__(self, *, norm=False, last_norm=False):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(
            nn.Linear(6, 32),
            nn.BatchNorm1d(32) if norm else nn.Identity(),
            nn.ReLU(),
            nn.Linear(32, 8),
            nn.BatchNorm1d(8, affine=False) if last_norm else nn.Identity(),
        )
        self.predictor = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.slow = copy.deepcopy(self.encoder).requires_grad_(False)


def cosines(p, z):
    return -F.cosine_similarity(p, z, dim=1).mean()


def products(p, z):
    return -(F.normalize(p, dim=1) * F.normalize(z, dim=1)).sum(1).mean()


def squares(p, z):
    return (F.normalize(p, dim=1) - F.normalize(z, dim=1)).square().sum(1).mean()


def entropies(p, z):
    """As of DINO, without centring, which keeps both from one answer."""
    return -(z.softmax(1) * p.log_softmax(1)).sum(1).mean()


def symmetric(distance, *, stops=False, drawn=False):
    def loss(model, batch):
        views = batch
        if drawn:
            views = [batch[1] + 0.1 * torch.randn_like(batch[1]) for _ in range(2)]
        one, other = (model.encoder(x) for x in views)
        first, second = model.predictor(one), model.predictor(other)
        if stops:
            one, other = one.detach(), other.detach()
        return 0.5 * (distance(first, other) + distance(second, one))

    return loss


def one_way(distance):
    def loss(model, batch):
        one, other = (model.encoder(x) for x in batch)
        return distance(model.predictor(one), other)

    return loss


def found(loss, model=None, batch=VIEWS):
    model = Views() if model is None else model
    return found_by(of_aims, model, batch, loss)


@pytest.mark.parametrize("distance", [cosines, products, squares])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("drawn", [False, True])
def test_two_views_and_a_stopped_gradient(distance, norm, drawn):
    model = Views(norm=norm)
    (given,) = found(symmetric(distance, drawn=drawn), model)
    assert given[0] == "critical"
    assert found(symmetric(distance, stops=True, drawn=drawn), model) == []


@pytest.mark.parametrize("distance", [cosines, products])
def test_it_is_told_by_what_would_be_as_good(distance):
    model = Views()
    traced = traced_pass(model, VIEWS, symmetric(distance))
    with left_alone(model):
        given = all_alike(traced)
    assert (given.severity, given.title) == ALIKE
    assert "-cosine_similarity(predictor(a), b.detach())" in given.remedy
    assert all_alike(traced_pass(model, VIEWS, one_way(distance))).title == ALIKE[1]


@pytest.mark.parametrize("distance", [cosines, products])
def test_vectors_that_batch_norm_gives(distance):
    """They are not all alike, but two opposite ones are as good as one for each sample."""
    assert found(symmetric(distance), Views(norm=True, last_norm=True)) == [ALIKE]


def with_others(model, batch):
    one, other = (F.normalize(model.encoder(x), dim=1) for x in batch)
    return F.cross_entropy(one @ other.T / 0.2, torch.arange(len(one)))


def with_variance(model, batch):
    one, other = (model.encoder(x) for x in batch)
    spread = sum(F.relu(1 - z.std(0)).mean() for z in (one, other))
    return cosines(model.predictor(one), other) + spread


def without_redundancy(model, batch):
    one, other = (F.batch_norm(model.encoder(x), None, None, training=True) for x in batch)
    c = one.T @ other / len(one)
    return (c - torch.eye(8)).square().sum()


def apart(model, batch):
    """Alignment and uniformity."""
    one, other = (F.normalize(model.encoder(x), dim=1) for x in batch)
    near = (one - other).square().sum(1).mean()
    return near + torch.pdist(one).square().mul(-2).exp().mean().log()


def of_a_slow_copy(model, batch):
    with torch.no_grad():
        z = model.slow(batch[1])
    return cosines(model.predictor(model.encoder(batch[0])), z)


def of_a_frozen_teacher(model, batch):
    return cosines(model.predictor(model.encoder(batch[0])), model.slow(batch[1]))


def of_a_frozen_teacher_alone(model, batch):
    return F.mse_loss(model.encoder(batch[1]), model.slow(batch[1]))


def decoded(model, batch):
    z = model.predictor(model.encoder(batch[0]))
    return cosines(z[:, :6], batch[1])


def with_labels(model, batch):
    one, other = (model.encoder(x) for x in batch)
    return F.cosine_embedding_loss(one, other, torch.tensor([1.0, -1.0]).repeat(16))


def whitened(model, batch):
    z = []
    for x in batch:
        y = model.encoder(x)
        y = y - y.mean(0)
        root = torch.linalg.cholesky(y.T @ y / len(y) + 1e-3 * torch.eye(8))
        z.append(y @ torch.linalg.inv(root).T)
    return cosines(*z)


def with_clusters(model, batch):
    """Entropies of both views, and of the mean, which is to be large."""
    one, other = (model.encoder(x).softmax(1) for x in batch)
    mean = one.mean(0)
    return -(one * other).sum(1).log().mean() + 5 * (mean * mean.log()).sum()


def of_parts(model, batch):
    """What one network says of a sum is what it says of its parts together."""
    z = [model.encoder(x) for x in (*batch, batch[0] + batch[1])]
    return cosines(z[0] + z[1], z[2]) + F.mse_loss(model.predictor(z[0])[:, :6], batch[0])


@pytest.mark.parametrize(
    "loss",
    [
        with_others,
        with_variance,
        without_redundancy,
        apart,
        of_a_slow_copy,
        of_a_frozen_teacher,
        of_a_frozen_teacher_alone,
        decoded,
        whitened,
        with_clusters,
        of_parts,
    ],
)
def test_what_keeps_samples_apart(loss):
    assert found(loss) == []


def test_labels_of_pairs():
    """Every second pair is one of inputs that differ, and is to be told apart."""
    other = torch.where(torch.arange(32)[:, None] % 2 > 0, VIEWS[1].roll(1, 0), VIEWS[1])
    assert found(with_labels, batch=(VIEWS[0], other)) == []


def test_sums_of_likelihoods_are_no_views():
    model = Views()

    def loss(model, batch):
        return F.cross_entropy(model.encoder(batch[0]), batch[1])

    assert found(loss, model, (X, torch.arange(32) % 8)) == []
