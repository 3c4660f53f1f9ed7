"""Trainings with and without BNP: cells are pure, methods and networks are the paper's."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from equipoise.records import from_plain, to_plain
from equipoise_papers.lange2022.methods import METHODS, build
from equipoise_papers.lange2022.training import Run, Training


class TestCells:
    def test_a_cell_gives_the_same_run_whenever_it_runs(self):
        cell = Training("fc", "digits", "bnp_paper", 6, 20, 0.1, 0, 2)
        first = cell.run()
        torch.manual_seed(99)
        second = cell.run()
        assert dataclasses.replace(first, step_seconds=0) == dataclasses.replace(
            second, step_seconds=0
        )
        assert [e.step for e in first.evaluations] == [10, 20]
        assert from_plain(Run, to_plain(first)) == first

    def test_the_global_random_state_is_left_alone(self):
        before = torch.get_rng_state()
        Training("fc", "digits", "vanilla", 6, 3, 0.1, 0, 1).run()
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize("method", METHODS)
    def test_every_method_takes_steps(self, method):
        found = Training("fc", "digits", method, 6, 4, 0.01, 0, 1).run()
        assert math.isfinite(found.loss)
        assert 0 <= found.accuracy <= 1

    @pytest.mark.parametrize("network", ["fc", "cnn5"])
    @pytest.mark.parametrize("method", ["bn", "renorm"])
    def test_batch_norm_refuses_single_samples(self, network, method):
        found = Training(network, "digits", method, 1, 4, 0.01, 0, 1).run()
        assert "more than 1 value per channel" in found.refused
        assert found.loss == math.inf

    def test_divergence_is_a_record(self):
        found = Training("fc", "digits", "vanilla", 6, 50, 1e30, 0, 1).run()
        assert found.diverged_at is not None
        assert math.isnan(found.accuracy)

    def test_methods_share_the_order_of_the_data(self):
        """The plain network and BNP start from the same weights on the same batch."""
        losses = [
            Training("fc", "digits", method, 6, 1, 0.1, 3, 1).run().curve.losses[0]
            for method in ("vanilla", "bnp", "bnp_paper", "adam")
        ]
        assert len(set(losses)) == 1

    def test_networks_are_the_papers(self):
        fc = build("fc", METHODS["bn"], 60, 100, torch.Size((1, 28, 28)))
        assert [m.out_features for m in fc if isinstance(m, torch.nn.Linear)] == [
            100,
            100,
            100,
            10,
        ]
        norm = fc.get_submodule("norm1")
        assert (norm.eps, norm.momentum) == (1e-3, 0.01)
        names = [name for name, _ in fc.named_children()]
        assert names.index("norm1") > names.index("act1")
        cnn = build("cnn5", METHODS["vanilla"], 60, 100, torch.Size((3, 32, 32)))
        filters = [m.out_channels for m in cnn if isinstance(m, torch.nn.Conv2d)]
        assert filters == [32, 64, 32]
