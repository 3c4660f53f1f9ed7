"""Losses leave their batches alone, and copies are made where a model would write to them."""

from __future__ import annotations

from collections import UserDict
from collections.abc import MutableMapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from equipoise.instrument.batches import tensors
from equipoise.instrument.kept_batches import OnCopies, copied, on_copies
from equipoise.instrument.recording.tracer import trace
from support.cases import each

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


@dataclass(frozen=True, slots=True)
class Pair:
    x: torch.Tensor
    weights: list[torch.Tensor]


class Fields(MutableMapping):
    """A mapping whose shallow copy shares what it holds."""

    def __init__(self, **held):
        self._held = held

    def __getitem__(self, name):
        return self._held[name]

    def __setitem__(self, name, value):
        self._held[name] = value

    def __delitem__(self, name):
        del self._held[name]

    def __iter__(self):
        return iter(self._held)

    def __len__(self):
        return len(self._held)


BATCHES = {
    "a tensor": lambda: ONES.clone(),
    "a pair": lambda: (ONES.clone(), torch.arange(3)),
    "a dictionary": lambda: {"x": ONES.clone(), "id": ["a", "b", "c"]},
    "a tokenizer's": lambda: UserDict(x=ONES.clone(), ids=["a"]),
    "a mapping": lambda: Fields(x=ONES.clone(), ids=["a"]),
    "a mapping in a pair": lambda: (UserDict(x=ONES.clone()), torch.arange(3)),
    "a data class": lambda: Pair(ONES.clone(), [ONES.clone()]),
    "a graph": lambda: Clonable(ONES.clone()),
    "a graph in a pair": lambda: (Clonable(ONES.clone()), torch.arange(3)),
    "a packed sequence": lambda: PACKED._replace(data=PACKED.data.clone()),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "with nan": lambda: torch.tensor([float("nan"), 1.0]),
    "without a value": lambda: torch.ones(2, device="meta"),
    "requiring a gradient": lambda: ONES.clone().requires_grad_(),
}


def held_by(batch):
    """Every tensor of a batch, also those inside of objects in tuples."""
    if isinstance(batch, tuple) and not hasattr(batch, "_fields"):
        return [tensor for part in batch for tensor in held_by(part)]
    if isinstance(batch, Pair):
        return [batch.x, *batch.weights]
    return tensors(batch)


@each("make", BATCHES.values(), ids=BATCHES)
def test_copies_have_other_tensors_of_the_same_kind(make):
    batch = make()
    again = copied(batch)
    assert type(again) is type(batch)
    pairs = list(zip(held_by(again), held_by(batch), strict=True))
    assert pairs
    for copy, original in pairs:
        assert copy is not original
        assert (copy.shape, copy.dtype, copy.layout) == (
            original.shape,
            original.dtype,
            original.layout,
        )
        assert (copy.requires_grad, copy.is_leaf) == (original.requires_grad, True)


def in_place(batch):
    held_by(batch)[0].mul_(2)


def through_data(batch):
    batch[0].data.mul_(2)


def into_the_dictionary(batch):
    batch["x"] = batch["x"] * 2


def another_key(batch):
    batch["hidden"] = batch["x"] * 2


def one_key_less(batch):
    del batch["ids"]


def into_the_graph(batch):
    batch.x = batch.x * 2


def wants_a_derivative(batch):
    batch.requires_grad_()


def content(batch):
    """What a model could see of a batch."""
    keys = list(batch) if isinstance(batch, dict | MutableMapping) else None
    return keys, [(t.to_dense().detach().clone(), t.requires_grad) for t in held_by(batch)]


def equal(one, other):
    (keys, mine), (other_keys, others) = one, other
    return keys == other_keys and all(
        torch.equal(x, y) and needs == also
        for (x, needs), (y, also) in zip(mine, others, strict=False)
    )


@each(
    ("write", "kind"),
    [
        (in_place, "a tensor"),
        (in_place, "a packed sequence"),
        (in_place, "a tokenizer's"),
        (in_place, "a mapping"),
        (in_place, "a mapping in a pair"),
        (in_place, "a data class"),
        (in_place, "a graph in a pair"),
        (in_place, "sparse"),
        (through_data, "a pair"),
        (into_the_dictionary, "a dictionary"),
        (into_the_dictionary, "a tokenizer's"),
        (into_the_dictionary, "a mapping"),
        (another_key, "a dictionary"),
        (one_key_less, "a tokenizer's"),
        (one_key_less, "a mapping"),
        (into_the_graph, "a graph"),
        (wants_a_derivative, "a tensor"),
    ],
)
def test_what_is_written_is_not_seen_again(write, kind):
    batch, seen = BATCHES[kind](), []

    def writing(model, given):
        seen.append(content(given))
        write(given)

    before = content(batch)
    for _ in range(3):
        OnCopies(writing)(nn.Identity(), batch)
    assert all(equal(now, before) for now in seen)
    assert equal(content(batch), before)
    # The twin: the batch itself is another one after the first pass.
    writing(nn.Identity(), batch)
    assert not equal(content(batch), before)


def test_a_loss_on_copies_is_not_wrapped_twice():
    loss = OnCopies(lambda model, batch: batch)
    assert on_copies(loss) is loss
    assert on_copies(loss.of) == loss


class Linked:
    """Two of these know each other, as a graph's nodes and the graph do."""

    def __init__(self, x):
        self.x, self.other = x, None


def test_objects_that_hold_each_other_are_copied_once():
    first, second = Linked(ONES.clone()), Linked(ONES.clone())
    first.other, second.other = second, first
    again = copied([first, second])
    assert again[0].other is again[1]
    assert again[1].other is again[0]
    assert again[0].x is not first.x


def test_what_holds_no_tensors_is_left_alone_and_so_are_modules():
    names, module = Linked("a"), nn.Linear(2, 2)
    same = copied((names, module, ONES))
    assert same[0] is names
    assert same[1] is module


def test_copies_are_no_operations_of_a_trace():
    layer = nn.Linear(2, 2)
    loss = on_copies(lambda model, x: model(x).sum())
    names = [node.name for node in trace(layer, ONES, loss).nodes]
    assert names == [node.name for node in trace(layer, ONES, loss.of).nodes]
    assert "clone" not in names
