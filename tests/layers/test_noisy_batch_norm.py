"""Algorithm 1: its moments in closed form, its distributions, and where there is no noise."""

import copy
import math
import pickle
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from equipoise.layers import NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d
from equipoise.layers.noisy_batch_norm import ActivationNoise
from reference.landscape_layers import algorithm_1

N_MU, N_SIGMA, R_MU, R_SIGMA = 0.5, 1.25, 0.1, 0.1
LAYERS = {
    NoisyBatchNorm1d: (nn.BatchNorm1d, (12, 4)),
    NoisyBatchNorm2d: (nn.BatchNorm2d, (6, 4, 3, 2)),
    NoisyBatchNorm3d: (nn.BatchNorm3d, (3, 4, 2, 2, 2)),
}
QUIET = {"mean_limit": 0.0, "scale_limit": 1.0, "mean_spread": 0.0, "scale_spread": 0.0}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random(*shape, seed=0):
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def standard_errors(samples, expected):
    """How many standard errors the samples' mean lies from what is expected of it."""
    return abs(samples.mean() - expected) / (samples.std() / math.sqrt(len(samples)))


def expected_variance(r_sigma_squared):
    """Of a batch after the noise, for a large batch of unit variance."""
    return (1 + N_SIGMA + N_SIGMA**2) / 3 + r_sigma_squared + R_MU**2 / 3


SAMPLES = 400


@cache
def moments():
    """Mean and variance after the noise of batches of unit variance, 40 times 500 channels."""
    noisy = NoisyBatchNorm1d(500, eps=1e-12, generator=generator(), dtype=torch.float64)
    batches = [noisy(random(SAMPLES, 500, seed=t)).detach() for t in range(40)]
    means = torch.cat([y.mean(0) for y in batches])
    return means, torch.cat([y.var(0, correction=0) for y in batches])


class TestMoments:
    # Variance of the average of so many samples within a channel.
    WITHIN = (R_MU**2 / 3 + R_SIGMA**2) / SAMPLES

    def test_the_mean_is_0_on_average(self):
        assert standard_errors(moments()[0], 0) < 3

    def test_the_mean_varies_by_a_twelfth(self):
        expected = N_MU**2 / 3
        assert expected == pytest.approx(1 / 12)
        assert standard_errors(moments()[0].square(), expected + self.WITHIN) < 3

    def test_the_variance_is_1_2842_on_average(self):
        expected = expected_variance(R_SIGMA**2)
        assert expected == pytest.approx(1.2842, abs=5e-5)
        assert standard_errors(moments()[1], expected - self.WITHIN) < 3

    def test_twin_not_1_374_as_if_the_spread_were_a_variance(self):
        wrong = expected_variance(R_SIGMA)
        assert wrong == pytest.approx(1.374, abs=5e-4)
        assert standard_errors(moments()[1], wrong) > 50

    def test_twin_plain_batch_norm_does_not_vary(self):
        y = nn.BatchNorm1d(500, dtype=torch.float64)(random(SAMPLES, 500))
        assert y.mean(0).abs().max() < 1e-12
        assert (y.var(0, correction=0) - 1).abs().max() < 1e-4


@cache
def shifts():
    """The noise of zeros; noise is linear in the activations."""
    zeros = torch.zeros(2000, 30, 3).double()
    return ActivationNoise(generator=generator())(zeros)


@cache
def factors():
    """The factors of the same noise."""
    ones = torch.ones(2000, 30, 3).double()
    return ActivationNoise(generator=generator())(ones) - shifts()


def around_channels_mean(x):
    return x - x.mean((0, 2), keepdim=True)


