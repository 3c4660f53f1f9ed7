"""The contract of every normaliser of the room; a newcomer joins by a line in ``FAMILY``.

A layer's 1d, 2d and 3d classes share all their code but the shape check. So what depends on the
shape of the input is tested for every class, and the rest for one class of each layer and for each
branch of ``LpNorm``.
"""

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from equipoise import layers
from equipoise.layers import RenormSchedule
from support.cases import each


@dataclass(frozen=True)
class Member:
    """A layer, an input for it, and what it is compared with.

    ``batch_norm`` is the class whose output the layer's defaults give, if there is one;
    ``same_statistics`` says whether its running statistics are also that class's. ``smooth`` are
    options with which the output is differentiable although gradients are stopped inside;
    ``needed`` are options without defaults; ``options`` must show in the representation.
    """

    make: type[nn.Module]
    shape: tuple[int, ...]
    batch_norm: type[nn.Module] | None
    same_statistics: bool = True
    smooth: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    needed: dict[str, Any] = field(default_factory=dict)


# Far from the running statistics that the test of gradients sets, both limits bind everywhere.
BOUND = {"schedule": RenormSchedule.constant(1.1, 0.1)}
GHOSTS = {"virtual_batch_size": 2}
GROUPS = {"groups": 2, "virtual_batch_size": 4, "example_weight": 0.25}
NOISE = {"mean_limit": 1.0, "scale_limit": 2.0, "mean_spread": 0.5, "scale_spread": 0.25}

FAMILY = {
    "renorm [N, C]": Member(layers.BatchRenorm1d, (6, 4), nn.BatchNorm1d, True, BOUND, BOUND),
    "renorm 1d": Member(layers.BatchRenorm1d, (6, 4, 3), nn.BatchNorm1d, True, BOUND, BOUND),
    "renorm 2d": Member(layers.BatchRenorm2d, (6, 4, 2, 3), nn.BatchNorm2d, True, BOUND, BOUND),
    "renorm 3d": Member(layers.BatchRenorm3d, (3, 4, 2, 2, 2), nn.BatchNorm3d, True, BOUND, BOUND),
    "ghost [N, C]": Member(layers.GhostBatchNorm1d, (6, 4), nn.BatchNorm1d, True, GHOSTS, GHOSTS),
    "ghost 1d": Member(layers.GhostBatchNorm1d, (6, 4, 3), nn.BatchNorm1d, True, GHOSTS, GHOSTS),
    "ghost 2d": Member(layers.GhostBatchNorm2d, (5, 4, 2, 3), nn.BatchNorm2d, True, {}, GHOSTS),
    "ghost 3d": Member(layers.GhostBatchNorm3d, (3, 4, 2, 2, 2), nn.BatchNorm3d, True, {}, GHOSTS),
    "sync [N, C]": Member(layers.SynchronisedBatchNorm1d, (6, 4), nn.BatchNorm1d),
    "sync 1d": Member(layers.SynchronisedBatchNorm1d, (6, 4, 3), nn.BatchNorm1d),
    "sync 2d": Member(layers.SynchronisedBatchNorm2d, (5, 4, 2, 3), nn.BatchNorm2d),
    "sync 3d": Member(layers.SynchronisedBatchNorm3d, (3, 4, 2, 2, 2), nn.BatchNorm3d),
    "four things [N, C]": Member(
        layers.FourThingsBatchNorm1d, (6, 4), nn.BatchNorm1d, False, GROUPS, GROUPS
    ),
    "four things 1d": Member(
        layers.FourThingsBatchNorm1d, (6, 4, 3), nn.BatchNorm1d, False, GROUPS, GROUPS
    ),
    "four things 2d": Member(
        layers.FourThingsBatchNorm2d, (6, 4, 2, 3), nn.BatchNorm2d, False, GROUPS, GROUPS
    ),
    "four things 3d": Member(
        layers.FourThingsBatchNorm3d, (3, 4, 2, 2, 2), nn.BatchNorm3d, False, {}, GROUPS
    ),
    "noisy [N, C]": Member(layers.NoisyBatchNorm1d, (6, 4), None, options=NOISE),
    "noisy 1d": Member(layers.NoisyBatchNorm1d, (6, 4, 3), None, options=NOISE),
    "noisy 2d": Member(layers.NoisyBatchNorm2d, (5, 4, 2, 3), None, options=NOISE),
    "noisy 3d": Member(layers.NoisyBatchNorm3d, (3, 4, 2, 2, 2), None, options=NOISE),
    "l1 [N, C]": Member(layers.LpNorm, (6, 4), None, needed={"p": 1}),
    "l2 1d": Member(layers.LpNorm, (6, 4, 3), None, needed={"p": 2}),
    "linf 2d": Member(layers.LpNorm, (5, 4, 2, 3), None, needed={"p": math.inf}),
    "l3 centered 3d": Member(
        layers.LpNorm, (3, 4, 2, 2, 2), None, options={"centered": True}, needed={"p": 3}
    ),
}
DROP_INS = {name: member for name, member in FAMILY.items() if member.batch_norm}
every_drop_in = each("member", DROP_INS.values(), ids=DROP_INS)
every = each("member", FAMILY.values(), ids=FAMILY)
REPRESENTATIVES = {
    name: member
    for name, member in FAMILY.items()
    if name.endswith("2d") or member.make is layers.LpNorm
}
once = pytest.mark.parametrize("member", REPRESENTATIVES.values(), ids=REPRESENTATIVES)
once_each_drop_in = pytest.mark.parametrize(
    "member",
    [m for m in REPRESENTATIVES.values() if m.batch_norm],
    ids=[name for name, m in REPRESENTATIVES.items() if m.batch_norm],
)
HALVES = (torch.float16, torch.bfloat16)


