"""Layouts describe a step, also of more ranks than tests start."""

from __future__ import annotations

import pytest

from equipoise import layers
from equipoise_papers.big.distributed import Ranks
from equipoise_papers.big.layout import Layout, layout
from papers_support.big_problems import network


class TestLayout:
    @pytest.mark.parametrize(
        ("plan", "says"),
        [
            (Layout("DDP", (4, 4), "none", "sum"), "Gradients are sums over all 8."),
            (Layout("DDP", (2,) * 4, "per group"), "within groups of ranks: statistics over a gr"),
            (Layout("DDP", (4, 4), "mixed"), "of several kinds: statistics over parts of the 8"),
        ],
        ids=["sums", "groups", "mixed"],
    )
    def test_says_what_a_step_is(self, plan, says):
        assert says in str(plan)

    def test_groups_of_some_ranks(self, monkeypatch):
        monkeypatch.setattr("torch.distributed.get_world_size", lambda group: 2)
        norm = layers.SynchronisedBatchNorm1d(2, process_group=object())
        assert layout(norm, 8, Ranks(0, 4), engine="DDP").statistics == "per group"

    def test_more_ranks_than_samples_are_refused(self):
        with pytest.raises(ValueError, match="a batch of 2 samples is too small for 3 ranks"):
            layout(network(), 2, Ranks(0, 3), engine="DDP")
