"""Products with blocks of the Hessian, against the explicit matrix."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from equipoise.instrument.replay import Replay
from equipoise.probes.hessian.blocks import ParameterBlock, layers, whole
from equipoise.probes.hessian.product import HessianProduct
from reference.hessian import explicit
from support.hessian_models import cross_entropy, double, labelled, smooth
from support.probe_models import loss_fn

EXACT = {"rtol": 1e-11, "atol": 1e-12}


def vector(size, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def replay():
    """A model with batch norm and dropout, and its Hessian."""
    model, data = double("batch norm and dropout")
    return Replay(model, loss_fn, data)


@pytest.mark.parametrize("recompute", [False, True])
class TestProduct:
    def test_of_the_whole(self, replay, recompute):
        H = explicit(replay.model, loss_fn, replay.batch)
        product = HessianProduct([replay], recompute=recompute)
        for seed in range(3):
            v = vector(len(H), seed)
            assert_close(product(whole(replay), v), H @ v, **EXACT)

    def test_of_diagonal_blocks(self, replay, recompute):
        H = explicit(replay.model, loss_fn, replay.batch)
        product = HessianProduct([replay], recompute=recompute)
        where = torch.arange(len(H)).split([p.numel() for p in replay.parameters])
        for block in layers(replay):
            own = torch.cat([where[index] for index in block.indices])
            v = vector(len(own))
            assert_close(product(block, v), H[own][:, own] @ v, **EXACT)

    def test_at_moved_parameters(self, replay, recompute):
        product = HessianProduct([replay], recompute=recompute)
        v = vector(len(product.like(whole(replay))))
        product(whole(replay), v)
        for parameter in replay.parameters:
            parameter.data.mul_(1.1)
        H = explicit(replay.model, loss_fn, replay.batch)
        product.clear_graphs()
        assert_close(product(whole(replay), v), H @ v, **EXACT)


def test_the_graph_is_built_once_per_batch_or_once_per_product():
    calls = []

    def loss(model, data):
        calls.append(data)
        return cross_entropy(model, data)

    replays = [Replay(smooth(), loss, labelled(seed=0))]
    replays.append(Replay(replays[0].model, loss, labelled(seed=1)))
    for recompute, expected in ((False, 2), (True, 6)):
        product = HessianProduct(replays, recompute=recompute)
        for seed in range(3):
            product(whole(replays[0]), vector(46, seed))
        assert len(calls) == expected
        calls.clear()


def test_without_replayed_noise_the_product_is_no_linear_map():
    """The twin of replaying: two products of the same vector differ."""
    model, data = double("batch norm and dropout")

    def product(v):
        gradients = torch.autograd.grad(
            loss_fn(model, data), model.parameters(), create_graph=True
        )
        pieces = torch.split(v, [p.numel() for p in model.parameters()])
        along = sum(
            (g.reshape(-1) * piece).sum() for g, piece in zip(gradients, pieces, strict=True)
        )
        return torch.cat([p.reshape(-1) for p in torch.autograd.grad(along, model.parameters())])

    v = vector(sum(p.numel() for p in model.parameters()))
    assert (product(v) - product(v)).norm() > 0.1 * product(v).norm()


class Mixed(nn.Module):
    """Parameters of two types."""

    def __init__(self):
        super().__init__()
        self.coarse = nn.Linear(3, 3).bfloat16()
        self.fine = nn.Linear(3, 1)

    def forward(self, x):
        return self.fine(torch.tanh(self.coarse(x.bfloat16())).float())


class TestVectors:
    @pytest.mark.parametrize(
        ("indices", "dtype"),
        [((0, 1), torch.float32), ((2, 3), torch.float32), ((0, 3), torch.float32)],
    )
    def test_are_of_the_widest_type_and_at_least_float32(self, indices, dtype):
        model = Mixed()
        replay = Replay(model, lambda m, x: m(x).square().mean(), torch.ones(4, 3))
        product = HessianProduct([replay])
        block = ParameterBlock("some", indices)
        like = product.like(block)
        assert like.dtype == dtype
        assert product(block, torch.ones_like(like)).shape == like.shape

    def test_double_parameters_give_double_vectors(self, replay):
        assert HessianProduct([replay]).like(whole(replay)).dtype == torch.float64

    def test_every_product_is_counted(self, replay):
        counts = []
        product = HessianProduct([replay], on_product=lambda: counts.append(1))
        for _ in range(3):
            product(whole(replay), vector(158))
        assert len(counts) == 3


class TestRefusals:
    def test_other_errors_of_the_model_are_passed_on(self):
        replay = Replay(nn.Linear(4, 4), lambda m, x: m(x).sum(), torch.ones(2, 5))
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            HessianProduct([replay])(whole(replay), torch.ones(20))

    def test_a_loss_that_is_not_finite(self):
        replay = Replay(nn.Linear(4, 4), lambda m, x: m(x).sum() / 0, torch.ones(2, 4))
        with pytest.raises(ValueError, match=r"the loss is .*inf on the batch: it has no"):
            HessianProduct([replay])(whole(replay), torch.ones(20))
