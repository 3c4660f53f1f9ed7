"""ℓp normalisation: formula, gradients, and the effect of taking the size before the mean."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from equipoise.layers.lp_norm import LpNorm, lp_norm, lp_statistics
from reference.landscape_layers import average_size, lp_normalise
from support.cases import each

ORDERS = [1, 1.5, 2, 3, math.inf]
every_order = pytest.mark.parametrize("p", ORDERS)
both = pytest.mark.parametrize("centered", [False, True])


def random(*shape, seed=0):
    """Channels that differ in mean and scale."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    channel = torch.arange(1.0, shape[1] + 1).reshape(-1, *(1,) * (len(shape) - 2))
    return channel * (x + 0.5)


def normalise(x, p, *, eps=0.0, centered=False):
    return lp_norm(x, *lp_statistics(x, p, centered=centered), eps=eps)


@every_order
@both
class TestFormula:
    """Against the slow transcription."""

    def test_of_features(self, p, centered):
        x = random(9, 4)
        expected = lp_normalise(x.numpy(), p, eps=0.01, centered=centered)
        found = normalise(x, p, eps=0.01, centered=centered)
        assert_close(found, torch.from_numpy(expected), rtol=0, atol=1e-14)

    @each("shape", [(3, 4, 2), (3, 4, 2, 3), (2, 4, 2, 1, 3)])
    def test_positions_are_samples(self, p, centered, shape):
        x = random(*shape)
        as_features = x.transpose(0, 1).flatten(1).T
        found = normalise(x, p, centered=centered).transpose(0, 1).flatten(1).T
        assert_close(found, normalise(as_features, p, centered=centered), rtol=0, atol=1e-14)

    def test_of_the_layer(self, p, centered):
        layer = LpNorm(4, 0.01, p=p, centered=centered, dtype=torch.float64)
        nn.init.constant_(layer.weight, 2.0)
        nn.init.constant_(layer.bias, 3.0)
        x = random(6, 4, 2)
        expected = 2 * normalise(x, p, eps=0.01, centered=centered) + 3
        assert_close(layer(x), expected, rtol=0, atol=1e-14)


@every_order
@both
class TestGradients:
    def test_first_and_second_derivatives(self, p, centered):
        x = random(5, 2, 2).requires_grad_()

        def f(x):
            return normalise(x, p, eps=0.1, centered=centered)

        assert gradcheck(f, (x,))
        assert gradgradcheck(f, (x,), fast_mode=True)

    def test_gradients_are_orthogonal_to_the_input(self, p, centered):
        """Euler: the output has degree 0 in x."""
        x = random(6, 3).requires_grad_()
        direction = random(6, 3, seed=1)
        (g,) = torch.autograd.grad((normalise(x, p, centered=centered) * direction).sum(), x)
        assert (g * x).sum(0).abs().max() < 1e-14 * g.norm() * x.norm()

    def test_a_channel_of_zeros_is_safe(self, p, centered):
        """y = x / ε to first order, but for the mean: ∂y_i/∂x_k = (δ_ik - 1/m) / ε."""
        x = torch.zeros(4, 1, dtype=torch.float64, requires_grad=True)
        y = normalise(x, p, eps=1e-5, centered=centered)
        assert y.eq(0).all()
        (g,) = torch.autograd.grad(y[0], x)
        expected = torch.tensor([[0.75], [-0.25], [-0.25], [-0.25]], dtype=torch.float64) / 1e-5
        assert_close(g, expected, rtol=1e-12, atol=0)


