"""Two processes train as one does on the joint batch, where the maths says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.testing import assert_close

from equipoise import layers
from equipoise.data import Samples
from equipoise.training import cross_entropy, train
from equipoise_papers.big.batches import ShuffledBatches, ShuffledOrder
from equipoise_papers.big.distributed import Ranks, from_rank_0, process_group
from equipoise_papers.big.layout import Layout, layout
from equipoise_papers.big.train import train_big
from papers_support.big_problems import STEPS, data, differences, network, state, trained
from papers_support.big_ranks import CASES
from support.forked_ranks import results_of

SCRIPT = Path(__file__).parents[1] / "papers_support" / "big_ranks.py"
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

    def test_evaluate_everywhere_where_forward_passes_meet(self, found):
        """Those of FSDP2, and of a model that was given in DDP, are collective operations."""
        first, second = (rank["evaluated"] for rank in found)
        for name in ("sharded", "wrapped"):
            assert first[name][0] == second[name][0] == [0, 3, STEPS]
        assert second["plain"][0] == []
        for name, (_, evaluations) in first.items():
            assert second[name][1] == evaluations
            assert_close(evaluations, first["plain"][1], rtol=1e-12, atol=0)

    def test_shares_of_another_size_are_refused_where_they_would_be_weighed(self, found):
        for rank, has in zip(found, (2, 6), strict=True):
            assert f"a batch has {has} samples on this rank" in rank["another size"]
            assert rank["another size, summed"] is None

    def test_other_statistics_per_rank_can_go_on_if_that_is_wanted(self, found):
        """One process's are the joint batch's; the layers are the same."""
        for rank in found:
            assert rank["elastic, per rank"] is None
            assert rank["elastic, synchronised"] is None
            assert "statistics was 'per rank', here it is 'joint'" in rank["other norms"]

    def test_groups_of_ranks_are_told_apart(self, found):
        assert [rank["groups of one"] for rank in found] == [["per rank", "joint", "mixed"]] * 2

    def test_infinite_weights_are_not_kept(self, found):
        for rank in found:
            history, kept = rank["checkpoint of infinite weights"]
            assert (history.diverged_at, kept) == (5, 4)

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
            ("unstorable", "CheckpointError: cannot write the checkpoint"),
            ("fits one rank", "CheckpointError: "),
            ("nothing", "TypeError: evaluate must return an equipoise.training.Evaluation"),
            ("evaluate on one rank", "ValueError: the ranks differ in whether there is an eval"),
            ("other moments", r"ValueError: the ranks differ in evaluate_at: (0,), (1,), by rank"),
            ("a listener on one rank", "ValueError: the ranks differ in whether there is a list"),
            ("other intervals", "ValueError: the ranks differ in checkpoint_every: 5, 6, by rank"),
            ("sum and mean", "ValueError: the ranks differ in loss_is: 'sum', 'mean', by rank"),
            ("fsdp", "ValueError: fully_shard does not keep batch norms of several ranks alike"),
        ],
    )
    def test_are_refused_together(self, found, case, message):
        assert [rank[case].startswith(message) for rank in found] == [True, True]


class TestGpus:
    """As if there were some: which group is made, and where ranks compute."""

    @pytest.mark.parametrize(("gpus", "backend"), [(2, "cpu:gloo,cuda:nccl"), (1, "gloo")])
    def test_groups_serve_the_cpu_too(self, monkeypatch, gpus, backend):
        made, chosen = [], []
        replaced = {
            "torch.cuda.is_available": lambda: True,
            "torch.cuda.device_count": lambda: gpus,
            "torch.cuda.set_device": chosen.append,
            "torch.distributed.is_torchelastic_launched": lambda: True,
            "torch.distributed.rendezvous": lambda *_, **__: iter([(dist.HashStore(), 1, 2)]),
            "torch.distributed.init_process_group": lambda name, **_: made.append(name),
            "torch.distributed.destroy_process_group": lambda: None,
        }
        for name, value in replaced.items():
            monkeypatch.setattr(name, value)
        monkeypatch.setenv("LOCAL_RANK", "1")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        with process_group():
            assert (made, chosen) == ([backend], [1] if gpus == 2 else [])

    @pytest.mark.parametrize(
        ("backends", "device"), [("cpu:gloo,cuda:nccl", "cuda:1"), ("cpu:gloo,cuda:gloo", "cpu")]
    )
    def test_ranks_say_where_to_compute(self, monkeypatch, backends, device):
        monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
        monkeypatch.setattr("torch.distributed.get_backend_config", lambda: backends)
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.current_device", lambda: 1)
        assert Ranks(1, 2).device == torch.device(device)

    def test_groups_of_several_backends_exchange_objects(self):
        store = dist.HashStore()
        dist.init_process_group("cpu:gloo,cuda:gloo", store=store, rank=0, world_size=1)
        try:
            pretended = Ranks(0, 2)  # alone it would not ask the group
            assert from_rank_0("word", pretended) == "word"
        finally:
            dist.destroy_process_group()


class TestLayout:
    """What no two processes can show."""

    @pytest.mark.parametrize(
        ("plan", "says"),
        [
            (Layout("DDP", (4, 4), "none", "sum"), "Gradients are sums over all 8."),
            (Layout("DDP", (2,) * 4, "per group"), "within groups of ranks: statistics over a gr"),
            (Layout("DDP", (4, 4), "mixed"), "of several kinds: statistics over parts of the 8"),
        ],
        ids=["sums", "groups", "mixed"],
    )
    def test_says_what_a_step_is(self, plan, says):
        assert says in str(plan)

    def test_groups_of_some_ranks(self, monkeypatch):
        monkeypatch.setattr("torch.distributed.get_world_size", lambda group: 2)
        norm = layers.SynchronisedBatchNorm1d(2, process_group=object())
        assert layout(norm, 8, Ranks(0, 4), engine="DDP").statistics == "per group"


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
            assert here.device.type == ("cuda" if torch.cuda.is_available() else "cpu")

    def test_another_kind_of_loss_is_refused(self):
        with pytest.raises(ValueError, match='loss_is must be "mean" or "sum", got \'average\''):
            train_big(network(), data(), cross_entropy, None, loss_is="average")


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
