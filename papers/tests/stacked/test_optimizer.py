"""A stack takes the steps that the optimisers of its models would take one by one."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adadelta, Adagrad, Adam, AdamW, NAdam, RAdam, RMSprop

from equipoise.training import cross_entropy
from equipoise_papers.stacked.optimizer import stepper
from equipoise_papers.stacked.stack import Stack
from equipoise_papers.stacked.train import train_many
from papers_support.stacked_problems import (
    CLASSES,
    FEATURES,
    RATES,
    B,
    K,
    assert_same,
    both_ways,
    dense,
)

OPTIMIZERS = {
    "momentum": partial(SGD, momentum=0.9),
    "nesterov": partial(SGD, momentum=0.9, nesterov=True),
    "decay": partial(SGD, momentum=0.5, weight_decay=0.1),
    "maximize": partial(SGD, maximize=True),
    "rmsprop": partial(RMSprop, alpha=0.9),
    "rmsprop centred": partial(RMSprop, alpha=0.9, momentum=0.9, centered=True),
    "adam": Adam,
    "amsgrad": partial(Adam, amsgrad=True),
    "adamw": partial(AdamW, weight_decay=0.1),
    "nadam": NAdam,
    "radam": RAdam,
    "adagrad": Adagrad,
    "adadelta": Adadelta,
    "half the rate": lambda parameters, rate: SGD(parameters, lr=rate / 2),
    "some parameters": lambda parameters, rate: SGD(list(parameters)[2:], lr=rate),
    "momentum by rate": lambda parameters, rate: SGD(parameters, lr=rate, momentum=10 * rate),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    rates = [rate / 10 for rate in RATES]
    assert_same(*both_ways(dense, (FEATURES,), OPTIMIZERS[name], rates=rates))


def with_momentum(parameters, rate):
    return SGD(parameters, lr=rate, momentum=20 * rate)


def with_momentum_below_one_half(parameters, rate):
    return SGD(parameters, lr=rate, momentum=0.9 if rate < 0.5 else 0.0)


def below_one_half(parameters, rate):
    if rate > 0.5:
        raise ValueError("too fast")
    return SGD(parameters, lr=rate)


def of_known_shapes(parameters, rate):
    """Ignores parameters that have one dimension more than the model's."""
    return SGD([p for p in parameters if p.ndim < 3], lr=rate)


@pytest.mark.parametrize(
    "make", [with_momentum, with_momentum_below_one_half, below_one_half, of_known_shapes]
)
def test_options_are_those_at_the_models_own_rates(make):
    assert_same(*both_ways(dense, (FEATURES,), make, rates=[0.02] * K))


def clipped(parameters, rate):
    optimizer = SGD(parameters, lr=rate)

    def clip(*_):
        nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.1)

    optimizer.register_step_pre_hook(clip)
    return optimizer


def bounded(parameters, rate):
    optimizer = SGD(parameters, lr=rate)

    @torch.no_grad()
    def bound(*_):
        tensors = optimizer.param_groups[0]["params"]
        norm = torch.stack([p.norm() for p in tensors]).norm()
        for p in tensors:
            p.mul_(2 / norm)

    optimizer.register_step_post_hook(bound)
    return optimizer


def slowing(parameters, rate):
    optimizer = SGD(parameters, lr=rate)
    step = optimizer.step

    def then_slower():
        step()
        optimizer.param_groups[0]["lr"] /= 2

    optimizer.step = then_slower
    return optimizer


@pytest.mark.parametrize("make", [clipped, bounded, slowing])
def test_what_is_attached_to_an_optimizer_acts_on_its_own_model(make):
    assert_same(*both_ways(dense, (FEATURES,), make))


def partly_frozen():
    model = nn.Sequential(
        nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, CLASSES)
    )
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize("first", [2, 4])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}], ids=["plain", "decay"])
def test_optimizers_are_given_frozen_parameters_too(first, options):
    def make(parameters, rate):
        return SGD(list(parameters)[first:], lr=rate, **options)

    assert_same(*both_ways(partly_frozen, (FEATURES,), make))


def test_parameters_come_as_from_a_model():
    def make(parameters, rate):
        head, *_ = next(parameters), next(parameters)
        return SGD([head, *parameters], lr=rate)

    assert_same(*both_ways(dense, (FEATURES,), make))


@pytest.mark.parametrize("make", [SGD, partial(SGD, momentum=0.9), Adam, AdamW, Adagrad])
def test_plain_optimizers_step_once_for_all(make):
    steps = stepper(make, RATES, Stack([dense() for _ in range(K)]))
    assert type(steps).__name__ == "_AllAtOnce"


@pytest.mark.parametrize("make", [partial(SGD, weight_decay=0.1), clipped, slowing])
def test_others_step_model_by_model(make):
    steps = stepper(make, RATES, Stack([dense() for _ in range(K)]))
    assert type(steps).__name__ == "_MemberByMember"


@pytest.mark.parametrize("method", ["auto", "stacked", "one by one"])
def test_closures_are_refused(method):
    batches = [(torch.zeros(K, B, FEATURES), torch.zeros(K, B, dtype=torch.long))]
    models = [dense() for _ in range(K)]
    with pytest.raises(ValueError, match="cannot use LBFGS, whose step needs a closure"):
        train_many(models, batches, cross_entropy, LBFGS, RATES, method=method)
