"""Times, saved bytes and counts of operations are what they are said to be."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from equipoise.pooling import bilinear
from equipoise_papers.yu2020.speed.methods import METHODS, NEWTON, RUN1, inputs, svd_root
from equipoise_papers.yu2020.speed.timing import forward_backward, in_turns, saved_bytes

FLOAT = torch.float64


class TestTiming:
    def test_bytes_saved_are_counted_once_and_beside_the_input(self):
        x = torch.randn(4, 5)
        assert saved_bytes(lambda x: x * x, x) == 0
        assert saved_bytes(lambda x: x.exp().sum(0), x) == 4 * 5 * 4
        assert saved_bytes(lambda x: (x.exp() ** 2).flatten(), x) == 4 * 5 * 4
        assert saved_bytes(nn.Linear(5, 3), x) == 0

    def test_run_saves_what_the_specification_says(self):
        """At most (K + 1)(N + D) + 2K numbers a sample."""
        for name, K in ((RUN1, 1), ("RUN, K = 2", 2)):
            (method,) = [m for m in METHODS if (m.name, m.part) == (name, "normalisation")]
            fed = inputs(method, 2, 4, 8)
            numbers = saved_bytes(method.make(8), fed) / 4 / 2
            assert 0 < numbers <= (K + 1) * (16 + 8) + 2 * K + 8  # and the start

    def test_methods_take_turns(self):
        order = []
        passes = {name: lambda name=name: order.append(name) for name in "ab"}
        found = in_turns(passes, 2, torch.device("cpu"))
        assert len(found["a"].wall) == len(found["b"].cpu) == 2
        tries = len(order) // 8
        assert order == (["a"] * tries + ["b"] * tries) * 4

    @pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.part} {m.name}")
    def test_every_method_passes_back(self, method):
        fed = inputs(method, 2, 4, 4)
        forward = method.make(4)
        forward_backward(forward, fed)()
        leaf = fed.clone().requires_grad_()
        forward(leaf).sum().backward()
        assert bool(leaf.grad.isfinite().all())

    def test_operations_are_the_specifications(self):
        """At K = 1 a whole pass of RUN is 22 ND; five Newton-Schulz steps take 72 D³ of 100."""
        by_name = {m.name: m for m in METHODS if m.part == "normalisation"}
        assert by_name[RUN1].operations(784, 512) == 22 * 784 * 512
        assert by_name[NEWTON].operations(784, 512) == 72 * 512**3

    def test_a_floor_is_the_slower_of_operations_and_traffic(self):
        (method,) = [m for m in METHODS if (m.name, m.part) == (RUN1, "normalisation")]
        rates = {"rate": 1e9, "bandwidth": 1e30}
        assert method.floor_seconds(2, 10, 5, **rates) == pytest.approx(2 * 22 * 50 / 1e9)
        rates = {"rate": 1e30, "bandwidth": 1e9}
        assert method.floor_seconds(2, 10, 5, **rates) == pytest.approx(2 * 5 * 50 * 4 / 1e9)

    def test_the_svd_root_is_a_root(self):
        F = torch.randn(1, 6, 3, dtype=FLOAT)
        square = bilinear(svd_root(F), scale="none")
        torch.testing.assert_close(square @ square, bilinear(F, scale="none"))
