"""Leaves and copies of containers, against PyTorch's own."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch.utils import _pytree as pytree

from equipoise.instrument import trees

Pair = namedtuple("Pair", "first second")


@dataclass
class Plain:
    x: torch.Tensor


X, Y = torch.ones(2), torch.zeros(3)
CONTAINERS = [
    (),
    None,
    X,
    [X, (Y, None), {"a": X, "b": [1, 2.0, "c", True]}],
    Pair(X, [Y]),
    OrderedDict(b=X, a=(Y,)),
    torch.return_types.max((X, Y)),
    (torch.Size([2, 3]), slice(1), torch.float32, Plain(X)),
    {1: {}, 2: [[], ()]},
]


@pytest.mark.parametrize("values", CONTAINERS, ids=[type(c).__name__ for c in CONTAINERS])
class TestAsPytree:
    def test_leaves(self, values):
        ours, theirs = trees.leaves(values), pytree.tree_leaves(values)
        assert len(ours) == len(theirs)
        assert all(a is b for a, b in zip(ours, theirs, strict=True))

    def test_replaced(self, values):
        kinds = torch.Tensor, bool
        ours = trees.replaced(kinds, lambda leaf: ("changed", id(leaf)), values)
        theirs = pytree.tree_map_only(kinds, lambda leaf: ("changed", id(leaf)), values)
        assert str(ours) == str(theirs)
        assert type(ours) is type(theirs)
