"""When a stack is expected to be faster: multiplications per layer are counted, not timed."""

import copy

import torch
from torch import nn

from equipoise.models import cnn5, mlp
from equipoise_papers.stacked.choice import multiplications_per_layer, worthwhile


def test_small_layers_are_stacked_and_large_ones_are_not():
    small, large = mlp(64, 10, depth=2, width=64), mlp(64, 10, depth=2, width=1024)
    x = torch.zeros(4, 64, 64)
    assert worthwhile([small] * 4, x)
    assert not worthwhile([large] * 4, x.repeat(1, 8, 1))


def test_two_are_too_few():
    model, x = mlp(64, 10, depth=2, width=64), torch.zeros(2, 64, 64)
    assert not worthwhile([model] * 2, x)


def test_convolutions_count_by_positions():
    model = cnn5(10, 1, image_size=28)
    counted = multiplications_per_layer(model, torch.zeros(8, 1, 28, 28))
    of_layers = (26**2 * 9 * 32, 11**2 * 9 * 32 * 64, 3**2 * 9 * 64 * 32, 288 * 64, 64 * 10)
    assert counted == 8 * sum(of_layers) / 5


def test_counting_leaves_model_and_random_states_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    assert multiplications_per_layer(model, torch.zeros(3, 4)) == 48
    assert torch.equal(torch.get_rng_state(), state)
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