class TestDistributions:
    def test_shifts_stay_within_their_limits(self):
        assert shifts().mean((0, 2)).abs().max() < N_MU + 0.01
        assert around_channels_mean(shifts()).abs().max() < R_MU + 0.01

    def test_shifts_are_uniform_about_their_channels_mean(self):
        """E[x⁴] / E[x²]² of a uniform number is 9/5, of a normal one 3."""
        x = around_channels_mean(shifts()).flatten()
        assert standard_errors(x.square(), R_MU**2 / 3) < 3
        assert standard_errors(x.pow(4), R_MU**4 / 5) < 3

    def test_factors_are_normal_about_their_channels_scale(self):
        x = around_channels_mean(factors()).flatten()
        assert standard_errors(x.square(), R_SIGMA**2) < 3
        assert standard_errors(x.pow(4), 3 * R_SIGMA**4) < 3

    def test_scales_are_uniform_between_1_and_their_limit(self):
        noise = {"mean_limit": 0.0, "mean_spread": 0.0, "scale_spread": 0.0}
        a = torch.ones(2, 20_000).double()
        scales = ActivationNoise(generator=generator(), **noise)(a)
        assert torch.equal(scales[0], scales[1])
        assert scales.min() >= 1
        assert scales.max() <= N_SIGMA
        assert standard_errors(scales[0], (1 + N_SIGMA) / 2) < 3
        assert standard_errors((scales[0] - 1.125).square(), (N_SIGMA - 1) ** 2 / 12) < 3

    @pytest.mark.parametrize("noise", [shifts, factors])
    def test_samples_positions_and_channels_are_independent(self, noise):
        """Within a channel they share only its mean."""
        x = around_channels_mean(noise())
        for pairs in (x[1:] * x[:-1], x[..., 1:] * x[..., :-1], x[:, 1:] * x[:, :-1]):
            assert standard_errors(pairs.flatten(), 0) < 3

    def test_every_pass_draws_anew(self):
        layer, x = NoisyBatchNorm1d(4), torch.randn(6, 4)
        assert not (layer(x) == layer(x)).any()


class TestAlgorithm1:
    """The slow transcription with the fast routine's random numbers."""

    @pytest.mark.parametrize("constants", [{}, {"n_mu": 2, "n_sigma": 3, "r_mu": 1, "r_sigma": 2}])
    def test_same_draws_same_output(self, constants):
        names = {"n_mu": "mean_limit", "n_sigma": "scale_limit"}
        names |= {"r_mu": "mean_spread", "r_sigma": "scale_spread"}
        a, g = random(7, 5), generator(3)
        first = torch.rand(2, 5, generator=g)
        numbers = {"mu": first[0], "sigma": first[1]}
        numbers["m"] = torch.rand(7, 5, generator=g)
        numbers["s"] = torch.randn(7, 5, generator=g)

        def uniform(low, high, place):
            return low + (high - low) * numbers[place[0]][place[1:]].item()

        def normal(mean, deviation, place):
            return mean + deviation * numbers[place[0]][place[1:]].item()

        expected = algorithm_1(a.numpy(), uniform, normal, **constants)
        options = {names[name]: value for name, value in constants.items()}
        found = ActivationNoise(generator=generator(3), **options)(a)
        assert_close(found, torch.from_numpy(expected), rtol=1e-6, atol=1e-6)  # single precision

    def test_other_draws_have_the_same_distribution(self):
        """Sorted outputs of both, compared as two samples of one distribution."""
        g = np.random.default_rng(0)
        a = np.ones((1, 4000))
        slow = algorithm_1(a, lambda *u: g.uniform(*u[:2]), lambda *n: g.normal(*n[:2]))
        fast = ActivationNoise(generator=generator(1))(torch.from_numpy(a)).numpy()
        slow, fast = np.sort(slow[0]), np.sort(fast[0])
        grid = np.linspace(0.4, 1.9, 200)
        distance = np.abs(
            np.searchsorted(slow, grid) / 4000 - np.searchsorted(fast, grid) / 4000
        ).max()
        assert distance < 1.63 * math.sqrt(2 / 4000)  # Kolmogorov and Smirnov, 1 %


@pytest.mark.parametrize("make", LAYERS)
class TestBatchNorm:
    def test_without_noise_it_is_batch_norm(self, make):
        plain, shape = LAYERS[make]
        assert torch.equal(make(4, **QUIET)(torch.ones(shape)), plain(4)(torch.ones(shape)))
        x = random(*shape).float()
        assert torch.equal(make(4, **QUIET)(x), plain(4)(x))

    def test_evaluation_and_state_are_batch_norms(self, make):
        kind, shape = LAYERS[make]
        layer, plain = make(4), kind(4)
        for seed in range(3):
            x = random(*shape, seed=seed).float()
            layer(x), plain(x)
        assert_close(layer.state_dict(), plain.state_dict(), rtol=0, atol=0)
        x = random(*shape, seed=9).float()
        assert torch.equal(layer.eval()(x), plain.eval()(x))

    def test_the_noise_follows_gamma_and_beta(self, make):
        _, shape = LAYERS[make]
        layer = make(4, mean_spread=0.0, scale_spread=0.0, scale_limit=1.0).double()
        nn.init.zeros_(layer.weight)
        nn.init.constant_(layer.bias, 7.0)
        y = layer(random(*shape)).transpose(0, 1).flatten(1)
        assert (y == y[:, :1]).all()
        assert ((y - 7).abs() <= N_MU).all()

    def test_gradients_pass_through_the_factors(self, make):
        """The noise is a constant: ∂y/∂β is the factor s."""
        _, shape = LAYERS[make]
        layer = make(4, generator=generator(5), dtype=torch.float64)
        layer(random(*shape)).sum().backward()
        of_ones, of_zeros = (
            ActivationNoise(generator=generator(5))(torch.full(shape, v).double())
            for v in (1.0, 0.0)
        )
        expected = (of_ones - of_zeros).transpose(0, 1).flatten(1).sum(1)
        assert_close(layer.bias.grad, expected, rtol=0, atol=1e-12)


