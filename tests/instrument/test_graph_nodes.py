"""Every node of a loss's graph, once, and the types that passed through it."""

import pytest
import torch

from equipoise.instrument.graph_nodes import coarsest_rounding, graph_nodes

EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float64, torch.float32, torch.bfloat16)}


def leaf(dtype=torch.float32):
    return torch.ones(3, dtype=dtype, requires_grad=True)


class TestNodes:
    def test_shared_ones_are_yielded_once(self):
        x = leaf().exp()
        names = sorted(node.name() for node in graph_nodes((x * x + x).sum()))
        leaves = ["torch::autograd::AccumulateGrad"]
        assert names == ["AddBackward0", "ExpBackward0", "MulBackward0", "SumBackward0", *leaves]

    def test_a_constant_has_none(self):
        assert list(graph_nodes(torch.ones(()))) == []


class TestCoarsestRounding:
    @pytest.mark.parametrize("dtype", EPS, ids=str)
    def test_is_the_loss_s_if_nothing_else_was_used(self, dtype):
        assert coarsest_rounding(leaf(dtype).exp().sum()) == EPS[dtype]

    @pytest.mark.parametrize("dtype", EPS, ids=str)
    def test_sees_types_in_between(self, dtype):
        found = coarsest_rounding(leaf(torch.float64).to(dtype).exp().double().sum())
        assert found == EPS[dtype]

    def test_sees_autocast(self):
        layer = torch.nn.Linear(3, 2)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert coarsest_rounding(layer(leaf()).float().sum()) == EPS[torch.bfloat16]
        assert coarsest_rounding(layer(leaf()).sum()) == EPS[torch.float32]

    def test_integers_do_not_count(self):
        table, index = leaf(torch.float64), torch.tensor([0, 2])
        assert coarsest_rounding(table[index].sum()) == EPS[torch.float64]
