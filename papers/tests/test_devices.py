"""Trainings run where the user says, and on the CPU otherwise."""

from __future__ import annotations

import pytest
import torch

from equipoise_papers.devices import DEVICE_VARIABLE, checked_device, moved, training_device
from equipoise_papers.reproduction.catalogue import EXPERIMENTS
from equipoise_papers.sweeps.cell import Cell


def test_the_named_device_is_taken_by_every_training(monkeypatch):
    monkeypatch.setenv(DEVICE_VARIABLE, "cpu")
    assert training_device(large=True) == torch.device("cpu")


@pytest.mark.parametrize("name", ["meta", "gpu", "mps"])
def test_what_is_neither_cpu_nor_a_gpu_is_refused(name):
    with pytest.raises(ValueError, match=f"{name}"):
        checked_device(name)


def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"'cuda:99' is not there.*Leave --device out"):
        checked_device("cuda:99")


def test_batches_move_in_their_order():
    batches = [(torch.full((2,), float(n)), torch.tensor([n, n])) for n in range(3)]
    found = list(moved(batches, torch.device("cpu")))
    assert [int(y[0]) for _, y in found] == [0, 1, 2]


def kinds():
    """One cell of every kind, of the smallest scale and of the paper's."""
    found = {}
    for scale in ("smoke", "paper"):
        for experiment in EXPERIMENTS.values():
            for cell in experiment.cells(scale):
                found.setdefault((scale, type(cell), getattr(cell, "task", "")), cell)
    return found


def test_every_training_honours_the_named_device(monkeypatch):
    """A training is what takes steps; what takes none stays on the CPU."""
    monkeypatch.setenv(DEVICE_VARIABLE, "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    # The photographs' number, which their excerpt needs, is not to be had.
    cells = {key: cell for key, cell in kinds().items() if "fine-grained" not in key}
    # Timings name their device in a field: it is what they time.
    cells = {key: cell for key, cell in cells.items() if not key[1].__name__.startswith("Timed")}
    trainings = [cell for cell in cells.values() if cell.excerpt(1) is not None]
    assert len({type(cell) for cell in trainings}) >= 9
    assert {cell.runs_on().type for cell in trainings} == {"cuda"}
    others = [cell for cell in cells.values() if cell.excerpt(1) is None]
    assert {cell.runs_on().type for cell in others} == {"cpu"}


def test_an_excerpt_is_the_beginning_of_its_training():
    for (scale, kind, task), cell in kinds().items():
        if task == "fine-grained" or (few := cell.excerpt(1)) is None:
            continue
        # Kinds that look at a training in their own ways begin like the training itself.
        training = kind.__mro__[kind.__mro__.index(Cell) - 1]
        assert isinstance(few.cell, training)
        assert few.steps >= (1 if scale == "smoke" else 10)
        assert few.cell != cell or few.steps == 1