def batch(member, seed=0, dtype=torch.float64):
    """Samples whose channels differ in mean and scale."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(member.shape, generator=generator, dtype=torch.float64)
    scale = torch.arange(1.0, member.shape[1] + 1, dtype=torch.float64)
    scale = scale.reshape(-1, *(1,) * (len(member.shape) - 2))
    return (x * scale + scale / 2).to(dtype)


def build(member, make=None, **options):
    """A layer in float64 whose γ and β are not their initial values."""
    options = {"dtype": torch.float64, **member.needed, **options}
    layer = (make or member.make)(member.shape[1], **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += torch.linspace(-0.5, 0.5, len(parameter)).to(parameter)
    return layer


def run(layer, x, seed=0):
    """One pass; layers that draw noise draw the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return layer(x)


def train(layer, member, steps=3, dtype=torch.float64):
    return [run(layer, batch(member, seed, dtype), seed) for seed in range(steps)]


def statistics(layer):
    return {name: value.clone() for name, value in layer.named_buffers()}


class TestGradients:
    @every
    def test_agree_with_differences_in_training(self, member):
        assert gradients_agree(member, training=True)

    @once
    @each(("training", "affine"), [(True, False), (False, True)])
    def test_agree_in_evaluation_and_without_parameters(self, member, training, affine):
        assert gradients_agree(member, training=training, affine=affine)


def gradients_agree(member, *, training, affine=True):
    layer = build(member, momentum=0.0, affine=affine, **member.smooth).train(training)
    for name, value in layer.named_buffers():
        value.fill_({"running_mean": 100, "num_batches_tracked": 0}.get(name, 400))
    x = batch(member).requires_grad_()

    def forward(x, *parameters):
        given = dict(zip(dict(layer.named_parameters()), parameters, strict=True))
        return run(lambda x: torch.func.functional_call(layer, given, (x,)), x)

    return torch.autograd.gradcheck(forward, (x, *layer.parameters()), fast_mode=True)


