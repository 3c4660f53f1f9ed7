"""Losses leave their batches alone, and copies are made where a model would write to them."""

from __future__ import annotations

from collections import UserDict

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from equipoise.instrument.batches import tensors
from equipoise.instrument.kept_batches import KeepingBatch, OnCopies, copied

ONES = torch.ones(3, 2)
PACKED = pack_padded_sequence(torch.ones(2, 3, 1), [3, 2], batch_first=True)


class Clonable:
    """What PyTorch Geometric's graphs can do."""

    def __init__(self, x):
        self.x = x

    def keys(self):
        return ["x"]

    def __getitem__(self, name):
        return getattr(self, name)

    def clone(self):
        return Clonable(self.x.clone())


BATCHES = {
    "a tensor": lambda: ONES.clone(),
    "a pair": lambda: (ONES.clone(), torch.arange(3)),
    "a dictionary": lambda: {"x": ONES.clone(), "id": ["a", "b", "c"]},
    "a tokenizer's": lambda: UserDict(x=ONES.clone()),
    "a graph": lambda: Clonable(ONES.clone()),
    "a packed sequence": lambda: PACKED._replace(data=PACKED.data.clone()),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "with nan": lambda: torch.tensor([float("nan"), 1.0]),
    "without a value": lambda: torch.ones(2, device="meta"),
    "requiring a gradient": lambda: ONES.clone().requires_grad_(),
}


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
class TestCopies:
    def test_have_other_tensors_of_the_same_kind(self, make):
        batch = make()
        again = copied(batch)
        assert type(again) is type(batch)
        pairs = list(zip(tensors(again), tensors(batch), strict=True))
        assert pairs
        for copy, original in pairs:
            assert copy is not original
            assert (copy.shape, copy.dtype, copy.layout) == (
                original.shape,
                original.dtype,
                original.layout,
            )
            assert (copy.requires_grad, copy.is_leaf) == (original.requires_grad, True)

    def test_are_made_once_for_a_loss_that_only_reads(self, make):
        seen, batch = [], make()
        loss = KeepingBatch(lambda model, given: seen.append(given))
        for _ in range(3):
            loss(nn.Identity(), batch)
        assert loss.writes is False
        assert [given is batch for given in seen] == [False, True, True]


def in_place(batch):
    tensors(batch)[0].mul_(2)


def through_data(batch):
    batch[0].data.mul_(2)


def into_the_dictionary(batch):
    batch["x"] = batch["x"] * 2


def another_key(batch):
    batch["hidden"] = batch["x"] * 2


def into_the_graph(batch):
    batch.x = batch.x * 2


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (in_place, "a tensor"),
        (in_place, "a packed sequence"),
        (in_place, "a tokenizer's"),
        (in_place, "sparse"),
        (through_data, "a pair"),
        (into_the_dictionary, "a dictionary"),
        (into_the_dictionary, "a tokenizer's"),
        (another_key, "a dictionary"),
        (into_the_graph, "a graph"),
    ],
)
def test_what_is_written_is_not_seen_again(write, kind):
    batch, first, seen = BATCHES[kind](), [], []

    def writing(model, given):
        seen.append([t.to_dense().clone() for t in tensors(given)])
        write(given)

    before = [t.to_dense().clone() for t in tensors(batch)]
    for loss in (KeepingBatch(writing), OnCopies(writing)):
        for _ in range(3):
            loss(nn.Identity(), batch)
    first = seen[0]
    assert all(len(s) == len(first) and all(map(torch.equal, s, first)) for s in seen)
    assert all(map(torch.equal, before, [t.to_dense() for t in tensors(batch)]))
    # The twin: without either the second pass sees what the first has written.
    for _ in range(2):
        writing(nn.Identity(), batch)
    again = seen[-1]
    assert len(again) != len(first) or not all(map(torch.equal, again, first))
