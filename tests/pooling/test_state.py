"""The contract of every head as a module: state, randomness, types, copies."""

import copy
import io
import math

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.testing import assert_close

from support.cases import each
from support.pooling_family import CHANNELS, FAMILY, both_ways, build, every, every_reducible, maps

DRAWN = {name: member for name, member in FAMILY.items() if member.drawn}
every_drawn = each("member", DRAWN.values(), ids=DRAWN)
RESAMPLED = {
    name: member
    for name, member in DRAWN.items()
    if "run.start_vector" in member.drawn and "start" not in member.options
}
every_resampled = each("member", RESAMPLED.values(), ids=RESAMPLED)
SHOWN = {
    *("vector", "preserve_inner_products", "iterations", "prenormalise", "exponent"),
    *("relative_cutoff", "eps", "method", "route", "eta", "num_steps"),
}
HALVES = (torch.float16, torch.bfloat16)


def state(head):
    return {name: value.clone() for name, value in head.state_dict().items()}


@every
class TestRandomness:
    @each("training", [False, True])
    def test_the_global_generator_is_left_alone(self, member, training):
        before = torch.get_rng_state()
        head = build(member).train(training)
        head(maps())
        assert torch.equal(torch.get_rng_state(), before)

    def test_two_evaluations_are_bit_identical_and_leave_the_state_alone(self, member):
        head, x = build(member, dtype=torch.float32), maps(dtype=torch.float32)
        before = state(head)
        first = head(x)
        torch.rand(3)
        assert torch.equal(head(x), first)
        assert_close(state(head), before, rtol=0, atol=0)

    def test_the_same_seed_is_the_same_head(self, member):
        x = maps()
        expected = build(member, seed=3)(x)
        assert torch.equal(build(member, seed=3)(x), expected)
        generator = torch.Generator().manual_seed(3)
        assert torch.equal(build(member, generator=generator)(x), expected)

    def test_its_buffers_are_what_is_drawn(self, member):
        one, other = build(member, seed=1).state_dict(), build(member, seed=2).state_dict()
        assert {name for name in one if not torch.equal(one[name], other[name])} == set(
            member.drawn
        )


@every_reducible
class TestReduction:
    def test_weights_come_from_the_seed_too(self, member):
        before = torch.get_rng_state()
        one, twin, other = (build(member, reduction=2, seed=seed) for seed in (1, 1, 2))
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(one.reduction.conv.weight, twin.reduction.conv.weight)
        assert not torch.equal(one.reduction.conv.weight, other.reduction.conv.weight)

    def test_weights_have_pytorchs_distribution(self, member):
        """Uniform in ±1/√fan-in: variance 1/(3 fan-in), checked in standard errors."""
        head = member.kind(400, **{**member.options, "reduction": 50})
        weight = head.reduction.conv.weight.detach().double()
        assert weight.abs().max() <= 1 / math.sqrt(400)
        squares = 3 * 400 * weight.square()  # mean 1, variance 4/5
        error = math.sqrt(0.8 / squares.numel())
        assert abs(squares.mean() - 1) < 4 * error

    def test_training_moves_running_statistics_only(self, member):
        head = build(member, reduction=2).train()
        before = state(head)
        head(maps())
        moved = {
            name for name, value in state(head).items() if not torch.equal(value, before[name])
        }
        names = ("running_mean", "running_var", "num_batches_tracked")
        assert moved == {f"reduction.norm.{name}" for name in names}


@every_drawn
class TestCheckpoints:
    def test_another_seed_is_another_head(self, member):
        x = maps()
        difference = build(member, seed=1)(x) - build(member, seed=2)(x)
        # After two steps from the mean the Gaussian fallback has no effect.
        assert bool(difference.any()) == (member.options.get("start") != "mean")

    def test_a_checkpoint_carries_what_was_drawn(self, member):
        x, head = maps(), build(member, seed=1)
        other = build(member, seed=2)
        other.load_state_dict(head.state_dict())
        assert torch.equal(other(x), head(x))


@every
class TestCopies:
    def test_deepcopy(self, member):
        head, x = build(member), maps()
        expected = head(x)
        twin = copy.deepcopy(head)
        for buffer in twin.buffers():
            buffer.zero_()
        assert torch.equal(head(x), expected)
        assert torch.equal(copy.deepcopy(head)(x), expected)

    def test_whole_modules_are_saved(self, member):
        head, x, file = build(member), maps(), io.BytesIO()
        torch.save(head, file)
        file.seek(0)
        assert torch.equal(torch.load(file, weights_only=False)(x), head(x))

    def test_repr_shows_the_options(self, member):
        shown = repr(build(member, centred=True, reduction=None))
        given = {name: member.options[name] for name in SHOWN & member.options.keys()}
        assert all(f"{name}={value!r}" in shown for name, value in given.items())
        assert f"output_dim={build(member).output_dim}" in shown
        assert "centred=True" in shown


