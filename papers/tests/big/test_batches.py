"""Batches do not depend on the number of ranks, nor on where a training resumes."""

from __future__ import annotations

import pytest
import torch

from equipoise_papers.big.batches import ShuffledBatches, ShuffledOrder
from equipoise_papers.big.distributed import Ranks
from papers_support.big_problems import data


class TestOrder:
    @pytest.mark.parametrize("size", [1, 2, 3, 5])
    @pytest.mark.parametrize("start", [0, 1, 5, 11])
    def test_shares_of_any_number_of_ranks_are_the_joint_batches(self, size, start):
        batches = data()
        expected = list(batches.shares(0, Ranks()))[start:]
        shares = zip(*(batches.shares(start, Ranks(r, size)) for r in range(size)), strict=True)
        for (x, y), parts in zip(expected, shares, strict=True):
            assert torch.equal(torch.cat([part[0] for part in parts]), x)
            assert torch.equal(torch.cat([part[1] for part in parts]), y)

    def test_every_sample_once_per_epoch(self):
        order = ShuffledOrder(samples=9, batch_size=3, steps=6, seed=0)
        drawn = torch.cat(list(order.joint(0))).tolist()
        assert sorted(drawn[:9]) == sorted(drawn[9:]) == list(range(9))
        assert drawn[:9] != drawn[9:]

    def test_leaves_the_global_generator_alone(self):
        before = torch.get_rng_state()
        list(data().shares(0, Ranks()))
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"batch_size": 0}, "batch_size must be from 1 to the number of samples, 9, got 0"),
            ({"batch_size": 10}, "batch_size must be from 1"),
            ({"steps": 0}, "steps must be at least 1, got 0"),
        ],
    )
    def test_impossible_orders_are_refused(self, change, message):
        with pytest.raises(ValueError, match=message):
            ShuffledOrder(**{"samples": 9, "batch_size": 3, "steps": 6, "seed": 0} | change)

    def test_inputs_without_targets_are_refused(self):
        with pytest.raises(ValueError, match="got 3 inputs and 2 targets"):
            ShuffledBatches(torch.zeros(3), torch.zeros(2), 1, steps=1, seed=0)

    def test_batches_move_to_the_device(self):
        zeros = torch.zeros(4)
        batches = ShuffledBatches(zeros, zeros, 2, steps=1, seed=0, device="meta")
        assert [part.device.type for part in next(batches.shares(0, Ranks()))] == ["meta", "meta"]
