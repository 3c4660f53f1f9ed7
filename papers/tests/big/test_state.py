"""Copies of states."""

from __future__ import annotations

from collections import Counter, defaultdict, namedtuple

import torch

from equipoise_papers.big.state import full_copy
from papers_support.big_problems import differences


def test_copies_have_the_types_of_the_originals():
    pair = namedtuple("pair", "a b")
    state = {
        "counts": Counter({3: 2}),
        "default": defaultdict(int, {1: torch.ones(1)}),
        "pair": pair(torch.zeros(2), [1, (2,)]),
    }
    copied = full_copy(state)
    assert differences(copied, state) == []
    assert [type(value) for value in copied.values()] == [Counter, defaultdict, pair]
    assert copied["default"][1] is not state["default"][1]
