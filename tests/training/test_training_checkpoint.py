"""A killed training goes on to the same bits; what does not fit is refused before any work."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path

import pytest
import torch
from big_kills import DEATHS, WRITES
from big_problems import BATCH, EVERY, OPTIMIZERS, STEPS, data, differences, network, with_draws
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from equipoise.preconditioners import BNP
from equipoise.training import (
    CheckpointError,
    cross_entropy,
    remove_checkpoint,
    train_big,
)
from equipoise.training.checkpoint import previous, read_checkpoint, write_checkpoint
from forked_ranks import results_of

SCRIPT = Path(__file__).with_name("big_kills.py")
STORIES = [(size, name) for size, stories in DEATHS.items() for name in stories]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What killed and undisturbed trainings left."""
    return results_of(SCRIPT, tmp_path_factory.mktemp("kills"))


class TestKilled:
    """By SIGKILL. Compared: losses, evaluations, and every state, random ones included."""

    @pytest.mark.parametrize(("size", "name"), STORIES)
    def test_ends_as_undisturbed(self, found, size, name):
        ends, codes = found[size, name]
        assert codes == [-9] * len(DEATHS[size][name])
        undisturbed, _ = found[size, "undisturbed"]
        for rank in range(size):
            assert differences(ends[rank], undisturbed[rank]) == []

    @pytest.mark.parametrize("moment", WRITES)
    def test_during_a_checkpoint_too(self, found, moment):
        (end,), codes, files = found[moment]
        assert codes == [-9]
        assert files == WRITES[moment][1]
        assert differences(end, found[1, "undisturbed"][0][0]) == []

    def test_ranks_draw_their_own_noise(self, found):
        """Otherwise two processes would say little about random states."""
        first, second = found[2, "undisturbed"][0]
        assert differences(first["model"], second["model"]) == []
        assert not torch.equal(first["torch"], second["torch"])


@pytest.fixture
def path(tmp_path):
    """A checkpoint after the last step."""
    file = tmp_path / "run.pt"
    run(file)
    return file


def run(
    path,
    *,
    model=None,
    optimizer=OPTIMIZERS["momentum"],
    batches=None,
    scheduler=None,
    loss_fn=cross_entropy,
    **options,
):
    model = network() if model is None else model
    stepper = optimizer(model.parameters())
    return train_big(
        model,
        batches or data(),
        loss_fn,
        stepper,
        scheduler=None if scheduler is None else scheduler(stepper),
        checkpoint=path,
        checkpoint_every=EVERY,
        **options,
    )


class Stubborn:
    """Something whose state is not plain."""

    def state_dict(self):
        return {"function": network}

    def load_state_dict(self, state):
        raise AssertionError


class TestResuming:
    def test_a_finished_training_takes_no_step(self, path):
        before = path.read_bytes()
        again = run(path, loss_fn=None)
        assert again.resumed_at == STEPS
        assert len(again.history.losses) == STEPS
        assert path.read_bytes() == before

    def test_a_finished_training_can_go_on_for_longer(self, path, tmp_path):
        longer = run(path, batches=data(steps=STEPS + 4))
        at_once = run(tmp_path / "other.pt", batches=data(steps=STEPS + 4))
        assert longer.resumed_at == STEPS
        assert longer.history.losses == at_once.history.losses

    def test_random_states_matter(self, tmp_path):
        """Without them the kills above would prove less."""
        runs = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            runs.append(run(None, model=network(dropout=0.3), loss_fn=with_draws))
        assert runs[0].history.losses != runs[1].history.losses

    def test_diverging_leaves_the_last_good_state(self, tmp_path):
        file, calls = tmp_path / "run.pt", []

        def loss_fn(model, batch):
            calls.append(1)
            return cross_entropy(model, batch) / (len(calls) != EVERY + 2)

        history = run(file, loss_fn=loss_fn).history
        assert history.diverged_at == EVERY + 1
        state = read_checkpoint(file)
        assert state["step"] == EVERY
        assert all(bool(value.isfinite().all()) for value in state["model"].values())

    def test_a_module_s_own_generator_counts(self, tmp_path):
        class Noise(nn.Module):
            def __init__(self):
                super().__init__()
                self.generator = torch.Generator().manual_seed(5)

            def forward(self, x):
                return x + torch.randn(x.shape, generator=self.generator, dtype=x.dtype)

        whole = run(tmp_path / "whole.pt", model=nn.Sequential(network(), Noise()))
        file = tmp_path / "run.pt"
        run(file, model=nn.Sequential(network(), Noise()), batches=data(steps=EVERY))
        resumed = run(file, model=nn.Sequential(network(), Noise()))
        assert resumed.resumed_at == EVERY
        assert resumed.history.losses == whole.history.losses