class TestBatchNorm:
    """The defaults are batch norm, in both modes."""

    @every_drop_in
    def test_output_in_both_modes(self, member):
        layer, plain = build(member), build(member, member.batch_norm)
        assert_close(train(layer, member), train(plain, member), rtol=0, atol=1e-13)
        layer.load_state_dict(plain.state_dict())
        assert_close(layer.eval()(batch(member)), plain.eval()(batch(member)), rtol=0, atol=1e-13)

    @every_drop_in
    def test_running_statistics(self, member):
        """Biased in the output, unbiased in ``running_var``; or documented to differ."""
        assert running_variances_agree(member, momentum=0.1) == member.same_statistics

    @once_each_drop_in
    @each("momentum", [1.0, None])
    def test_every_momentum(self, member, momentum):
        layer = build(member, momentum=momentum)
        plain = build(member, member.batch_norm, momentum=momentum)
        assert_close(train(layer, member), train(plain, member), rtol=0, atol=1e-13)
        assert running_variances_agree(member, momentum) == member.same_statistics

    @once_each_drop_in
    def test_without_parameters(self, member):
        layer = build(member, affine=False)
        plain = build(member, member.batch_norm, affine=False)
        assert_close(train(layer, member), train(plain, member), rtol=0, atol=1e-13)

    @once_each_drop_in
    def test_without_running_statistics(self, member):
        layer = build(member, track_running_stats=False)
        plain = build(member, member.batch_norm, track_running_stats=False)
        assert list(layer.buffers()) == []
        for mode in (True, False):
            outputs = (train(m.train(mode), member) for m in (layer, plain))
            assert_close(*outputs, rtol=0, atol=1e-13)

    @once_each_drop_in
    def test_checkpoints_go_both_ways(self, member):
        layer, plain = build(member), build(member, member.batch_norm)
        train(layer, member)
        plain.load_state_dict(layer.state_dict())
        assert_close(plain.state_dict(), layer.state_dict(), rtol=0, atol=0)
        fresh = build(member)
        fresh.load_state_dict(plain.state_dict())
        assert_close(fresh.state_dict(), layer.state_dict(), rtol=0, atol=0)


def running_variances_agree(member, momentum):
    """Whether they are batch norm's; means and counts always are."""
    layer = build(member, momentum=momentum)
    plain = build(member, member.batch_norm, momentum=momentum)
    train(layer, member), train(plain, member)
    assert_close(layer.running_mean, plain.running_mean, rtol=0, atol=1e-14)
    assert layer.num_batches_tracked == plain.num_batches_tracked
    return torch.allclose(layer.running_var, plain.running_var, rtol=0, atol=1e-13)


@every
class TestEvaluation:
    def test_samples_are_independent(self, member):
        layer = build(member, **member.options)
        train(layer, member)
        x = batch(member, seed=7)
        alone = torch.cat([layer.eval()(sample[None]) for sample in x])
        assert_close(layer(x), alone, rtol=0, atol=1e-13)

    def test_in_training_they_are_not(self, member):
        layer = build(member)
        x = batch(member, seed=7)
        other = x.clone()
        other[-1] += 1
        assert not torch.allclose(run(layer, x)[0], run(layer, other)[0])


@once
def test_only_training_changes_the_state(member):
    layer = build(member, **member.options)
    fresh = statistics(layer)
    train(layer, member)
    before = statistics(layer)
    assert all(not torch.equal(value, fresh[name]) for name, value in before.items())
    layer.eval()(batch(member, seed=7))
    assert_close(statistics(layer), before, rtol=0, atol=0)


@once
class TestTypes:
    @each("dtype", [*HALVES, torch.float32])
    @each("training", [True, False])
    def test_the_output_has_the_type_of_the_input(self, member, dtype, training):
        layer = build(member, dtype=dtype, **member.options).train(training)
        exact = build(member, **member.options).train(training)
        y = train(layer, member, dtype=dtype)[-1]
        assert y.dtype == dtype
        assert {b.dtype for b in layer.buffers() if b.ndim} == {dtype}
        expected = train(exact, member)[-1]
        tolerance = 30 * torch.finfo(dtype).eps  # rounded input, statistics, γ and output
        assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)

    @each("dtype", HALVES)
    @each("training", [True, False])
    def test_half_inputs_meet_single_parameters(self, member, dtype, training):
        layer = build(member, dtype=torch.float32, **member.options).train(training)
        y = train(layer, member, dtype=dtype)[-1]
        y.float().square().sum().backward()
        assert y.dtype == dtype
        assert layer.weight.grad.dtype == layer.running_mean.dtype == torch.float32

    @each("training", [True, False])
    def test_large_half_inputs_do_not_overflow(self, member, training):
        """float16 ends at 65504, so a variance of 1000² is infinite."""
        layer = build(member, dtype=torch.float32, **member.options)
        layer(1000 * batch(member, dtype=torch.float32))
        layer.train(training)
        twin = copy.deepcopy(layer)
        x = 1000 * batch(member, seed=1, dtype=torch.float16)
        assert_close(run(layer, x).float(), run(twin, x.float()), rtol=4e-3, atol=4e-3)
        assert_close(statistics(layer), statistics(twin))

    def test_autocast(self, member):
        layer = build(member, dtype=torch.float32, **member.options)
        twin = copy.deepcopy(layer)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = train(layer, member, dtype=torch.float32)
        expected = train(twin, member, dtype=torch.float32)
        assert_close([y.float() for y in found], expected, rtol=0.02, atol=0.02)
        assert_close(statistics(layer), statistics(twin))
        assert {value.dtype for value in layer.parameters()} == {torch.float32}

    def test_positional_arguments_are_those_of_batch_norm(self, member):
        layer = member.make(4, 0.01, None, False, False, **member.needed)
        assert (layer.eps, layer.momentum) == (0.01, None)
        assert (list(layer.parameters()), list(layer.buffers())) == ([], [])

    def test_factory_arguments(self, member):
        layer = member.make(4, device="meta", dtype=torch.bfloat16, **member.needed)
        tensors = [*layer.parameters(), *layer.buffers()]
        assert {tensor.device.type for tensor in tensors} == {"meta"}
        assert {tensor.dtype for tensor in tensors} == {torch.bfloat16, torch.long}


