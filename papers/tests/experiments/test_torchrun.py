"""Under torchrun each cell is one training over all ranks, which survives a killed one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from equipoise_papers.experiments.torchrun import _kept_at, all_ranks, checkpoint_path
from equipoise_papers.reproduction.catalogue import EXPERIMENTS
from equipoise_papers.reproduction.folders import cell_store
from equipoise_papers.reproduction.reproduce import reproduce
from papers_support.toy_big_experiment import FATAL_STEP, Fit, experiment, fit
from support.forked_ranks import printed_by

SCRIPT = Path(__file__).parents[1] / "papers_support" / "toy_big_experiment.py"


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """What two ranks print and leave when one of them is killed and torchrun starts both anew.

    Ranks are forks of torchrun, which is one of a server: five starts of Python take 12 s more.
    """
    folder = tmp_path_factory.mktemp("torchrun")
    launcher = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    command = ["reproduce", "toy.big", "--scale", "smoke", "--out", str(folder / "out")]
    printed = printed_by(
        SCRIPT.with_name("forking_torchrun.py"),
        folder,
        *(*launcher, str(SCRIPT), *command),
        environment={"OMP_NUM_THREADS": "1", "TOY_NOTES": str(folder), "TOY_FATAL": "yes"},
    )
    return printed, folder


def test_records_are_those_of_one_process(done):
    _, folder = done
    store = cell_store(experiment(), folder / "out")
    for cell in (Fit(0), Fit(1)):
        assert store.load(cell).record.losses == pytest.approx(fit(cell).losses, rel=1e-10)


def test_both_ranks_train_and_go_on_from_the_checkpoint(done):
    _, folder = done
    notes = (folder / "notes").read_text().splitlines()
    last = (FATAL_STEP - 1) // 2 * 2
    assert sorted(notes) == [
        "rank 0 of 2, cell 0, from None",
        f"rank 0 of 2, cell 1, from {last}",
        "rank 1 of 2, cell 0, from None",
        f"rank 1 of 2, cell 1, from {last}",
    ]


def test_rank_0_alone_reports(done):
    printed, folder = done
    assert printed.count("toy.big holds same setting, at scale smoke") == 1
    assert (folder / "out" / "toy.big" / "smoke" / "verdict.json").exists()


def test_checkpoints_of_finished_cells_are_gone(done):
    _, folder = done
    assert list((folder / "out").rglob("*.pt*")) == []


@pytest.fixture
def torchrun(monkeypatch):
    """As if torchrun had started this process alone."""
    monkeypatch.setattr("equipoise_papers.reproduction.compute.under_torchrun", lambda: True)


def toy(monkeypatch, **changes):
    made = experiment(**changes)
    monkeypatch.setitem(EXPERIMENTS, made.name, made)
    return made


def test_small_trainings_are_refused(torchrun, monkeypatch, tmp_path):
    toy(monkeypatch, big=False)
    refused = pytest.raises(ValueError, match=r"toy.big are small trainings.*Leave torchrun")
    with all_ranks(), refused:
        reproduce("toy.big", scale="smoke", out=tmp_path)


def test_ranks_that_have_not_joined_are_refused(torchrun, monkeypatch, tmp_path):
    """Each would compute everything, and write over what the others wrote."""
    toy(monkeypatch)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="several processes, which have not joined"):
        reproduce("toy.big", scale="smoke", out=tmp_path)


def test_a_cell_that_fails_ends_all_and_is_tried_again(torchrun, monkeypatch, tmp_path):
    trouble = [ZeroDivisionError("no luck")]

    def unlucky(cell):
        if cell.seed == 1 and trouble:
            raise trouble.pop()
        return fit(cell)

    store = cell_store(toy(monkeypatch), tmp_path)
    monkeypatch.setattr(Fit, "run", unlucky)
    with (
        all_ranks(),
        pytest.raises(ChildProcessError, match=r"Fit\(seed=1\) failed on rank 0: Zero.*repeat"),
    ):
        reproduce("toy.big", scale="smoke", out=tmp_path)
    assert store.finished(Fit(0)) is not None
    with all_ranks():
        assert reproduce("toy.big", scale="smoke", out=tmp_path).panels[0].finished == 2


def test_another_number_of_ranks_names_the_file_to_delete(torchrun, monkeypatch, tmp_path):
    store = cell_store(toy(monkeypatch), tmp_path)
    path = tmp_path / "toy.big" / "checkpoints" / f"{store.path(Fit(0)).stem}.pt"

    def once(cell):
        with _kept_at(path):
            return fit(cell)

    once(Fit(0))
    torch.save(torch.load(path, weights_only=True) | {"ranks": 2}, path)
    message = rf"of 2 ranks, here are 1.*Finished cells are stored.*or delete '{path}' first\.$"
    with all_ranks(), pytest.raises(ChildProcessError, match=message):
        reproduce("toy.big", scale="smoke", out=tmp_path)
    path.unlink()
    with all_ranks():
        assert reproduce("toy.big", scale="smoke", out=tmp_path).panels[0].finished == 2


def test_cells_have_checkpoints_of_their_own(torchrun, monkeypatch, tmp_path):
    paths = []

    def watched(cell):
        paths.append(checkpoint_path())
        return fit(cell)

    toy(monkeypatch)
    monkeypatch.setattr(Fit, "run", watched)
    with all_ranks():
        reproduce("toy.big", scale="smoke", out=tmp_path)
    assert {path.parent for path in paths} == {tmp_path / "toy.big" / "checkpoints"}
    assert len(set(paths)) == 2


def test_outside_torchrun_there_is_no_checkpoint_path():
    assert checkpoint_path() is None