def wider():
    return nn.Sequential(nn.Linear(4, 3, dtype=torch.float64), nn.Tanh())


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"model": wider()}, r"tensor '0.weight' was float64\[6, 4\], here it is .*\[3, 4\]"),
            ({"model": network().float()}, "tensor '0.weight' was float64.*float32.*and 5 more"),
            ({"optimizer": OPTIMIZERS["adamw"]}, "optimizer was 'SGD', here it is 'AdamW'"),
            ({"optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-3)},
             r"option 'lr' was 0.05, here it is 0.1\. Repeat"),
            ({"scheduler": partial(LambdaLR, lr_lambda=float)}, "scheduler was None"),
            ({"also": {"average": Stubborn()}}, r"also was \[\], here it is \['average'\]"),
            ({"batches": data(batch_size=BATCH - 1)}, "data 'batch size' was 8, here it is 7"),
            ({"batches": data(transform=None)}, "data 'samples transformed' was yes"),
            ({"batches": data(steps=STEPS - 1)}, "is of step 12, beyond the 11 steps asked for"),
        ],
        ids=["layers", "type", "optimizer", "rate", "scheduler", "also", "batch", "augmentation",
             "steps"],
    )  # fmt: skip
    def test_another_training(self, path, options, message):
        before = path.read_bytes()
        with pytest.raises(CheckpointError, match=rf"run\.pt'.*{message}"):
            run(path, **options)
        assert path.read_bytes() == before

    @pytest.mark.parametrize("kept", [0, 100, 0.5, -1])
    def test_a_file_that_was_cut_off(self, path, kept):
        whole = path.read_bytes()
        size = int(kept * len(whole)) if isinstance(kept, float) else kept
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"damaged or cut off.*'[^']*run\.pt\.previous'"):
            run(path)
        path.unlink()
        assert run(path).resumed_at == 2 * EVERY

    def test_a_file_of_something_else(self, path):
        torch.save({"weights": torch.zeros(2)}, path)
        with pytest.raises(CheckpointError, match="is no checkpoint of a training"):
            run(path)

    def test_a_file_that_would_run_code(self, path):
        torch.save({"format": "equipoise.training/1", "step": Stubborn()}, path)
        with pytest.raises(CheckpointError, match="damaged"):
            run(path)

    def test_a_folder_that_cannot_be_written(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(CheckpointError, match="cannot write the checkpoint"):
            run(tmp_path / "file" / "run.pt", loss_fn=None)

    def test_a_full_disk_keeps_the_last_one(self, path, monkeypatch):
        def full(descriptor):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(CheckpointError, match=r"No space left.*was written before is still"):
            write_checkpoint(path, {"step": 99})
        assert read_checkpoint(path)["step"] == STEPS
        assert [file.name for file in sorted(path.parent.iterdir())] == [
            "run.pt",
            "run.pt.previous",
        ]

    def test_a_state_that_could_not_be_read_again(self, tmp_path):
        with pytest.raises(CheckpointError, match=r"cannot be read again: .*Let state_dict\(\)"):
            run(tmp_path / "run.pt", also={"stubborn": Stubborn()}, loss_fn=None)
        assert not (tmp_path / "run.pt").exists()

    def test_a_preconditioner_that_would_be_forgotten(self, tmp_path):
        model = network()
        stepper = torch.optim.SGD(model.parameters(), lr=0.1)
        BNP(model).attach(stepper)
        with pytest.raises(ValueError, match=r'also=\{"bnp": bnp\}'):
            train_big(model, data(), cross_entropy, stepper, checkpoint=tmp_path / "run.pt")

    def test_checkpoints_that_would_never_come(self):
        with pytest.raises(ValueError, match="checkpoint_every must be at least 1, got 0"):
            train_big(network(), data(), cross_entropy, None, checkpoint_every=0)


def test_removing_a_checkpoint_removes_the_one_before_it(path):
    assert previous(path).exists()
    remove_checkpoint(path)
    remove_checkpoint(path)
    assert list(path.parent.iterdir()) == []
