"""Wider layers with smaller weights."""

import pytest
import torch
from torch import nn

from support.what_if_models import (
    Block,
    gradients,
    of_even_size,
    perceptron,
    predicted,
    projected,
    second_moments,
    vectors,
)


def residual(width):
    layers = [nn.Linear(16, width), *(Block(width) for _ in range(2)), nn.LayerNorm(width)]
    for block in layers[1:3]:
        block.up, block.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
    return nn.Sequential(*layers, nn.Linear(width, 8))


def convolutional(width):
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, width, 3, padding=1),
        nn.GroupNorm(4, width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, groups=width),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.Flatten(),
        nn.Linear(16 * width, 8),
    )


def concatenated(width):
    class Both(nn.Module):
        def forward(self, x):
            return torch.cat([x, torch.tanh(x)], 1)

    return nn.Sequential(
        nn.Linear(16, width), Both(), nn.Linear(2 * width, width), nn.LayerNorm(width),
        nn.Linear(width, 8),
    )  # fmt: skip


MODELS = {
    "residual": residual,
    "perceptron": lambda width: perceptron(width=width),
    "convolutional": convolutional,
    "concatenated": concatenated,
}


@pytest.fixture(scope="module", params=MODELS)
def answers(request):
    build = MODELS[request.param]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        narrow, wide = (of_even_size(build(width)) for width in (32, 64))
        found = predicted(narrow, vectors())
    return found, found.what_if(width=2), predicted(wide, vectors())


class TestWidth:
    def test_predicts_second_moments_of_the_wider_model(self, answers):
        _, answer, real = answers
        assert second_moments(answer) == pytest.approx(second_moments(real), rel=1e-5)

    def test_predicts_its_gradients(self, answers):
        _, answer, real = answers
        assert gradients(answer) == pytest.approx(gradients(real), rel=1e-5)

    def test_those_of_the_model_as_it_is_are_larger(self, answers):
        """The last layer's weights have twice the variance."""
        found, _, real = answers
        ours, theirs = gradients(found), gradients(real)
        place = next(iter(theirs))
        assert ours[place] / theirs[place] > 1.8


def test_half_as_wide():
    narrow, wide = (of_even_size(perceptron(width=width)) for width in (32, 64))
    answer = predicted(wide, vectors()).what_if(width=0.5)
    assert gradients(answer) == pytest.approx(gradients(predicted(narrow, vectors())), rel=1e-5)


def test_biases_that_are_not_drawn_like_weights_stay():
    model = of_even_size(nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 8)))
    nn.init.constant_(model[1].bias, 2.0)
    found = predicted(model, vectors())
    wider = second_moments(found.what_if(width=4))
    assert wider["1", "addmm", 0] == pytest.approx(second_moments(found)["1", "addmm", 0])
    assert wider["2", "addmm", 0] < second_moments(found)["2", "addmm", 0]


@pytest.mark.parametrize(
    ("gain", "factors"),
    [
        (2.0, (4, 16)),
        ({"*": 2.0}, (4, 16)),
        ({"0": 2.0}, (4, 4)),
        ({"1.weight": 2.0}, (1, 4)),
        ({"0": 2.0, "1": 3.0}, (4, 36)),
    ],
)
def test_gains_of_layers_named_by_patterns(gain, factors):
    model = nn.Sequential(nn.Linear(16, 32, bias=False), nn.Linear(32, 8, bias=False))
    found = predicted(model, vectors(), projected)
    before, after = second_moments(found), second_moments(found.what_if(gain=gain))
    ratios = [after[str(i), "mm", 0] / before[str(i), "mm", 0] for i in range(2)]
    assert ratios == pytest.approx(factors, rel=1e-5)