@each("assign", [False, True])
@every_reducible
def test_made_without_memory_and_filled_later(member, assign):
    head = build(member, dtype=torch.float32)
    with torch.device("meta"):
        filled = member.kind(CHANNELS, **member.options)
    assert {tensor.device.type for tensor in filled.state_dict().values()} <= {"meta"}
    if not assign:
        filled.to_empty(device="cpu")
    filled.load_state_dict(head.state_dict(), assign=assign)
    x = maps(dtype=torch.float32)
    assert torch.equal(filled.eval()(x), head(x))
    assert {tensor.device.type for tensor in filled.buffers()} <= {"cpu"}


@every_reducible
def test_shapes_can_be_found_without_memory(member):
    with FakeTensorMode():
        head = member.kind(CHANNELS, reduction=3, **member.options)
        assert head(maps(dtype=torch.float32)).shape == (len(maps()), head.output_dim)


@every
class TestTypes:
    @each("dtype", [*HALVES, torch.float32, torch.float64])
    def test_the_output_has_the_type_of_the_maps(self, member, dtype):
        y, gradient = both_ways(build(member, dtype=torch.float32), maps(dtype=dtype))
        assert y.dtype == gradient.dtype == dtype
        assert y.isfinite().all()
        assert gradient.isfinite().all()

    @each("dtype", HALVES)
    def test_half_precision_rounds_once(self, member, dtype):
        """Only the input and the output are rounded; everything between is in float32."""
        head, x = build(member, dtype=torch.float32), maps(dtype=dtype)
        assert torch.equal(head(x), head(x.float()).to(dtype))

    @each("dtype", HALVES)
    def test_heads_can_be_in_half_precision(self, member, dtype):
        """Starts lose digits, which K steps repair; hashes and signs lose nothing."""
        head, x = build(member, dtype=torch.float32), maps(dtype=dtype)
        half = copy.deepcopy(head).to(dtype)
        assert all(torch.equal(value, value.float()) for value in half.buffers() if value.ndim > 1)
        assert_close(half(x), head(x), rtol=0.02, atol=0.02)

    def test_float64_maps_meet_a_float32_head(self, member):
        """The head's buffers are used as float64 there, and none was rounded before."""
        x = maps()
        assert_close(build(member, dtype=torch.float32)(x), build(member)(x), rtol=0, atol=1e-14)

    @each("dtype", HALVES)
    def test_large_half_features_do_not_overflow(self, member, dtype):
        """float16 ends at 65504, the square of 256."""
        head, x = build(member, dtype=torch.float32, unit_norm=True), 1000 * maps(dtype=dtype)
        assert head(x).isfinite().all()

    def test_autocast_changes_nothing(self, member):
        head, x = build(member, dtype=torch.float32), maps(dtype=torch.float32).requires_grad_()
        expected = head(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = head(x)
        assert torch.equal(found, expected)
        slopes = [torch.autograd.grad(y.square().sum() + y.sum(), x)[0] for y in (found, expected)]
        assert torch.equal(*slopes)


@every_reducible
@each("training", [False, True])
def test_autocast_reaches_the_reduction(member, training):
    head = build(member, dtype=torch.float32, reduction=3).train(training)
    x = maps(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = head(x)
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16
    assert_close(y.float(), head(x), rtol=0.1, atol=0.1)
    assert head.reduction.conv.weight.grad.dtype == torch.float32


@every_resampled
class TestResampling:
    """A new start in every pass in training; never in evaluation."""

    def test_training_draws_and_evaluation_does_not(self, member):
        head, x = build(member, resample="train", num_steps=1), maps()
        before, quiet = state(head), head(x)
        one, other = (head.train()(x) for _ in range(2))
        assert not torch.equal(one, other)
        assert torch.equal(head.eval()(x), quiet)
        assert_close(state(head), before, rtol=0, atol=0)

    def test_the_draws_come_from_the_seed(self, member):
        one, twin = (build(member, resample="train", num_steps=1).train() for _ in range(2))
        x = maps()
        torch.rand(3)
        assert torch.equal(one(x), twin(x))
        assert torch.equal(copy.deepcopy(one)(x), one(x))

    def test_all_samples_share_the_draw(self, member):
        head, x = build(member, resample="train", num_steps=1).train(), maps(1)
        y = head(torch.cat([x, x]))
        assert_close(y[0], y[1], rtol=0, atol=1e-14)

    def test_other_starts_cannot_be_drawn_anew(self, member):
        with pytest.raises(ValueError, match="resample='train' draws Gaussian starts; got"):
            build(member, resample="train", start="mean")