class TestActivationNoise:
    """The same noise for networks without batch norm."""

    def test_same_seed_same_noise_as_noisy_batch_norm(self):
        x = torch.randn(6, 4, 3)
        noisy = NoisyBatchNorm1d(4, generator=generator())(x)
        alone = ActivationNoise(generator=generator())(nn.BatchNorm1d(4)(x))
        assert torch.equal(noisy, alone)

    @pytest.mark.parametrize("shape", [(6, 4), (6, 4, 3), (6, 4, 3, 2), (3, 4, 2, 2, 2)])
    def test_any_positions_and_none_in_evaluation(self, shape):
        noise, x = ActivationNoise(), torch.randn(shape)
        assert noise(x).shape == shape
        assert not torch.equal(noise(x), x)
        assert noise.eval()(x) is x

    def test_has_no_state(self):
        assert ActivationNoise().state_dict() == {}

    def test_representation(self):
        shown = repr(ActivationNoise(mean_limit=1, scale_spread=0))
        constants = "mean_limit=1, scale_limit=1.25, mean_spread=0.1, scale_spread=0"
        assert shown == f"ActivationNoise({constants})"


class TestSources:
    def test_the_global_source_by_default_as_for_dropout(self):
        noise, x = ActivationNoise(), torch.zeros(5, 3)
        state = torch.get_rng_state()
        first = noise(x)
        torch.set_rng_state(state)
        assert torch.equal(noise(x), first)

    def test_a_generator_leaves_the_global_source_alone(self):
        state = torch.get_rng_state()
        ActivationNoise(generator=generator())(torch.zeros(5, 3))
        assert torch.equal(torch.get_rng_state(), state)

    def test_copies_have_a_generator_of_their_own(self):
        layer, x = NoisyBatchNorm1d(3, generator=generator()), torch.randn(5, 3)
        twins = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))
        expected = [layer(x) for _ in range(2)]
        for twin in twins:
            assert_close([twin(x) for _ in range(2)], expected, rtol=0, atol=0)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_one_seed_is_one_noise_for_every_type(self, dtype):
        noise = ActivationNoise(generator=generator(2))
        expected = ActivationNoise(generator=generator(2))(torch.zeros(50, 3))
        assert torch.equal(noise(torch.zeros(50, 3, dtype=dtype)), expected.to(dtype))

    def test_one_seed_is_one_noise_for_every_layout(self):
        x = torch.randn(4, 3, 5, 5)
        one, other = (ActivationNoise(generator=generator(2)) for _ in range(2))
        assert torch.equal(other(x.to(memory_format=torch.channels_last)), one(x))


class TestErrors:
    @pytest.mark.parametrize("make", [ActivationNoise, lambda **k: NoisyBatchNorm2d(3, **k)])
    @pytest.mark.parametrize(
        ("constant", "message"),
        [
            ({"mean_limit": -0.1}, r"mean_limit must be a number in \[0, inf\); got -0.1"),
            ({"scale_limit": 0.9}, r"scale_limit must be a number in \[1, inf\); got 0.9"),
            ({"mean_spread": math.inf}, "mean_spread must be a number in .*got inf"),
            ({"scale_spread": math.nan}, "scale_spread must be a number in .*got nan"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_constants_out_of_range(self, make, constant, message):
        with pytest.raises(ValueError, match=message):
            make(**constant)

    def test_no_channels(self):
        with pytest.raises(ValueError, match=r"at least 2D input .*got 1D input.*Add a dimension"):
            ActivationNoise()(torch.zeros(3))

    def test_whole_numbers(self):
        with pytest.raises(TypeError, match=r"floating type; got torch\.int64"):
            ActivationNoise()(torch.zeros(3, 3, dtype=torch.int64))
