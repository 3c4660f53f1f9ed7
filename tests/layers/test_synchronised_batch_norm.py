"""Two processes with shares of a batch against one with all of it; one process is batch norm."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing import assert_close

from equipoise import layers
from equipoise.layers.synchronised_batch_norm import synchronised_batch_norm
from support.cases import each
from support.forked_ranks import results_of
from support.synchronised_batch_norm_ranks import (
    MOMENTA,
    SHAPES,
    SPLITS,
    curvature,
    layer,
    problem,
    traced,
)

SCRIPT = Path(__file__).parents[1] / "support" / "synchronised_batch_norm_ranks.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two processes computed."""
    return results_of(SCRIPT, tmp_path_factory.mktemp("ranks"))


@pytest.fixture
def group_of_one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def plain(x):
    """Batch norm by its definition."""
    mean = x.mean(0)
    return (x - mean) / ((x - mean).square().mean(0) + 1e-5).sqrt()


@each("momentum", MOMENTA)
@each("split", SPLITS)
@each("dims", SHAPES)
class TestShares:
    """Joint batch: PyTorch's batch norm. Shares: two processes."""

    def test_outputs_and_gradients_are_the_joint_batchs(self, found, dims, split, momentum):
        parts = [rank[dims, split, momentum] for rank in found]
        joint = traced(layer(dims, False, momentum=momentum), *problem(dims))
        for name in ("y", "x"):
            assert_close(torch.cat([p[name] for p in parts]), joint[name], rtol=0, atol=1e-12)

    def test_gradients_of_weights_add_up(self, found, dims, split, momentum):
        parts = [rank[dims, split, momentum] for rank in found]
        joint = traced(layer(dims, False, momentum=momentum), *problem(dims))
        for name in ("weight", "bias"):
            assert_close(sum(p[name] for p in parts), joint[name], rtol=0, atol=1e-12)

    def test_running_statistics_are_the_joint_batchs_everywhere(
        self, found, dims, split, momentum
    ):
        parts = [rank[dims, split, momentum] for rank in found]
        joint = traced(layer(dims, False, momentum=momentum), *problem(dims))
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            assert torch.equal(parts[0][name], parts[1][name])
            assert_close(parts[0][name], joint[name], rtol=1e-14, atol=0)


def test_without_synchronisation_they_are_not(found):
    joint = traced(layer(1, False), *problem(1))
    apart = torch.cat([rank["apart"]["y"] for rank in found])
    assert (apart - joint["y"]).abs().max() > 0.1


def test_second_derivatives_are_the_joint_batchs(found):
    expected = curvature(plain, *problem(1))
    assert_close(torch.cat([rank["curvature"] for rank in found]), expected, rtol=1e-10, atol=0)


def test_large_means_lose_no_digits(found):
    """σ = 3 at μ = 10⁴ in float32: sums of squares would keep one digit of σ²."""
    x, _ = problem(1, torch.float32, offset=1e4)
    y = torch.cat([rank["far from 0"]["y"] for rank in found])
    expected = layer(1, False)(x.double())
    assert_close(y.double(), expected, rtol=0, atol=1e-3)
    naive = x.square().mean(0) - x.mean(0).square()
    exact = x.double().var(0, correction=0)
    assert ((naive - exact) / exact).abs().max() > 0.05


def test_evaluation_needs_no_other_process(found):
    x, _ = problem(1, torch.float32, offset=1e4)
    expected = layer(1, False).eval()(x.double())
    assert torch.equal(torch.cat([rank["evaluation"] for rank in found]), expected)


def test_one_value_in_all_processes_together_is_refused_by_all(found):
    for rank in found:
        assert "more than 1 value per channel when training, got 1 in all" in rank["one value"]


