"""A step waits for no device and makes no copy of the features."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise.preconditioners import BNP
from support.bnp_problems import attached, batches, mlp, train


class Watched(TorchDispatchMode):
    """Counts reads of device values, and notes the largest result of an operation."""

    def __init__(self):
        super().__init__()
        self.reads, self.largest = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.reads += func in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.nonzero.default,
        )
        if isinstance(out, torch.Tensor) and not func.is_view:
            self.largest = max(self.largest, out.numel())
        return out


class TestLeanness:
    @pytest.mark.parametrize("mode", ["attach", "step"])
    def test_a_step_never_waits_for_the_device(self, mode):
        model = nn.Sequential(mlp((5, 4)), nn.Linear(4, 3, bias=False, dtype=torch.float64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        pre = BNP(model, max_norm=1.0)
        if mode == "attach":
            pre.attach(optimizer)
        with Watched() as plain:
            train(model, optimizer, batches(5), None if mode == "attach" else pre)
        assert plain.reads == 0

    def test_a_report_does(self):
        pre = attached(mlp(), "sgd", batches(1))[2]
        with Watched() as seen:
            pre.report()
        assert seen.reads > 0

    def test_statistics_take_no_memory_of_the_size_of_the_features(self):
        rows, features = 2**15, 16
        module = nn.Linear(features, 1)
        h = torch.zeros(rows, features)
        with Watched() as plain:
            module(h).sum().backward()
        with BNP(module), Watched() as seen:
            module(h).sum().backward()
        assert plain.largest <= seen.largest <= rows * features // 4
        with Watched() as naive:
            h.var(0), (h - 1)
        assert naive.largest == rows * features
