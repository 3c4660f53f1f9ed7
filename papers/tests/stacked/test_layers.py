"""Layers that a stack could compute differently from single models without an error."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import SGD

from equipoise.training import cross_entropy
from equipoise_papers.stacked.choice import multiplications_per_layer
from equipoise_papers.stacked.modules import Residual, SelfAttention
from equipoise_papers.stacked.train import train_many
from papers_support.stacked_problems import (
    CLASSES,
    FEATURES,
    RATES,
    B,
    K,
    assert_same,
    batches_of,
    both_ways,
    dense,
    stack_of,
)


def with_one_activation():
    act = nn.ReLU()
    return nn.Sequential(nn.Linear(FEATURES, 8), act, nn.Linear(8, 8), act, nn.Linear(8, CLASSES))


def with_a_layer_used_twice():
    layer, norm = nn.Linear(FEATURES, FEATURES), nn.BatchNorm1d(FEATURES)
    return nn.Sequential(layer, norm, nn.Tanh(), layer, norm, nn.Linear(FEATURES, CLASSES))


def with_a_chain_used_twice():
    inner = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh())
    return nn.Sequential(inner, inner, nn.Linear(FEATURES, CLASSES))


@pytest.mark.parametrize(
    "build", [with_one_activation, with_a_layer_used_twice, with_a_chain_used_twice]
)
def test_modules_are_applied_as_often_as_they_appear(build):
    assert_same(*both_ways(build, (FEATURES,)))


POOLS = {
    "1d": (lambda: nn.AvgPool1d(3, 1, 1), (6,)),
    "1d with channels": (lambda: nn.MaxPool1d(2), (3, 4)),
    "2d": (lambda: nn.MaxPool2d(3, 1, 1), (6, 6)),
    "2d with channels": (lambda: nn.AvgPool2d(2), (3, 4, 4)),
    "2d to one size": (lambda: nn.AdaptiveAvgPool2d(2), (5, 4)),
    "3d": (lambda: nn.AvgPool3d(2, 1), (3, 3, 3)),
}


@pytest.mark.parametrize("name", POOLS)
def test_pools_keep_models_apart(name):
    pool, shape = POOLS[name]
    features = pool()(torch.zeros(1, *shape)).numel()

    def build():
        return nn.Sequential(pool(), nn.Flatten(), nn.Linear(features, CLASSES))

    assert_same(*both_ways(build, shape))


def test_a_batch_norm_may_stop_tracking():
    def build():
        model = dense()
        model.norm1.track_running_stats = False
        return model

    models, *others = both_ways(build, (FEATURES,))
    assert_same(models, *others)
    assert int(models[0].norm1.num_batches_tracked) == 0
    assert int(models[0].norm2.num_batches_tracked) > 0


def test_a_batch_norm_that_stopped_tracking_still_evaluates_by_its_statistics():
    def build():
        model = dense()
        model.norm1.track_running_stats = False
        model.norm1.running_mean += 1
        model.norm1.eval()
        return model

    assert_same(*both_ways(build, (FEATURES,)))


@pytest.mark.parametrize("method", ["auto", "stacked"])
def test_a_first_layer_in_place_sees_each_batch_once(method):
    def build():
        return nn.Sequential(nn.ELU(inplace=True), nn.Linear(FEATURES, CLASSES))

    models, batches = stack_of(build), batches_of((FEATURES,))
    twins, copies = copy.deepcopy(models), copy.deepcopy(batches)
    together = train_many(models, batches, cross_entropy, SGD, RATES, method=method)
    apart = train_many(twins, copies, cross_entropy, SGD, RATES, method="one by one")
    assert_same(models, together, twins, apart)


class Counting(nn.Module):
    """Its forward pass changes plain attributes: a number, a list, and one that was not there."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.calls, self.sizes, self.log = 0, [], {"inner": {"seen": 0}}

    def forward(self, x):
        self.calls += 1
        self.sizes.append(len(x))
        self.log["inner"]["seen"] += 1
        self.last = len(x)
        return self.linear(x) / self.calls


def plain(model):
    return model.calls, model.sizes, model.log, "last" in vars(model)


def test_plain_attributes_are_each_models_own():
    models, batches = stack_of(Counting), batches_of((FEATURES,), steps=4)
    twins = copy.deepcopy(models)
    with pytest.raises(ValueError, match="Counting changes its sizes in the forward pass"):
        train_many(models, batches, cross_entropy, SGD, RATES, method="stacked")
    assert [plain(model) for model in models] == [(0, [], {"inner": {"seen": 0}}, False)] * K
    together = train_many(models, batches, cross_entropy, SGD, RATES)
    apart = train_many(twins, batches, cross_entropy, SGD, RATES, method="one by one")
    assert_same(models, together, twins, apart)
    assert [plain(model) for model in models] == [plain(model) for model in twins]
    assert plain(models[0]) == (4, [B] * 4, {"inner": {"seen": 4}}, True)


def test_counting_multiplications_changes_no_attributes_and_no_inputs():
    model = nn.Sequential(nn.ReLU(inplace=True), Counting())
    inputs = -torch.ones(B, FEATURES)
    assert multiplications_per_layer(model, inputs) == B * FEATURES * CLASSES
    assert plain(model[1]) == (0, [], {"inner": {"seen": 0}}, False)
    assert bool((inputs == -1).all())


def residual_blocks():
    def branch():
        return nn.Sequential(nn.BatchNorm1d(FEATURES), nn.ReLU(), nn.Linear(FEATURES, FEATURES))

    blocks = [Residual(branch()), nn.Tanh(), Residual(branch(), scale=0.3)]
    return nn.Sequential(*blocks, nn.Linear(FEATURES, CLASSES))


def transformer_blocks():
    def block(causal):
        attention = nn.Sequential(nn.LayerNorm(4), SelfAttention(4, heads=2, causal=causal))
        hidden = nn.Sequential(nn.RMSNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        return nn.Sequential(Residual(attention), Residual(hidden, scale=0.5))

    chain = nn.Sequential(block(causal=True), block(causal=False))
    return nn.Sequential(chain, nn.Flatten(), nn.Linear(12, CLASSES))


@pytest.mark.parametrize(
    ("build", "shape"), [(residual_blocks, (5,)), (transformer_blocks, (3, 4))]
)
def test_modules_of_several_parts(build, shape):
    assert FEATURES == 5
    assert_same(*both_ways(build, shape))