def test_ties_share_the_gradient_of_the_largest():
    x = torch.tensor([[3.0], [-3.0], [1.0]], dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(lp_statistics(x, math.inf)[1], x)
    assert g.flatten().tolist() == [0.5, -0.5, 0.0]


class TestSizes:
    def test_sizes_grow_with_the_order(self):
        sizes = torch.stack([lp_statistics(random(50, 8), p)[1] for p in ORDERS])
        assert (sizes.diff(dim=0) > 0).all()

    def test_agree_where_all_values_have_one_size(self):
        x = torch.tensor([[2.0], [-2.0], [2.0]], dtype=torch.float64)
        for p in ORDERS:
            assert_close(lp_statistics(x, p)[1].item(), 2.0, rtol=1e-15, atol=0)

    @every_order
    def test_the_other_reading_differs_by_a_constant(self, p):
        """‖y‖_p / m is d_p / m^(1 - 1/p): the same for p = 1 alone."""
        y = random(7, 1).flatten()
        other = np.linalg.norm(y.numpy(), p) / 7
        ratio = average_size(y.tolist(), p) / other
        assert ratio == pytest.approx(7 ** (1 - 1 / p), rel=1e-14)
        assert (ratio == pytest.approx(1)) == (p == 1)


@every_order
@both
class TestInvariance:
    def test_under_scale(self, p, centered):
        x = random(20, 3)
        for scale in (4.0, 3.7, 1e-6):
            found = normalise(scale * x, p, centered=centered)
            assert_close(found, normalise(x, p, centered=centered), rtol=1e-12, atol=1e-13)

    def test_twin_not_with_an_epsilon(self, p, centered):
        x = random(20, 3)
        found = normalise(1e-6 * x, p, eps=1e-5, centered=centered)
        assert (found - normalise(x, p, eps=1e-5, centered=centered)).abs().max() > 0.1

    def test_under_shifts_only_if_centred(self, p, centered):
        x = random(20, 3)
        moved = normalise(x + 5, p, centered=centered)
        assert torch.allclose(moved, normalise(x, p, centered=centered)) == centered


def expected_deviation(p, mean, samples):
    """Of the output for x ~ N(mean, 1), up to terms in 1 / samples."""
    if p == 1:
        return 1 / stats.foldnorm.mean(mean)
    if p == 2:
        return 1 / math.sqrt(1 + mean**2)

    def at_most(t):
        return (special.ndtr(t - mean) - special.ndtr(-t - mean)) ** samples

    # E[1 / M] = ∫ P(M ≤ t) / t² dt; the probability is negligible below, and 1 above.
    low, high = mean + 0.5, mean + 9.0
    return integrate.quad(lambda t: at_most(t) / t**2, low, high, limit=200)[0] + 1 / high


def measured_deviations(mean, samples, **options):
    """Of 200 batches, each in a channel of its own."""
    x = torch.randn(samples, 200, generator=torch.Generator().manual_seed(1)).double() + mean
    layer = LpNorm(200, eps=0.0, affine=False, dtype=torch.float64, **options)
    return layer(x).std(0, correction=0)


class TestDeviations:
    """The output's size depends on the input's mean."""

    @pytest.mark.parametrize(
        ("p", "mean", "samples", "table"),
        [
            (1, 0, 20_000, 1.252),
            (1, 1, 20_000, 0.856),
            (1, 10, 20_000, 0.100),
            (2, 0, 20_000, 1.000),
            (2, 1, 20_000, 0.706),
            (2, 10, 20_000, 0.0995),
            (math.inf, 0, 20_000, 0.218),
            (math.inf, 1, 20_000, 0.213),
            (math.inf, 10, 20_000, 0.072),
            (math.inf, 0, 128, 0.34),
        ],
    )
    def test_of_a_gaussian_channel(self, p, mean, samples, table):
        found = measured_deviations(mean, samples, p=p)
        expected = expected_deviation(p, mean, samples)
        standard_error = found.std() / math.sqrt(len(found))
        assert abs(found.mean() - expected) < 3 * standard_error + 1 / samples
        # The table is of one batch each, rounded.
        assert abs(table - expected) < 3 * found.std() + 5e-4 + 1 / samples

    @pytest.mark.parametrize(("p", "expected"), [(1, math.sqrt(math.pi / 2)), (2, 1.0)])
    @pytest.mark.parametrize("mean", [0, 1, 10])
    def test_twin_centred_it_does_not(self, p, expected, mean):
        found = measured_deviations(mean, 20_000, p=p, centered=True)
        standard_error = found.std() / math.sqrt(len(found))
        assert abs(found.mean() - expected) < 3 * standard_error + 1 / 20_000

    def test_centred_2_is_batch_norm(self):
        layer = LpNorm(4, 1e-12, p=2, centered=True).double()
        x = random(9, 4, 3)
        assert_close(layer(x), nn.BatchNorm1d(4, 1e-24).double()(x), rtol=0, atol=1e-10)


class TestRunningStatistics:
    def train(self, steps=4, **options):
        layer = LpNorm(3, p=1, dtype=torch.float64, **options)
        batches = [random(8, 3, seed=s) for s in range(steps)]
        for x in batches:
            layer(x)
        means, sizes = zip(*(lp_statistics(x, 1) for x in batches), strict=True)
        return layer, torch.stack(means), torch.stack(sizes)

    def test_a_new_layer_evaluates_as_the_identity(self):
        layer, x = LpNorm(3, 0.0, p=2).eval(), torch.randn(5, 3)
        assert torch.equal(layer(x), x)

    def test_running_statistics_move_towards_each_batch(self):
        layer, means, sizes = self.train(momentum=0.25)
        weights = 0.25 * 0.75 ** torch.arange(3, -1, -1, dtype=torch.float64)
        assert_close(layer.running_mean, weights @ means, rtol=1e-14, atol=0)
        assert_close(layer.running_size, weights @ sizes + 0.75**4, rtol=1e-14, atol=0)
        assert layer.num_batches_tracked == 4

    def test_without_momentum_average_all_batches(self):
        layer, means, sizes = self.train(momentum=None)
        assert_close(layer.running_mean, means.mean(0), rtol=1e-14, atol=1e-15)
        assert_close(layer.running_size, sizes.mean(0), rtol=1e-14, atol=0)

    def test_evaluation_uses_the_running_statistics(self):
        layer, x = self.train()[0].eval(), random(5, 3, seed=9)
        expected = (x - layer.running_mean) / (layer.running_size + 1e-5)
        assert_close(layer(x), expected, rtol=1e-13, atol=0)

    def test_without_running_statistics_evaluation_uses_its_batch(self):
        layer, x = LpNorm(3, p=1, track_running_stats=False), torch.randn(6, 3)
        assert layer.state_dict().keys() == {"weight", "bias"}
        assert torch.equal(layer.eval()(x), layer.train()(x))

    def test_running_statistics_can_be_reset(self):
        layer, _, _ = self.train()
        layer.reset_running_stats()
        assert_close(layer.state_dict(), LpNorm(3, p=1).double().state_dict(), rtol=0, atol=0)

    def test_names_in_checkpoints(self):
        names = {"running_mean", "running_size", "num_batches_tracked"}
        assert LpNorm(3, p=1).state_dict().keys() == {"weight", "bias"} | names

    def test_a_checkpoint_of_batch_norm_is_refused(self):
        """A variance is not an ℓp size."""
        with pytest.raises(RuntimeError, match="running_size"):
            LpNorm(3, p=2).load_state_dict(nn.BatchNorm1d(3).state_dict())


class TestErrors:
    @each("p", [0, 0.5, -1, math.nan, "2", None])
    def test_orders_below_1(self, p):
        with pytest.raises(ValueError, match=r"p must be a number in \[1, inf\].*got"):
            LpNorm(3, p=p)

    def test_the_order_must_be_named(self):
        """The second positional argument is ε, as for batch norm."""
        with pytest.raises(TypeError, match="required keyword-only argument: 'p'"):
            LpNorm(3, 1)

    @pytest.mark.parametrize("training", [True, False])
    def test_one_value_without_statistics_of_others(self, training):
        layer = LpNorm(3, p=1, track_running_stats=False).train(training)
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            layer(torch.ones(1, 3))

    def test_no_values(self):
        layer = LpNorm(3, p=math.inf)
        with pytest.raises(ValueError, match=r"values to measure.*\(0, 3\).*Skip empty batches"):
            layer(torch.ones(0, 3))
        assert layer.num_batches_tracked == 0
        assert layer.eval()(torch.ones(0, 3)).shape == (0, 3)

    @pytest.mark.parametrize("shape", [(3,), (2, 4), (3, 2, 3)])
    def test_other_shapes(self, shape):
        with pytest.raises(ValueError, match="at least 2D input with 3 channels in dimension 1"):
            LpNorm(3, p=1)(torch.ones(shape))