@pytest.mark.usefixtures("group_of_one")
class TestDerivatives:
    """By finite differences, in one process."""

    @pytest.mark.parametrize("affine", [True, False])
    def test_first_and_second(self, affine):
        x = problem(2)[0].requires_grad_()
        own = [torch.linspace(0.5, 2, 3).double().requires_grad_() for _ in range(2 * affine)]

        def outputs(x, weight=None, bias=None):
            return synchronised_batch_norm(x, weight, bias)[:3]

        assert torch.autograd.gradcheck(outputs, (x, *own))
        assert torch.autograd.gradgradcheck(outputs, (x, *own), fast_mode=True)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_types(self, dtype):
        """Half precision inputs with weights of either type; statistics stay in float32."""
        x = problem(2)[0]
        expected = layer(2, False)(x)
        for kind in {dtype, torch.float32}:
            made = layer(2, True, kind)
            half = x.to(dtype).requires_grad_()
            y, mean, _, _ = synchronised_batch_norm(half, made.weight, made.bias)
            y.sum().backward()
            assert (y.dtype, half.grad.dtype, made.weight.grad.dtype) == (dtype, dtype, kind)
            assert mean.dtype == torch.float32
            eps = torch.finfo(dtype).eps
            assert_close(y.double(), expected, rtol=30 * eps, atol=30 * eps)

    # PyTorch's tracer instantiates functions that need no gradient, and warns about it.
    @pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
    def test_memory_layout_and_compilation(self):
        x = problem(2)[0].to(memory_format=torch.channels_last)
        function = torch.compile(
            lambda x: synchronised_batch_norm(x, None, None)[0], backend="eager", fullgraph=True
        )
        y = function(x)
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert_close(y, nn.functional.batch_norm(x, None, None, training=True))
        torch.compiler.reset()


class TestAlone:
    """Without other processes it is batch norm, to the bit."""

    @pytest.mark.parametrize("grouped", [False, True])
    @pytest.mark.parametrize("dims", SHAPES)
    def test_is_batch_norm(self, dims, grouped, request):
        if grouped:
            request.getfixturevalue("group_of_one")
        ours = traced(layer(dims, True), *problem(dims))
        theirs = traced(layer(dims, False), *problem(dims))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)

    def test_checkpoints_go_both_ways(self):
        ours, theirs = layer(2, True), layer(2, False)
        ours(problem(2)[0])
        theirs.load_state_dict(ours.state_dict())
        ours.load_state_dict(theirs.state_dict())

    def test_refuses_other_dimensions(self):
        with pytest.raises(ValueError, match="expected 4D input"):
            layer(2, True)(torch.zeros(3, 3))

    @pytest.mark.usefixtures("group_of_one")
    def test_copies_stay_in_the_group(self):
        made = layer(1, True, process_group=dist.group.WORLD)
        twin = copy.deepcopy(made)
        assert twin.process_group is made.process_group
        assert twin.weight is not made.weight
        assert torch.equal(twin.weight, made.weight)


class TestConversion:
    """``convert(model, "batch", "synchronised")``."""

    def test_keeps_parameters_statistics_and_modes(self):
        model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3, eps=0.1, momentum=None))
        model[1].eval()
        before = dict(model.named_parameters()) | dict(model.named_buffers())
        assert synchronise(model) is model
        after = dict(model.named_parameters()) | dict(model.named_buffers())
        assert all(after[name] is value for name, value in before.items())
        made = model[1]
        assert type(made) is layers.SynchronisedBatchNorm2d
        assert (made.eps, made.momentum, made.training) == (0.1, None, False)

    def test_a_batch_norm_itself_is_replaced(self):
        assert type(synchronise(nn.BatchNorm1d(2))) is layers.SynchronisedBatchNorm1d

    @pytest.mark.usefixtures("group_of_one")
    def test_the_new_layers_know_their_group(self):
        assert synchronise(nn.BatchNorm1d(2)).process_group is None
        group = dist.group.WORLD
        assert synchronise(nn.BatchNorm1d(2), process_group=group).process_group is group

    def test_converting_twice_changes_nothing(self):
        model = nn.Sequential(nn.BatchNorm3d(2))
        made = synchronise(model)[0]
        assert synchronise(model)[0] is made

    def test_other_normalisers_stay(self):
        model = nn.Sequential(layers.GhostBatchNorm1d(2), nn.GroupNorm(1, 2), nn.SyncBatchNorm(2))
        before = list(model)
        synchronise(model)
        assert list(model) == before

    def test_a_batch_norm_that_cannot_be_exchanged_is_an_error_and_nothing_changes(self):
        model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2))
        model[1].register_forward_hook(lambda *_: None)
        with pytest.raises(ValueError, match=r"cannot synchronise '1'.*it has hooks"):
            synchronise(model)
        assert type(model[0]) is nn.BatchNorm1d


def synchronise(model, **options):
    return layers.convert(model, "batch", "synchronised", inplace=True, **options).model
