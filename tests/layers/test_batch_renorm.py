"""Batch renormalisation: the paper's algorithm, its two limits, and its stopped gradients."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from equipoise.layers import BatchRenorm1d, BatchRenorm2d, RenormSchedule
from support.layer_formulas import batch_renorm as as_printed

NO_LIMIT = RenormSchedule.constant(float("inf"), float("inf"))
BATCH_NORM = RenormSchedule.constant(1.0, 0.0)


def layer_of(schedule, make=BatchRenorm1d, **options):
    """A layer whose running statistics are not those of any batch."""
    layer = make(4, dtype=torch.float64, schedule=schedule, **options)
    layer.running_mean.copy_(torch.tensor([0.0, 0.5, -0.2, 3.0]))
    layer.running_var.copy_(torch.tensor([1.0, 0.5, 1.3, 9.0]))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += torch.linspace(-0.5, 0.5, 4).to(parameter)
    return layer


def inputs(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


class TestAlgorithm1:
    @pytest.mark.parametrize(("r_max", "d_max"), [(1.0, 0.0), (1.2, 0.3), (3.0, 5.0)])
    def test_against_the_printed_algorithm(self, r_max, d_max):
        layer = layer_of(RenormSchedule.constant(r_max, d_max), BatchRenorm2d, affine=False)
        x = inputs(3, 4, 2, 2)
        sigma = (layer.running_var + layer.eps).sqrt().tolist()
        expected = as_printed(
            x, layer.running_mean.tolist(), sigma, r_max=r_max, d_max=d_max, eps=layer.eps
        )
        assert_close(layer(x), expected, rtol=0, atol=1e-13)

    def test_limits_one_and_zero_are_batch_norm(self):
        layer, plain = layer_of(BATCH_NORM), nn.BatchNorm1d(4, dtype=torch.float64)
        plain.load_state_dict(layer.state_dict())
        assert_close(layer(inputs(8, 4)), plain(inputs(8, 4)), rtol=0, atol=1e-14)

    @pytest.mark.parametrize("limits", [(1.1, 0.0), (1.0, 0.1)])
    def test_other_limits_are_not(self, limits):
        y = layer_of(RenormSchedule.constant(*limits))(inputs(8, 4))
        assert (y - layer_of(BATCH_NORM)(inputs(8, 4))).abs().max() > 0.04

    def test_without_limits_training_is_evaluation(self):
        x = inputs(8, 4)
        evaluated = layer_of(NO_LIMIT).eval()(x)
        assert_close(layer_of(NO_LIMIT)(x), evaluated, rtol=0, atol=1e-13)

    def test_with_limits_it_is_not(self):
        x = inputs(8, 4)
        layer = layer_of(RenormSchedule.constant(1.5, 0.5))
        assert (layer(x) - layer_of(NO_LIMIT).eval()(x)).abs().max() > 0.1

    def test_statistics_are_read_before_they_are_updated(self):
        """After the update with momentum 1 they would be the batch's, and y batch norm's."""
        layer = layer_of(NO_LIMIT, momentum=1.0)
        x = inputs(8, 4)
        y = layer(x)
        assert_close(layer.running_mean, x.mean(0))
        assert_close(y, layer_of(NO_LIMIT).eval()(x), rtol=0, atol=1e-13)


def test_small_batches_estimate_the_right_deviation():
    """Averaging deviations, as printed, tends to σ/√π for pairs of Gaussian samples."""
    layer = BatchRenorm1d(4, momentum=None, dtype=torch.float64)
    pairs = inputs(2000, 2, 4)
    for pair in pairs:
        layer(pair)
    deviations = pairs.std(1, correction=0)  # [pair, C]
    found, printed = layer.running_var, deviations.mean(0)
    error = deviations.std(0) / len(pairs) ** 0.5
    assert ((printed - torch.pi**-0.5).abs() < 4 * error).all()
    error = pairs.var(1).std(0) / len(pairs) ** 0.5
    assert ((found - 1).abs() < 4 * error).all()


class TestGradient:
    def test_is_that_of_batch_norm_times_r(self):
        """Without limits: r dBN(x)/dx, although the output is (x - μ)/σ."""
        x, g = inputs(8, 4).requires_grad_(), inputs(8, 4, seed=1)
        layer = layer_of(NO_LIMIT, affine=False)
        r = ((x.var(0, correction=0) + layer.eps) / (layer.running_var + layer.eps)).sqrt()
        (found,) = torch.autograd.grad(layer(x), x, g)
        plain = nn.functional.batch_norm(x, None, None, training=True)
        (expected,) = torch.autograd.grad(plain, x, g * r.detach())
        assert_close(found, expected, rtol=0, atol=1e-13)

    def test_is_not_the_derivative_of_the_output_without_limits(self):
        """The twin of the contract's gradient check: there the limits bind, here they do not."""
        layer = layer_of(NO_LIMIT, momentum=0.0)
        x = inputs(8, 4).requires_grad_()
        assert not torch.autograd.gradcheck(layer, (x,), raise_exception=False)


