"""Two processes train as one does on the joint batch, where the maths says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from big_problems import STEPS, data, differences, network, state, trained
from big_ranks import CASES
from torch.testing import assert_close

from equipoise.data import Samples
from equipoise.training import (
    Layout,
    Ranks,
    ShuffledBatches,
    ShuffledOrder,
    cross_entropy,
    process_group,
    train,
    train_big,
)
from equipoise.training.layout import layout
from forked_ranks import results_of

SCRIPT = Path(__file__).with_name("big_ranks.py")
RANKS_ONLY = ("shard", "wrap", "loss_fn", "loss_is")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two processes computed."""
    return results_of(SCRIPT, tmp_path_factory.mktemp("ranks"))


def joint(name):
    """The same training in this process alone."""
    options = {key: value for key, value in CASES[name].items() if key not in RANKS_ONLY}
    return state(*trained(**options))


class TestTwoProcesses:
    @pytest.mark.parametrize("name", [name for name in CASES if name != "per rank"])
    def test_train_as_one_on_the_joint_batch(self, found, name):
        """Batch norm, BNP, momentum and decay: weights, statistics and losses."""
        expected = joint(name)
        for rank in found:
            # Adam divides by ε = 1e-8 where batch norm leaves a bias with rounding errors alone.
            assert_close(rank[name], expected, rtol=0, atol=1e-9 if "adamw" in name else 1e-12)

    def test_statistics_per_rank_train_another_network(self, found):
        ours, alone = found[0]["per rank"], joint("per rank")
        assert (ours["losses"] - alone["losses"]).abs().max() > 0.01

    @pytest.mark.parametrize("name", CASES)
    def test_both_end_with_the_same_model(self, found, name):
        assert differences(found[0][name], found[1][name]) == []

    def test_say_what_a_step_is(self, found):
        layouts = found[0]["layouts"]
        assert layouts["uneven shares"].startswith("DDP over 2 ranks: 7 samples a step, 3 to 4")
        assert "statistics over all 8 samples, as in one process" in layouts["sharded"]
        assert layouts["sharded"].startswith("FSDP2 over 2 ranks")
        assert "per rank: statistics over 4 of the 8 samples" in layouts["per rank"]

    def test_rank_0_alone_listens_and_evaluates_for_all(self, found):
        first, second = (rank["watched"] for rank in found)
        losses = first["run"].history.losses
        assert first["heard"] == list(enumerate(losses, 1))
        assert second["heard"] == []
        evaluations = first["run"].history.evaluations
        assert [(e.step, e.loss) for e in evaluations] == [(0, 0), (3, 0), (STEPS, 0)]
        assert second["run"].history.evaluations == evaluations
        assert second["run"].history.losses == losses

    def test_a_loss_that_diverges_on_one_rank_ends_both(self, found):
        histories = [rank["diverged"] for rank in found]
        assert [history.diverged_at for history in histories] == [3, 3]
        assert [len(history.losses) for history in histories] == [4, 4]

    def test_shards_resume_exactly(self, found):
        for rank in found:
            both = rank["sharded, resumed"]
            assert differences(both["resumed"], both["whole"]) == []

    def test_a_checkpoint_of_one_process_goes_on_only_if_that_is_wanted(self, found):
        for rank in found:
            assert "alone.pt' is of 1 ranks, here are 2." in rank["elastic"]
            assert_close(rank["elastic, allowed"], joint("momentum"), rtol=0, atol=1e-12)

    @pytest.mark.parametrize(
        ("case", "message"),
        [
            ("unwritable", "CheckpointError: cannot write the checkpoint"),
            ("not shared", "CheckpointError: the ranks do not see the same checkpoint"),
            ("fsdp", "ValueError: fully_shard does not keep batch norms of several ranks alike"),
        ],
    )
    def test_are_refused_together(self, found, case, message):
        assert [rank[case].startswith(message) for rank in found] == [True, True]


class TestOneProcess:
    def test_is_the_plain_loop_to_the_bit(self):
        batches = data(transform=None)
        samples = Samples("", batches.inputs, batches.targets)
        ours, theirs = network(), network()
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (ours, theirs)]
        run = train_big(ours, batches, cross_entropy, optimizers[0])
        drawn = samples.batches(8, STEPS, torch.Generator().manual_seed(3))
        history = train(theirs, drawn, cross_entropy, optimizers[1])
        assert run.history.losses == history.losses
        assert differences(ours.state_dict(), theirs.state_dict()) == []
        assert run.layout == Layout("one process", (8,), "joint")
        assert run.resumed_at is None

    def test_needs_no_process_group(self):
        with process_group() as here:
            assert here == Ranks(0, 1)
            assert not torch.distributed.is_initialized()


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

    def test_more_ranks_than_samples_are_refused(self):
        with pytest.raises(ValueError, match="a batch of 2 samples is too small for 3 ranks"):
            layout(network(), 2, Ranks(0, 3), engine="DDP")
