"""Scores of untrained networks, on cases with a known answer."""

import copy
import math

import pytest
import torch
from torch import nn

from equipoise_papers.trainability import rivals
from equipoise_papers.trainability.rivals import SCORES, Untrained, scores

C, N = 6, 8


def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(N, C, generator=generator).double(), torch.arange(N) % 3


def model(blocks=4, gain=1.0, act=nn.ReLU, norm=None):
    generator = torch.Generator().manual_seed(1)
    layers = []
    for _ in range(blocks):
        linear = nn.Linear(C, C, bias=False)
        nn.init.orthogonal_(linear.weight, gain, generator=generator)
        layers.append(nn.Sequential(linear, *([norm(C)] if norm else []), act()))
    head = nn.Linear(C, 3, bias=False)
    nn.init.normal_(head.weight, generator=generator)
    return nn.Sequential(nn.Identity(), nn.Sequential(*layers), head).double()


def score(function, network):
    return function(Untrained(network, batch()))


def with_head(factor):
    network = model()
    with torch.no_grad():
        network[2].weight.mul_(factor)
    return network


def test_growth_of_orthogonal_layers_is_the_square_of_their_gain():
    found = score(rivals.trainable_depth, model(5, gain=2.0, act=nn.Identity))
    assert found == pytest.approx(-5 * math.log(4))
    assert score(rivals.trainable_depth, model(5, act=nn.Identity)) == pytest.approx(0, abs=1e-6)


def test_equal_layers_have_a_gradient_ratio_of_one():
    one = nn.Sequential(nn.Identity(), nn.Sequential(), nn.Linear(C, 3)).double()
    assert score(rivals.gradient_ratio, one) == 0
    assert score(rivals.gradient_ratio, model(5, gain=3.0)) < 0


def test_dead_units_are_counted():
    network = model(1)
    network[1][0] = nn.Sequential(nn.Linear(C, C), nn.ReLU()).double()
    with torch.no_grad():
        network[1][0][0].bias.fill_(50.0)
        network[1][0][0].bias[:3] = -50.0
    assert score(rivals.dead_units, network) == -0.5


def test_saliencies_of_zero_weights_are_zero():
    assert score(rivals.snip, with_head(0.0)) == pytest.approx(math.log(1e-300))
    assert score(rivals.grad_norm, with_head(0.0)) > math.log(1e-300)


def test_synflow_grows_by_the_factor_of_a_layer_for_every_layer():
    before, after = (score(rivals.synflow, with_head(factor)) for factor in (1.0, 7.0))
    assert after - before == pytest.approx(math.log(7))


@pytest.mark.parametrize("function", [rivals.naswot, rivals.jacob_cov])
def test_counts_of_sides_do_not_depend_on_the_head(function):
    """Nor does a correlation of Jacobians on their common scale."""
    assert score(function, with_head(5.0)) == pytest.approx(score(function, model()))


def test_equal_samples_have_no_volume():
    x, y = batch()
    network = Untrained(model(), (x[:1].expand(N, -1), y))
    assert rivals.naswot(network) == pytest.approx(-1e4 / N)
    assert rivals.naswot(network) < score(rivals.naswot, model())


def test_zen_score_is_a_logarithm_of_outputs():
    before, after = (score(rivals.zen_score, with_head(factor)) for factor in (1.0, 3.0))
    assert after - before == pytest.approx(math.log(3))


def test_linear_networks_keep_correlations():
    """An orthogonal network maps every correlation to itself; a square head is orthogonal too."""
    network = nn.Sequential(nn.Identity(), model(3, act=nn.Identity)[1], nn.Identity()).double()
    assert score(rivals.slope_of_correlations, network) == pytest.approx(0, abs=1e-6)
    assert score(rivals.slope_of_correlations, model(3, act=nn.Tanh, gain=5.0)) < -0.1


def test_all_scores_are_finite_and_leave_the_network():
    network = model(norm=nn.BatchNorm1d).float()
    before = copy.deepcopy(network.state_dict())
    x, y = batch()
    found = scores(network, (x.float(), y))
    assert set(found) == set(SCORES)
    assert all(map(math.isfinite, found.values()))
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
