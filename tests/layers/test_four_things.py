"""Batch norm with four things: special cases, and the authors' formulas."""

import itertools

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from equipoise.layers import (
    FourThingsBatchNorm1d,
    FourThingsBatchNorm2d,
    GhostBatchNorm2d,
    convert,
    gamma_beta_penalty,
)
from support.layer_formulas import inference_example_weighing, normalise_cells

EPS = 1e-5


def inputs(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x * (1 + torch.arange(6, dtype=torch.float64).reshape(-1, *[1] * (x.ndim - 2)))


def four(make=FourThingsBatchNorm2d, **options):
    return make(6, dtype=torch.float64, **options)


class TestTraining:
    @pytest.mark.parametrize(("groups", "size"), [(1, 1), (2, 2), (3, 4), (6, 2), (2, None)])
    def test_against_the_definition(self, groups, size):
        """Cells of consecutive samples and channels; 5 samples leave a remainder."""
        x = inputs(5, 6, 2, 2)
        step, width = size or 5, 6 // groups
        samples = [range(i, min(i + step, 5)) for i in range(0, 5, step)]
        channels = [range(c, c + width) for c in range(0, 6, width)]
        expected = normalise_cells(x, itertools.product(samples, channels), EPS)
        y = four(groups=groups, virtual_batch_size=size, affine=False)(x)
        assert_close(y, expected, rtol=0, atol=1e-12)

    def test_one_sample_is_group_norm(self):
        x = inputs(5, 6, 2, 2)
        expected = nn.functional.group_norm(x, 2)
        assert_close(four(groups=2, virtual_batch_size=1)(x), expected, rtol=0, atol=1e-13)

    def test_single_channels_are_ghost_batch_norm(self):
        x, ghost = (
            inputs(5, 6, 2, 2),
            GhostBatchNorm2d(6, virtual_batch_size=2, dtype=torch.float64),
        )
        assert_close(four(virtual_batch_size=2)(x), ghost(x), rtol=0, atol=1e-13)

    def test_both_together_are_neither(self):
        x = inputs(5, 6, 2, 2)
        y = four(groups=2, virtual_batch_size=2)(x)
        assert (y - nn.functional.group_norm(x, 2)).abs().max() > 0.1
        assert (y - four(virtual_batch_size=2)(x)).abs().max() > 0.1

    def test_the_example_weight_has_no_effect(self):
        x = inputs(5, 6, 2, 2)
        assert torch.equal(four(example_weight=0.7)(x), four()(x))

    def test_groups_normalise_one_sample_without_positions(self):
        y = four(FourThingsBatchNorm1d, groups=2)(inputs(1, 6))
        assert_close(y.reshape(2, 3).mean(1), torch.zeros(2).double(), rtol=0, atol=1e-15)

    def test_batch_size_one_without_positions_needs_groups(self):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            four(FourThingsBatchNorm1d)(inputs(1, 6))


class TestRunningStatistics:
    @pytest.mark.parametrize("momentum", [0.1, None])
    def test_running_statistics_average_the_moments(self, momentum):
        """The authors' program averages E[x] and E[x²] from 0 and 1."""
        layer = four(momentum=momentum)
        first, second = torch.zeros(6).double(), torch.ones(6).double()
        for step in range(1, 6):
            x = inputs(3, 6, 2, 2, seed=step)
            layer(x)
            a = 1 / step if momentum is None else momentum
            first = (1 - a) * first + a * x.mean((0, 2, 3))
            second = (1 - a) * second + a * x.square().mean((0, 2, 3))
        assert_close(layer.running_mean, first, rtol=0, atol=1e-13)
        assert_close(layer.running_var, second - first.square(), rtol=0, atol=1e-12)

    def test_running_statistics_are_right_for_single_samples(self):
        layer = four(FourThingsBatchNorm1d, groups=2, momentum=None)
        x = inputs(64, 6)
        for sample in x:
            layer(sample[None])
        assert_close(layer.running_var, x.var(0, correction=0), rtol=0, atol=1e-12)

    def test_batch_norms_are_wrong_for_pairs_of_equal_samples(self):
        """The variance within a pair of equal samples is 0."""
        layer = nn.BatchNorm1d(6, momentum=None, dtype=torch.float64)
        for sample in inputs(64, 6):
            layer(sample.expand(2, 6))
        assert layer.running_var.max() < 1e-20


class TestInferenceExampleWeighing:
    @pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
    @pytest.mark.parametrize("groups", [1, 2, 6])
    def test_against_the_authors_program(self, groups, alpha):
        layer = four(groups=groups, example_weight=alpha, affine=False)
        layer(inputs(5, 6, 2, 2))
        x = inputs(3, 6, 2, 2, seed=1)
        m_x = layer.running_mean
        m_x2 = layer.running_var + m_x.square()
        expected = inference_example_weighing(x, m_x, m_x2, groups, alpha=alpha, eps=EPS)
        assert_close(layer.eval()(x), expected, rtol=0, atol=1e-12)

    def test_all_weight_on_the_example_is_group_norm(self):
        x = inputs(3, 6, 2, 2)
        y = four(groups=2, example_weight=1.0).eval()(x)
        assert_close(y, nn.functional.group_norm(x, 2), rtol=0, atol=1e-13)

    def test_bounds_an_outlier_as_training_does(self):
        """The paper's reason: with α = 1/B no output exceeds √(B - 1), as in a batch of B."""
        layer = four(FourThingsBatchNorm1d, affine=False)
        x = inputs(4, 6)
        x[0] *= 1000
        bound = 3**0.5 + 1e-12
        assert layer(x).abs().max() <= bound
        layer.eval().example_weight = 1 / 4
        assert layer(1000 * x).abs().max() <= bound
        layer.example_weight = 0.0
        assert layer(1000 * x).abs().max() > 10 * bound

    def test_large_means_lose_no_digits(self):
        """A difference of squares would: its variance is off by 1e-2 here."""
        layer = four(groups=2, example_weight=0.5, affine=False)
        layer(inputs(5, 6, 2, 2))
        x, shift = inputs(3, 6, 2, 2, seed=1), 1e7
        expected = layer.eval()(x)
        layer.running_mean += shift
        assert_close(layer(x + shift), expected, rtol=0, atol=1e-6)

    def test_the_example_weight_can_be_set_after_training(self):
        layer, x = four().eval(), inputs(3, 6, 2, 2)
        before = layer(x)
        layer.example_weight = 0.5
        assert not torch.equal(layer(x), before)


class TestPenalty:
    def model(self):
        return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.LayerNorm(6), nn.ReLU())

    def test_is_half_the_squared_distance_from_the_start(self):
        model = self.model()
        gamma, beta = model[1].weight, model[1].bias
        with torch.no_grad():
            gamma.copy_(torch.arange(6.0))
            beta.copy_(torch.arange(6.0) - 2)
        expected = 0.1 / 2 * ((torch.arange(6.0) - 1).square().sum() + beta.square().sum())
        penalty = gamma_beta_penalty(model, 0.1)
        assert_close(penalty, expected.detach(), check_stride=False)
        penalty.backward()
        assert_close(gamma.grad, 0.1 * (gamma.detach() - 1))
        assert_close(beta.grad, 0.1 * beta.detach())
        assert model[0].weight.grad is None

    def test_an_optimizers_decay_pulls_gamma_to_zero(self):
        """The twin: with the penalty γ = 1 stays."""
        for decay, expected in ((0.1, 0.99), (0.0, 1.0)):
            layer = nn.BatchNorm1d(6)
            optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, weight_decay=decay)
            gamma_beta_penalty(layer, 0.1).backward()
            optimizer.step()
            assert_close(layer.weight.detach(), torch.full((6,), expected))

    def test_counts_shared_parameters_once_and_leaves_out_frozen_ones(self):
        model = self.model()
        model[2].weight = model[1].weight
        model[2].bias.requires_grad_(False)
        nn.init.constant_(model[1].weight, 3.0)
        gamma_beta_penalty(model, 0.1).backward()
        assert_close(model[1].weight.grad, torch.full((6,), 0.2))
        assert model[2].bias.grad is None

    def test_every_normaliser_counts(self):
        model = nn.Sequential(
            nn.GroupNorm(2, 6), nn.RMSNorm(6), nn.InstanceNorm1d(6, affine=True), four()
        )
        gamma_beta_penalty(model, 0.1).backward()
        assert [p.grad is not None for p in model.parameters()] == 7 * [True]

    def test_without_normalisers_it_is_zero(self):
        assert gamma_beta_penalty(nn.Linear(2, 2), 0.1) == 0

    def test_refuses_a_negative_decay(self):
        with pytest.raises(ValueError, match="weight_decay must be a number in"):
            gamma_beta_penalty(self.model(), -0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 4}, "groups must divide the channels; got 4 groups for 6 channels"),
        ({"groups": 0}, "groups must be a whole number of at least 1"),
        ({"virtual_batch_size": 0}, "virtual_batch_size must be a whole number of at least 1"),
        ({"example_weight": 1.1}, r"example_weight must be a number in \[0, 1\]; got 1.1"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        four(**options)


def test_synchronisation_leaves_it_alone():
    model = nn.Sequential(four(groups=2))
    assert nn.SyncBatchNorm.convert_sync_batchnorm(model)[0] is model[0]
    assert convert(model, "four_things", "four_things", groups=3).model[0].groups == 3