@once
class TestModule:
    def test_a_resumed_training_is_the_same_training(self, member):
        layer = build(member, **member.options)
        train(layer, member)
        resumed = member.make(4, dtype=torch.float64, **member.needed, **member.options)
        resumed.load_state_dict(layer.state_dict())
        assert_close(train(resumed, member), train(layer, member), rtol=0, atol=0)
        assert_close(resumed.state_dict(), layer.state_dict(), rtol=0, atol=0)

    def test_deepcopy(self, member):
        layer = build(member, **member.options)
        twin = copy.deepcopy(layer)
        before = copy.deepcopy(twin.state_dict())
        expected = train(layer, member)
        assert_close(twin.state_dict(), before, rtol=0, atol=0)
        assert_close(train(twin, member), expected, rtol=0, atol=0)

    @each("training", [True, False])
    def test_several_passes_before_one_backward(self, member, training):
        layer = build(member, **member.options).train(training)
        once = copy.deepcopy(layer)
        sum(y.square().sum() for y in train(layer, member)).backward()
        for y in train(once, member):
            y.square().sum().backward()
        for one, other in zip(layer.parameters(), once.parameters(), strict=True):
            assert_close(one.grad, other.grad, rtol=1e-12, atol=0)

    def test_compile_in_evaluation(self, member):
        torch.compiler.reset()
        layer = build(member, **member.options).eval()
        twin = copy.deepcopy(layer)
        compiled = torch.compile(layer, backend="eager", fullgraph=True)
        assert_close(train(compiled, member), train(twin, member), rtol=0, atol=1e-14)
        assert_close(statistics(layer), statistics(twin), rtol=0, atol=1e-14)
        torch.compiler.reset()

    def test_one_compiled_graph_takes_other_batch_sizes(self, member):
        torch.compiler.reset()
        layer = build(member, **member.options)
        twin = copy.deepcopy(layer)
        compiled = torch.compile(layer, backend="eager", fullgraph=True, dynamic=True)
        for samples in (5, 3, 4):
            x = batch(member).repeat(2, *(1,) * (len(member.shape) - 1))[:samples]
            assert_close(run(compiled, x), run(twin, x), rtol=0, atol=1e-14)
        assert_close(statistics(layer), statistics(twin), rtol=0, atol=1e-14)
        torch.compiler.reset()

    def test_an_exported_program_takes_other_batch_sizes(self, member):
        layer, x = build(member, **member.options).eval(), batch(member)
        samples = {0: torch.export.Dim("samples")}
        program = torch.export.export(layer, (x,), dynamic_shapes=(samples,)).module()
        assert_close(program(x[:2]), layer(x[:2]), rtol=0, atol=1e-14)

    def test_repr_shows_every_option(self, member):
        options = {"eps": 0.01, "momentum": None, **member.needed, **member.options}
        layer = member.make(4, affine=False, track_running_stats=False, **options)
        shown = repr(layer)
        for name, value in {**options, "affine": False, "track_running_stats": False}.items():
            assert f"{name}={value}" in shown
        assert shown.startswith(f"{member.make.__name__}(4, ")


