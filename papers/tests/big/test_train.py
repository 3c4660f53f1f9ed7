"""Two processes train as one process does on the joint batch; arguments that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from equipoise.data import Samples
from equipoise.preconditioners import BNP
from equipoise.training import Evaluation, cross_entropy, train
from equipoise_papers.big import checkpoint
from equipoise_papers.big.layout import Layout
from equipoise_papers.big.train import train_big
from papers_support.big_problems import STEPS, data, differences, network, state, trained
from papers_support.big_ranks import CASES
from papers_support.checkpoint_problems import Refusing
from support.forked_ranks import results_of

SCRIPT = Path(__file__).parents[1] / "papers_support" / "big_ranks.py"
RANKS_ONLY = ("shard", "wrap", "loss_fn", "loss_is")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Results of each of two processes."""
    return results_of(SCRIPT, tmp_path_factory.mktemp("ranks"))


def joint(name):
    """The same training in this process alone."""
    options = {key: value for key, value in CASES[name].items() if key not in RANKS_ONLY}
    return state(*trained(**options))


class TestTwoProcesses:
    @pytest.mark.parametrize("name", [name for name in CASES if name != "per rank"])
    def test_equal_one_process_on_the_joint_batch(self, found, name):
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

    def test_evaluate_on_all_ranks_if_forward_passes_need_all(self, found):
        """Those of FSDP2, and of a model that is in DDP already, are collective operations."""
        first, second = (rank["evaluated"] for rank in found)
        for name in ("sharded", "wrapped"):
            assert first[name][0] == second[name][0] == [0, 3, STEPS]
        assert second["plain"][0] == []
        for name, (_, evaluations) in first.items():
            assert second[name][1] == evaluations
            assert_close(evaluations, first["plain"][1], rtol=1e-12, atol=0)

    def test_shares_of_another_size_are_refused_for_mean_losses(self, found):
        for rank, has in zip(found, (2, 6), strict=True):
            assert f"a batch has {has} samples on this rank" in rank["another size"]
            assert rank["another size, summed"] is None

    def test_statistics_per_rank_resume_elastically(self, found):
        """With one process they are over the joint batch; the layers are the same."""
        for rank in found:
            assert rank["elastic, per rank"] is None
            assert rank["elastic, synchronised"] is None
            assert "statistics was 'per rank', here it is 'joint'" in rank["other norms"]

    def test_groups_of_ranks_are_recognised(self, found):
        assert [rank["groups of one"] for rank in found] == [["per rank", "joint", "mixed"]] * 2

    def test_infinite_weights_are_not_saved(self, found):
        for rank in found:
            history, kept = rank["checkpoint of infinite weights"]
            assert (history.diverged_at, kept) == (5, 4)

    def test_a_loss_that_diverges_on_one_rank_ends_both_trainings(self, found):
        histories = [rank["diverged"] for rank in found]
        assert [history.diverged_at for history in histories] == [3, 3]
        assert [len(history.losses) for history in histories] == [4, 4]

    def test_shards_resume_exactly(self, found):
        for rank in found:
            both = rank["sharded, resumed"]
            assert differences(both["resumed"], both["whole"]) == []

    def test_a_checkpoint_of_one_process_resumes_only_elastically(self, found):
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

    def test_seconds_are_those_of_steps_before_and_after_resuming(self, tmp_path, monkeypatch):
        """Evaluations, listeners and checkpoints do not count."""
        now = [0.0]

        def taking(seconds, action):
            def timed(*arguments, **options):
                now[0] += seconds
                return action(*arguments, **options)

            return timed

        write = taking(1e6, checkpoint.write_checkpoint)
        monkeypatch.setattr("equipoise_papers.big.checkpoint.write_checkpoint", write)
        monkeypatch.setattr("equipoise_papers.stopwatch.time.perf_counter", lambda: now[0])
        for steps in (5, STEPS):
            model = network()
            run = train_big(
                model,
                data(steps=steps),
                taking(1, cross_entropy),
                torch.optim.SGD(model.parameters(), lr=0.1),
                checkpoint=tmp_path / "run.pt",
                checkpoint_every=2,
                listener=taking(1e2, lambda step, loss: None),
                evaluate=taking(1e4, lambda step: Evaluation(step, 0.0, None)),
                evaluate_at=(0, 3, 8, STEPS),
            )
            assert run.history.seconds == steps

    def test_another_kind_of_loss_is_refused(self):
        with pytest.raises(ValueError, match='loss_is must be "mean" or "sum", got \'average\''):
            train_big(network(), data(), cross_entropy, None, loss_is="average")

    def test_intervals_below_one_are_refused(self):
        with pytest.raises(ValueError, match="checkpoint_every must be at least 1, got 0"):
            train_big(network(), data(), cross_entropy, None, checkpoint_every=0)


class TestAttached:
    """What is attached to the optimizer, or named by ``also``, must be in a checkpoint."""

    @pytest.mark.parametrize("others", [{}, {"part": Refusing()}], ids=["none", "another"])
    def test_a_preconditioner_missing_in_also_is_refused(self, tmp_path, others):
        model = network()
        stepper = torch.optim.SGD(model.parameters(), lr=0.1)
        bnp = BNP(model).attach(stepper)
        stepper.register_step_pre_hook(lambda *_: None)  # has no state that could be known
        options = {"checkpoint": tmp_path / "run.pt"}
        with pytest.raises(
            ValueError, match=r'a BNP that also does not name.*also=\{"bnp": bnp\}'
        ):
            train_big(model, data(), cross_entropy, stepper, also=others, **options)
        also = {"bnp": bnp, **others}
        run = train_big(model, data(), cross_entropy, stepper, also=also, **options)
        assert len(run.history.losses) == STEPS

    def test_objects_with_slots_are_accepted(self, tmp_path):
        class Counter:
            __slots__ = ("count",)

            def __init__(self, count):
                self.count = count

            def state_dict(self):
                return {"count": self.count}

            def load_state_dict(self, state):
                self.count = state["count"]

        first, second = Counter(7), Counter(0)
        for counter in (first, second):
            model = network()
            stepper = torch.optim.SGD(model.parameters(), lr=0.1)
            also, path = {"counter": counter}, tmp_path / "run.pt"
            train_big(model, data(), cross_entropy, stepper, also=also, checkpoint=path)
        assert second.count == 7

    def test_a_preconditioner_without_also_is_refused(self, tmp_path):
        model = network()
        stepper = torch.optim.SGD(model.parameters(), lr=0.1)
        BNP(model).attach(stepper)
        with pytest.raises(ValueError, match=r'also=\{"bnp": bnp\}'):
            train_big(model, data(), cross_entropy, stepper, checkpoint=tmp_path / "run.pt")
