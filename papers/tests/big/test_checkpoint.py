"""A killed training resumes to the bit; checkpoints that do not fit are refused before a step."""

from __future__ import annotations

import copy
import errno
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, MultiStepLR, OneCycleLR, StepLR

from equipoise.training import cross_entropy
from equipoise_papers.big.checkpoint import (
    CheckpointError,
    previous,
    read_checkpoint,
    remove_checkpoint,
    write_checkpoint,
)
from equipoise_papers.big.train import train_big
from papers_support.big_kills import DEATHS, WRITES, last_checkpoint
from papers_support.big_problems import (
    BATCH,
    EVERY,
    OPTIMIZERS,
    STEPS,
    data,
    differences,
    generator,
    network,
    with_draws,
)
from papers_support.checkpoint_problems import (
    Noise,
    Refusing,
    Stubborn,
    Versioned,
    run,
    shifted,
    wider,
)
from support.forked_ranks import results_of

SCRIPT = Path(__file__).parents[1] / "papers_support" / "big_kills.py"
KILLS = [(size, name) for size, kills in DEATHS.items() for name in kills]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The final states of killed and uninterrupted trainings."""
    return results_of(SCRIPT, tmp_path_factory.mktemp("kills"))


class TestKilled:
    """By SIGKILL. Losses, evaluations and all states, random ones included, are compared."""

    @pytest.mark.parametrize(("size", "name"), KILLS)
    def test_resumes_to_the_bit(self, found, size, name):
        ends, codes = found[size, name]
        assert codes == [-9] * len(DEATHS[size][name])
        uninterrupted, _ = found[size, "uninterrupted"]
        for rank in range(size):
            assert ends[rank]["resumed at"] == (last_checkpoint(DEATHS[size][name]) or None)
            assert differences(*without_resumption(ends[rank], uninterrupted[rank])) == []

    @pytest.mark.parametrize("moment", WRITES)
    def test_resumes_to_the_bit_if_killed_while_writing(self, found, moment):
        (end,), codes, files = found[moment]
        assert codes == [-9]
        assert files == WRITES[moment][1]
        assert end["resumed at"] == WRITES[moment][2]
        assert differences(*without_resumption(end, found[1, "uninterrupted"][0][0])) == []

    def test_ranks_draw_their_own_noise(self, found):
        """Otherwise two processes would not test random states."""
        first, second = found[2, "uninterrupted"][0]
        assert differences(first["model"], second["model"]) == []
        assert not torch.equal(first["torch"], second["torch"])


def without_resumption(*ends):
    return [{name: value for name, value in end.items() if name != "resumed at"} for end in ends]


@pytest.fixture
def path(tmp_path):
    """A checkpoint after the last step."""
    file = tmp_path / "run.pt"
    run(file)
    return file


class TestResuming:
    def test_a_finished_training_takes_no_step(self, path):
        before = path.read_bytes()
        again = run(path, loss_fn=None)
        assert again.resumed_at == STEPS
        assert len(again.history.losses) == STEPS
        assert path.read_bytes() == before

    def test_a_finished_training_can_be_prolonged(self, path, tmp_path):
        longer = run(path, batches=data(steps=STEPS + 4))
        at_once = run(tmp_path / "other.pt", batches=data(steps=STEPS + 4))
        assert longer.resumed_at == STEPS
        assert longer.history.losses == at_once.history.losses

    def test_random_states_matter(self, tmp_path):
        """Otherwise the kills above would not test them."""
        runs = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            runs.append(run(None, model=network(dropout=0.3), loss_fn=with_draws))
        assert runs[0].history.losses != runs[1].history.losses

    def test_a_diverging_training_keeps_the_last_good_checkpoint(self, tmp_path):
        file, calls = tmp_path / "run.pt", []

        def loss_fn(model, batch):
            calls.append(1)
            return cross_entropy(model, batch) / (len(calls) != EVERY + 2)

        history = run(file, loss_fn=loss_fn).history
        assert history.diverged_at == EVERY + 1
        state = read_checkpoint(file)
        assert state["step"] == EVERY
        assert all(bool(value.isfinite().all()) for value in state["model"].values())

    def test_generators_that_modules_own_are_saved(self, tmp_path):
        whole = run(tmp_path / "whole.pt", model=nn.Sequential(network(), Noise()))
        file = tmp_path / "run.pt"
        run(file, model=nn.Sequential(network(), Noise()), batches=data(steps=EVERY))
        resumed = run(file, model=nn.Sequential(network(), Noise()))
        assert resumed.resumed_at == EVERY
        assert resumed.history.losses == whole.history.losses

    @pytest.mark.parametrize("kind", ["NAdam", "ASGD"])
    def test_states_keep_their_types(self, tmp_path, kind):
        """float32 for weights of float64; PyTorch would cast them in load_state_dict."""

        def ends(path, *lengths):
            for steps in lengths:
                model = network()
                stepper = getattr(torch.optim, kind)(model.parameters(), lr=0.01)
                train_big(model, data(steps=steps), cross_entropy, stepper, checkpoint=path)
            return model.state_dict(), stepper.state_dict()

        resumed, whole = ends(tmp_path / "a.pt", 5, STEPS), ends(tmp_path / "b.pt", STEPS)
        assert differences(list(resumed), list(whole)) == []

    def test_modules_are_told_which_version_wrote_their_state(self, tmp_path):
        models = [nn.Sequential(Versioned(4, 3, dtype=torch.float64)) for _ in range(2)]
        for model in models:
            run(tmp_path / "run.pt", model=model)
        assert differences(*(dict(model.state_dict()) for model in models)) == []


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
            ({"batches": shifted(inputs=1)}, "data 'checksum of inputs' was"),
            ({"batches": shifted(targets=1)}, "data 'checksum of targets' was"),
        ],
        ids=["layers", "type", "optimizer", "rate", "scheduler", "also", "batch", "augmentation",
             "steps", "inputs", "targets"],
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

    def test_one_bit_of_a_weight(self, path):
        """PyTorch reads it without an error."""
        raw = bytearray(path.read_bytes())
        raw[raw.find(read_checkpoint(path)["model"]["0.weight"].numpy().tobytes())] ^= 0x40
        path.write_bytes(raw)
        assert torch.load(path, weights_only=True)["step"] == STEPS
        with pytest.raises(CheckpointError, match=r"damaged or cut off"):
            run(path)

    def test_any_bit(self, path):
        """The file is refused, or read as it was written."""
        raw, whole_state = path.read_bytes(), read_checkpoint(path)
        refused = 0
        for place in torch.randint(8 * len(raw), (60,), generator=generator(0)).tolist():
            flipped = bytearray(raw)
            flipped[place // 8] ^= 1 << place % 8
            path.write_bytes(flipped)
            try:
                assert differences(read_checkpoint(path), whole_state) == []
            except CheckpointError:
                refused += 1
        assert refused > 10

    def test_a_file_of_something_else(self, path):
        torch.save({"weights": torch.zeros(2)}, path)
        message = r"is no checkpoint of a training.*this one and '[^']*run.pt.previous' away"
        with pytest.raises(CheckpointError, match=message):
            run(path)

    def test_a_folder(self, tmp_path):
        with pytest.raises(CheckpointError, match=r"is a folder\. Name a file in it"):
            run(tmp_path)

    def test_a_file_that_may_not_be_read(self, path, monkeypatch):
        def forbidden(path):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr("zipfile.ZipFile", forbidden)
        with pytest.raises(CheckpointError, match=r"cannot read.*Permission denied\. Let this"):
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

    def test_a_state_that_cannot_be_stored(self, tmp_path):
        part = Refusing()
        part.state_dict = lambda: {"function": lambda: None}
        with pytest.raises(CheckpointError, match=r"cannot write.*Can't .*Let state_dict\(\)"):
            run(tmp_path / "run.pt", also={"part": part}, loss_fn=None)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("also", [{}, {"part": Refusing()}], ids=["generator", "part"])
    def test_a_checkpoint_that_does_not_fit_leaves_the_model_alone(self, tmp_path, also):
        plain = also.keys() == set()
        run(tmp_path / "run.pt", also=also)
        model = nn.Sequential(*network(), *([Noise()] if plain else []))
        before = copy.deepcopy(model.state_dict())
        message = "'own generators' was 0, here it is 1" if plain else "cannot be restored"
        with pytest.raises(CheckpointError, match=message):
            run(tmp_path / "run.pt", also=also, model=model)
        assert differences(dict(model.state_dict()), dict(before)) == []

    def test_another_rate_of_one_group(self, tmp_path):
        def groups(rate, p):
            first, *rest = p
            return torch.optim.SGD([{"params": [first], "lr": rate}, {"params": rest}], lr=0.1)

        run(tmp_path / "run.pt", optimizer=partial(groups, 0.1))
        with pytest.raises(
            CheckpointError, match=r"option 'lr of group 0' was 0\.1, here it is 0.2"
        ):
            run(tmp_path / "run.pt", optimizer=partial(groups, 0.2))

    @pytest.mark.parametrize(
        ("schedule", "other", "message"),
        [
            (partial(StepLR, step_size=2, gamma=0.5), partial(StepLR, step_size=2, gamma=0.9),
             "schedule 'gamma' was 0.5, here it is 0.9"),
            (partial(MultiStepLR, milestones=[3]), partial(MultiStepLR, milestones=[4]),
             "schedule 'milestones' was"),
            (partial(OneCycleLR, max_lr=0.1, total_steps=20),
             partial(OneCycleLR, max_lr=0.1, total_steps=30), "schedule 'total_steps' was 20"),
        ],
        ids=["gamma", "milestones", "cycle"],
    )  # fmt: skip
    def test_another_schedule(self, tmp_path, schedule, other, message):
        run(tmp_path / "run.pt", scheduler=schedule)
        assert run(tmp_path / "run.pt", scheduler=schedule).resumed_at == STEPS
        with pytest.raises(CheckpointError, match=message):
            run(tmp_path / "run.pt", scheduler=other)


def test_removing_a_checkpoint_removes_the_one_before_it(path):
    assert previous(path).exists()
    remove_checkpoint(path)
    remove_checkpoint(path)
    assert list(path.parent.iterdir()) == []
