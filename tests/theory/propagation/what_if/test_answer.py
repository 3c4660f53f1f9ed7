"""What if answers are the predictions for models that were really changed.

Both are made for the same weights and a loss with a constant gradient, so that they agree to
rounding; but for biases that PyTorch adds by themselves where axes were moved.
"""

import copy
import math

import pytest
import torch
from torch import nn

from equipoise.theory.propagation.what_if.norms import with_norm
from support.what_if_models import (
    Block,
    batch,
    convolutional,
    gradients,
    images,
    perceptron,
    predicted,
    residual,
    second_moments,
    vectors,
)


def swapped(model, kind, make):
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, kind):
                setattr(parent, name, make(child))


def adjusted(model, kind, adjust):
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, kind):
                adjust(module)


class ChannelsSecond(nn.Module):
    """A norm of images, for tokens."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


def tokens():
    """Two hidden layers of every token, with norms and an average at the end."""
    hidden = [nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 32), nn.LayerNorm(32)]
    return nn.Sequential(*hidden, nn.ReLU(), nn.Flatten(), nn.Linear(160, 8))


def texts():
    return batch(6, 5, 16)


def with_instance_norm():
    model = convolutional()
    norm(lambda _: nn.InstanceNorm2d(16, affine=True))(model)
    return model


def activation(make):
    return lambda model: swapped(model, nn.ReLU, lambda _: make())


def norm(make):
    kinds = nn.BatchNorm1d, nn.BatchNorm2d, nn.InstanceNorm2d, nn.LayerNorm
    return lambda model: swapped(model, kinds, make)


def filled(**values):
    def fill(module):
        for name, value in values.items():
            getattr(module, name).fill_(value)

    return lambda model: adjusted(model, nn.BatchNorm1d, fill)


def with_eps(model):
    adjusted(model, nn.LayerNorm, lambda layer: setattr(layer, "eps", 0.3))


def with_scale(model):
    adjusted(model, Block, lambda block: setattr(block, "scale", 0.3))


def doubled(model):
    adjusted(model, nn.Linear, lambda layer: layer.weight.mul_(2))


def first_doubled(model):
    adjusted(model[0], nn.Linear, lambda layer: layer.weight.mul_(2))


def several(model):
    activation(nn.Tanh)(model)
    filled(bias=0.5, weight=2.0)(model)
    first_doubled(model)


CASES = {
    "activation": (residual, vectors, {"activation": "gelu"}, activation(nn.GELU)),
    "activation with a number": (
        convolutional,
        images,
        {"activation": "leaky_relu(0.3)"},
        activation(lambda: nn.LeakyReLU(0.3)),
    ),
    "activation of several operations": (
        perceptron,
        vectors,
        {"activation": "tanhshrink"},
        activation(nn.Tanhshrink),
    ),
    "group norm": (
        convolutional,
        images,
        {"norm": "group", "groups": 4},
        norm(lambda _: nn.GroupNorm(4, 16)),
    ),
    "layer norm of images": (
        convolutional,
        images,
        {"norm": "layer"},
        norm(lambda _: nn.GroupNorm(1, 16)),
    ),
    "instance norm": (
        convolutional,
        images,
        {"norm": "instance"},
        norm(lambda _: nn.InstanceNorm2d(16)),
    ),
    "layer norm": (
        perceptron,
        vectors,
        {"norm": "layer"},
        norm(lambda _: nn.LayerNorm(32)),
    ),
    "group norm of tokens": (
        tokens,
        texts,
        {"norm": "group", "groups": 4},
        norm(lambda _: ChannelsSecond(nn.GroupNorm(4, 32))),
    ),
    "group norm of what no weights were multiplied with": (
        lambda: nn.Sequential(nn.LayerNorm(16), *tokens()),
        texts,
        {"norm": "group", "groups": 4},
        norm(lambda layer: ChannelsSecond(nn.GroupNorm(4, layer.normalized_shape[0]))),
    ),
    "batch norm of tokens": (
        tokens,
        texts,
        {"norm": "batch"},
        norm(lambda _: ChannelsSecond(nn.BatchNorm1d(32))),
    ),
    "instance norm that was there": (
        with_instance_norm,
        images,
        {"norm": "group", "groups": 2},
        norm(lambda _: nn.GroupNorm(2, 16)),
    ),
    "RMS norm": (perceptron, vectors, {"norm": "rms"}, norm(lambda _: nn.RMSNorm(32, 1e-5))),
    "batch norm": (residual, vectors, {"norm": "batch"}, norm(lambda _: nn.BatchNorm1d(32))),
    "no norm": (perceptron, vectors, {"norm": "none"}, norm(lambda _: nn.Identity())),
    "beta": (perceptron, vectors, {"beta": 1.0}, filled(bias=1.0)),
    "gamma and beta": (
        perceptron,
        vectors,
        {"gamma": 0.5, "beta": 0.2},
        filled(weight=0.5, bias=0.2),
    ),
    "eps": (residual, vectors, {"eps": 0.3}, with_eps),
    "residual scale": (residual, vectors, {"residual_scale": 0.3}, with_scale),
    "gain": (residual, vectors, {"gain": 2.0}, doubled),
    "gain of one layer": (perceptron, vectors, {"gain": {"0": 2.0}}, first_doubled),
    "several": (
        perceptron,
        vectors,
        {"activation": "tanh", "beta": 0.5, "gamma": 2.0, "gain": {"0.*": 2.0}},
        several,
    ),
}


@pytest.fixture(scope="module", params=CASES)
def answers(request):
    """As it is, as asked for, and as predicted for the changed model."""
    build, data, changes, change = CASES[request.param]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build()
    found = predicted(model, data())
    changed = copy.deepcopy(model)
    change(changed)
    return found, found.what_if(**changes), predicted(changed, data())


class TestAnswers:
    def test_are_at_the_operations_of_the_changed_model(self, answers):
        _, answer, real = answers
        assert len(second_moments(answer).keys() & second_moments(real).keys()) >= 4

    def test_have_its_second_moments(self, answers):
        _, answer, real = answers
        theirs = second_moments(real)
        for place, q in second_moments(answer).items():
            assert q == pytest.approx(theirs.get(place, q), rel=1e-3)

    def test_have_its_gradients(self, answers):
        _, answer, real = answers
        theirs, found = gradients(real), gradients(answer)
        assert len(found) >= 6
        for place, gradient in found.items():
            assert gradient == pytest.approx(theirs.get(place, gradient), rel=1e-3)

    def test_are_not_those_of_the_model_as_it_is(self, answers):
        found, _, real = answers
        before, after = gradients(found), gradients(real)
        assert (
            max(abs(math.log(after[p] / before[p])) for p in before.keys() & after.keys()) > 0.04
        )

    def test_have_no_measurements(self, answers):
        _, answer, _ = answers
        assert all(math.isnan(site.measured_second_moment) for site in answer.sites)
        assert all(site.measured_gradient is None for site in answer.sites)


MISTAKES = [
    (perceptron, {}, "at least one change"),
    (perceptron, {"activation": "gulu"}, "unknown activation 'gulu'"),
    (perceptron, {"norm": "bathc"}, "no norm 'bathc': there are batch, group"),
    (perceptron, {"norm": "group", "groups": 5}, "32 channels, no multiple of 5"),
    (perceptron, {"norm": "layer", "groups": 4}, "groups are those of norm='group'"),
    (perceptron, {"groups": 4}, "groups belongs to norm"),
    (perceptron, {"norm": "instance"}, "instance norm needs positions"),
    (perceptron, {"residual_scale": 0.1}, "no branch .* 3 × native_batch_norm"),
    (perceptron, {"gain": {"body.*": 2.0}}, "named 'body.*': there are 0.weight"),
    (perceptron, {"eps": -1.0}, "must not be negative"),
    (perceptron, {"batch_size": 0}, "at least 1; got 0"),
    (perceptron, {"width": 0}, "to a million, got 0"),
    (perceptron, {"batch_size": 10**13}, "at most 1,000,000,000,000; got 10,000,000,000,000"),
    (perceptron, {"batch_size": math.inf}, "whole number of at least 1; got inf"),
    (perceptron, {"gamma": math.nan}, "gamma must be a number in .*; got nan"),
    (perceptron, {"beta": "zero"}, "beta must be a number in .*; got 'zero'"),
    (perceptron, {"gain": {"0.*": 1e308}}, "must be a number in .*; got 1e.308"),
    (perceptron, {"block": "layers"}, "block belongs to depth"),
    (residual, {"depth": 0.5}, "3 blocks times 0.5 are 1.5"),
    (residual, {"depth": 2, "block": "layers"}, "no module 'layers': at the top there are 0, 1"),
    (lambda: nn.Linear(16, 8), {"norm": "none"}, "no batch, group, instance or layer norm"),
    (lambda: nn.Linear(16, 8), {"activation": "relu"}, "no activation"),
    (lambda: nn.Linear(16, 8), {"depth": 2}, "no block of operations with weights"),
    (lambda: nn.Linear(16, 8), {"width": 2}, "no hidden layers"),
]


@pytest.mark.parametrize(("build", "changes", "message"), MISTAKES)
def test_mistakes_are_named(build, changes, message):
    with pytest.raises(ValueError, match=message):
        predicted(build(), vectors()).what_if(**changes)


def test_answers_can_be_asked_again():
    """Two questions are the same as both at once."""
    found = predicted(residual(), vectors())
    twice = found.what_if(activation="tanh").what_if(gain=2.0, batch_size=4)
    once = found.what_if(gain=2.0, activation="tanh", batch_size=4)
    assert repr(twice) == repr(once)
    assert repr(twice) != repr(found.what_if(activation="tanh"))


def test_what_follows_a_norm_left_out_is_not_measured():
    """Its input takes its place, which was there before."""
    graph = with_norm(predicted(perceptron(), vectors()).graph, "none", None)
    assert [n.outputs[0].is_meta for n in graph.nodes if n.name == "relu"] == [True] * 3


def test_where_theory_ended_before_nothing_is_known_after_a_change():
    class Running(nn.Module):
        def forward(self, x):
            return x.cummax(1).values

    model = nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), Running(), nn.Linear(32, 8)
    )
    found = predicted(model, vectors())
    answer = found.what_if(activation="tanh")
    assert next(s.operation for s in found.sites if s.gradient) == "addmm"
    assert [s for s in answer.sites if s.gradient] == []
    reasons = {site.operation: site.reason for site in answer.sites if site.reason}
    assert reasons["cummax"] == "no rule for cummax"
    assert "does not hold after the change" in reasons["addmm"]
    assert reasons["tanh"] == "a gradient of the loss before the change"


def test_a_stored_answer_cannot_be_asked():
    found = predicted(perceptron(), vectors())
    with pytest.raises(ValueError, match="needs the traced graph"):
        type(found)(found.sites, found.weights).what_if(batch_size=2)