@each(
    "member",
    [m for m in FAMILY.values() if len(m.shape) > 3],
    ids=[n for n, m in FAMILY.items() if len(m.shape) > 3],
)
@each("training", [True, False])
def test_channels_last(member, training):
    last = torch.channels_last if len(member.shape) == 4 else torch.channels_last_3d
    layer = build(member, **member.options).train(training)
    expected = run(copy.deepcopy(layer), batch(member))
    y = run(layer, batch(member).to(memory_format=last))
    assert expected.is_contiguous()
    assert y.is_contiguous(memory_format=last)
    assert_close(y, expected, rtol=0, atol=1e-13)


@once
class TestInputsOfOtherLayouts:
    @each("training", [True, False])
    @each("layout", ["transposed", "every second", "expanded"])
    def test_memory_changes_nothing(self, member, layout, training):
        x = batch(member)
        x = {
            "transposed": x.transpose(0, -1).contiguous().transpose(0, -1),
            "every second": torch.stack([x, x + 1], 1).flatten(0, 1)[::2],
            "expanded": x[..., :1].expand(x.shape),
        }[layout]
        layer = build(member, **member.options).train(training)
        expected = run(copy.deepcopy(layer), x.contiguous())
        assert not x.is_contiguous() or x.shape[-1] == 1
        assert_close(run(layer, x), expected, rtol=0, atol=1e-13)

    def test_an_empty_batch_is_taken_in_evaluation_and_counts_nowhere(self, member):
        """In training it is refused, but where other processes may have samples."""
        layer = build(member, **member.options)
        before, x = statistics(layer), batch(member)[:0]
        if member.make is layers.SynchronisedBatchNorm2d:
            assert layer(x).shape == x.shape
            before["num_batches_tracked"] += 1
        else:
            with pytest.raises(
                ValueError, match=r"needs values to measure, got input size \(0, 4"
            ):
                layer(x)
        assert_close(statistics(layer), before, rtol=0, atol=0)
        assert layer.eval()(x).shape == x.shape

    def test_vmap_in_evaluation(self, member):
        layer = build(member, **member.options)
        train(layer, member)
        layer.eval()
        x = torch.stack([batch(member, seed) for seed in range(3)])
        assert_close(torch.func.vmap(layer)(x), torch.stack([layer(one) for one in x]))

    @each("needed", [(True, False, False), (False, True, False)])
    def test_only_what_is_asked_for_has_a_gradient(self, member, needed):
        layer, x = build(member, **member.options), batch(member).requires_grad_(needed[0])
        layer.weight.requires_grad_(needed[1])
        layer.bias.requires_grad_(needed[2])
        run(layer, x).square().sum().backward()
        assert tuple(t.grad is not None for t in (x, layer.weight, layer.bias)) == needed


@every
class TestErrors:
    @each("training", [True, False])
    def test_wrong_dimensions(self, member, training):
        layer = build(member).train(training)
        for ndim in {1, 2, 3, 4, 5, 6} - accepted(member):
            with pytest.raises(ValueError, match=rf"expected .*D input .*got {ndim}D input"):
                layer(torch.zeros((4,) * ndim, dtype=torch.float64))

    @each("training", [True, False])
    def test_wrong_channels(self, member, training):
        layer = build(member).train(training)
        with pytest.raises((ValueError, RuntimeError), match=r"channels|elements|size"):
            layer(batch(member)[:, :3])

    def test_one_value_per_channel(self, member):
        layer = build(member)
        x = batch(member)[:1]
        x = x[(slice(None), slice(None), *(slice(1),) * (x.ndim - 2))]
        before = statistics(layer)
        with pytest.raises(ValueError, match="more than 1 value per channel when training"):
            layer(x)
        assert_close(statistics(layer), before, rtol=0, atol=0)
        assert layer.eval()(x).shape == x.shape


def accepted(member):
    if member.make is layers.LpNorm:
        return {2, 3, 4, 5, 6}
    return {2, 3} if len(member.shape) < 4 else {len(member.shape)}