class TestBatchSizeOne:
    def test_is_refused_without_positions(self):
        with pytest.raises(ValueError, match="a single value has no variance"):
            layer_of(NO_LIMIT)(inputs(1, 4))

    def test_works_with_positions(self):
        x = inputs(1, 4, 3)
        assert_close(layer_of(NO_LIMIT)(x), layer_of(NO_LIMIT).eval()(x), rtol=0, atol=1e-13)


class TestSchedule:
    def test_the_schedule_counts_batches(self):
        schedule = RenormSchedule(warmup=2, r_max=3.0, r_steps=4, d_max=5.0, d_steps=4)
        layer, plain = layer_of(schedule), layer_of(BATCH_NORM)
        agree = []
        for seed in range(4):
            x = inputs(8, 4, seed=seed)
            agree.append(torch.allclose(layer(x), plain(x), rtol=0, atol=1e-13))
        assert agree == [True, True, True, False]  # the first ramp starts from 1 and 0

    def test_continues_after_a_checkpoint(self):
        schedule = RenormSchedule(warmup=1, r_steps=3, d_steps=3)
        layer, resumed = layer_of(schedule), BatchRenorm1d(4, dtype=torch.float64)
        for seed in range(3):
            layer(inputs(8, 4, seed=seed))
        resumed.schedule = schedule
        resumed.load_state_dict(layer.state_dict())
        x = inputs(8, 4, seed=3)
        assert torch.equal(layer(x), resumed(x))

    def test_the_schedule_can_be_replaced(self):
        layer = layer_of(BATCH_NORM)
        layer.schedule = NO_LIMIT
        x = inputs(8, 4)
        assert_close(layer(x), layer_of(NO_LIMIT).eval()(x), rtol=0, atol=1e-13)

    def test_the_papers_numbers(self):
        steps = torch.tensor([0, 4999, 5000, 15000, 22500, 25000, 40000, 10**6])
        r_max, d_max = RenormSchedule().limits(steps)
        assert_close(r_max, torch.tensor([1, 1, 1, 11 / 7, 2, 15 / 7, 3, 3]))
        assert_close(d_max, torch.tensor([0, 0, 0, 2.5, 4.375, 5, 5, 5]))

    def test_infinite_limits_jump_at_the_end(self):
        schedule = RenormSchedule(1, float("inf"), 3, float("inf"), 2)
        r_max, d_max = schedule.limits(torch.arange(4))
        assert r_max.tolist() == [1, 1, 1, float("inf")]
        assert d_max.tolist() == [0, 0, float("inf"), float("inf")]

    @pytest.mark.parametrize(
        "options",
        [{"r_max": 0.9}, {"d_max": -1.0}, {"r_max": float("nan")}],
    )
    def test_limits_out_of_range(self, options):
        with pytest.raises(ValueError, match="r_max must be at least 1 and d_max at least 0"):
            RenormSchedule(**options)

    @pytest.mark.parametrize(
        "options", [{"warmup": -1}, {"warmup": 30_000}, {"r_steps": 10}, {"d_steps": 10}]
    )
    def test_steps_out_of_order(self, options):
        with pytest.raises(ValueError, match="need 0 <= warmup <= r_steps"):
            RenormSchedule(**options)


def test_small_batches_train_better_than_with_batch_norm():
    """With 2 samples batch norm's output depends only on which one is larger."""

    def error(schedule):
        # A ridge: the target depends on how far the one feature is from 0.
        layer = nn.Sequential(
            BatchRenorm1d(1, schedule=schedule, momentum=0.02, dtype=torch.float64), Square()
        )
        generator = torch.Generator().manual_seed(0)
        errors = []
        for _ in range(600):
            x = torch.randn(2, 1, generator=generator, dtype=torch.float64)
            errors.append((layer(x) - x.square()).square().mean())
        losses = torch.stack(errors[200:])
        return losses.mean().item(), losses.std().item() / len(losses) ** 0.5

    (renormalised, one), (normalised, other) = error(NO_LIMIT), error(BATCH_NORM)
    assert normalised - renormalised > 5 * (one**2 + other**2) ** 0.5


class Square(nn.Module):
    def forward(self, x):
        return x.square()


def test_one_compiled_graph_follows_a_schedule_at_any_batch_size():
    torch.compiler.reset()
    schedule = RenormSchedule(warmup=1, r_steps=4, d_steps=3)
    layer, twin = layer_of(schedule), layer_of(schedule)
    compiled = torch.compile(layer, backend="eager", fullgraph=True, dynamic=True)
    for samples in (6, 5, 8):
        x = inputs(samples, 4, seed=samples)
        assert_close(compiled(x), twin(x), rtol=0, atol=1e-14)
    torch.compiler.reset()
