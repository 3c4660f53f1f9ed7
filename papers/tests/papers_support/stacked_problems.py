"""Small stacks of models, and the same models trained alone, for the tests of train_many."""

import copy

import pytest
import torch
from torch.optim import SGD

from equipoise.models import mlp, vgg
from equipoise.training import cross_entropy, train
from equipoise_papers.stacked.train import train_many

K, B, FEATURES, CLASSES, STEPS = 4, 6, 5, 3, 20
RATES = (0.003, 0.01, 0.03, 0.1)
CLOSE = 1e-10


def dense(norm="batch", **options):
    return mlp(FEATURES, CLASSES, depth=2, width=8, norm=norm, **options)


def convolutional(norm="batch"):
    return vgg(((4, 4), (6,)), CLASSES, 2, norm=norm, dense=(8,), head_size=2)


def stack_of(build, members=K):
    return [build().double() for _ in range(members)]


def batches_of(shape, *, steps=STEPS, members=K, batch=B):
    return [
        (
            torch.randn(members, batch, *shape, dtype=torch.float64),
            torch.randint(CLASSES, (members, batch)),
        )
        for _ in range(steps)
    ]


def alone(models, batches, optimizer, rates=RATES, loss_fn=cross_entropy):
    return tuple(
        train(
            model,
            [(x[member], y[member]) for x, y in batches],
            loss_fn,
            optimizer(model.parameters(), rate),
        )
        for member, (model, rate) in enumerate(zip(models, rates, strict=True))
    )


def both_ways(build, shape, optimizer=SGD, *, rates=RATES, loss_fn=cross_entropy, batches=None):
    """Models and histories of a stack, and of the same models trained alone."""
    models = stack_of(build)
    twins = copy.deepcopy(models)
    batches = batches_of(shape) if batches is None else batches
    together = train_many(models, batches, loss_fn, optimizer, rates, method="stacked")
    return models, together, twins, alone(twins, batches, optimizer, rates, loss_fn)


def assert_same(models, together, twins, apart):
    for history, own in zip(together, apart, strict=True):
        assert history.losses == pytest.approx(own.losses, abs=CLOSE, nan_ok=True)
        assert history.diverged_at == own.diverged_at
    for model, twin in zip(models, twins, strict=True):
        for name, tensor in twin.state_dict().items():
            found = model.state_dict()[name]
            torch.testing.assert_close(found, tensor, rtol=0, atol=CLOSE, equal_nan=True)
