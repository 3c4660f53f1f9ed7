"""Trainings run where the user says, and on the CPU otherwise."""

from __future__ import annotations

import pytest
import torch

from equipoise_papers.devices import DEVICE_VARIABLE, checked_device, moved, training_device


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
