"""The rule that most layers follow is found and named."""

import math
from functools import partial
from itertools import pairwise

import pytest
from torch import nn
from torch.nn import init

from equipoise.diagnosis.initialisation.intended import own_laws, parameters_by_owner
from equipoise.diagnosis.initialisation.judgement.found import describe
from equipoise.diagnosis.initialisation.rules import consensus

WIDTHS = (64, 200, 96, 300, 64)


def layers(draw, count=4):
    model = nn.Sequential(*(nn.Linear(*pair) for pair in pairwise(WIDTHS)))
    if draw is not None:
        for layer in model[:count]:
            draw(layer.weight)
    described = [
        describe(name, module, parameter, None).layer
        for name, module, parameter in parameters_by_owner(model)
        if name.endswith("weight")
    ]
    return described, model


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (init.xavier_uniform_, "xavier_uniform_"),
        (partial(init.xavier_normal_, gain=3.0), "xavier_normal_ with gain 3.00"),
        (
            partial(init.kaiming_normal_, nonlinearity="relu"),
            "kaiming_normal_(mode='fan_in', nonlinearity='relu')",
        ),
        (
            partial(init.kaiming_uniform_, mode="fan_out", nonlinearity="linear"),
            "kaiming_uniform_(mode='fan_out', nonlinearity='linear')",
        ),
        (partial(init.normal_, std=0.02), "normal_(std=0.02)"),
        (partial(init.orthogonal_, gain=math.sqrt(2)), "orthogonal_(gain 1.41)"),
    ],
)
def test_rules_are_named(draw, words):
    described, _ = layers(draw)
    rule = consensus(described, limit=4.5)
    assert rule.words == words
    assert all(abs(rule.z(layer)) < 4.5 for layer in described)


def test_one_layer_of_another_rule_does_not_change_the_majority():
    described, _ = layers(partial(init.normal_, std=0.02), count=3)
    rule = consensus(described, limit=4.5)
    assert rule.words == "normal_(std=0.02)"
    assert [abs(rule.z(layer)) < 4.5 for layer in described] == [True, True, True, False]


def test_layers_of_one_shape_are_told_by_the_simplest_rule():
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    for layer in model:
        init.normal_(layer.weight, std=0.02)
    described = [describe(str(i), m, m.weight, None).layer for i, m in enumerate(model)]
    assert consensus(described, limit=4.5).words == "normal_(std=0.02)"


def test_without_a_majority_there_is_no_rule():
    model = nn.Sequential(*(nn.Linear(64, 100) for _ in range(4)))
    for layer, std in zip(model, (0.1, 0.2, 0.4, 0.8), strict=True):
        init.normal_(layer.weight, std=std)
    described = [describe(str(i), m, m.weight, None).layer for i, m in enumerate(model)]
    assert consensus(described, limit=4.5) is None
    assert consensus(described[:2], limit=4.5) is None


def test_the_default_is_known_by_its_name():
    _, model = layers(None)
    own = own_laws(model)
    described = [
        describe(name, module, parameter, own[name]).layer
        for name, module, parameter in parameters_by_owner(model)
        if name.endswith("weight")
    ]
    assert consensus(described, limit=4.5).words == "PyTorch's default"
