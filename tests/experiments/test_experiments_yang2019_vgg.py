"""Sweeps of VGG19: a cell is what it says, scores are medians and maxima, claims can fail."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.data import Samples
from equipoise.experiments.style import empty_figure, house_style
from equipoise.experiments.yang2019 import fig5, fig6, vgg_sweep
from equipoise.experiments.yang2019.vgg_scores import Scores, checks, matrix, scores
from equipoise.experiments.yang2019.vgg_sweep import Accuracies, Cell, cells, network, run
from equipoise.records import from_plain, to_plain

TINY = Cell("digits", 8, 2, 16, 2, (1, 3), 0.3, False, 60, 0.05, 0.5, 0.1, 3)
FIGURES = {"fig5": fig5, "fig6": fig6}


class TestRun:
    def test_the_same_cell_gives_the_same_record_and_leaves_the_global_state_alone(self):
        before = torch.get_rng_state()
        first = run(TINY)
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(99)
        assert run(TINY) == first
        assert from_plain(Accuracies, to_plain(first)) == first

    def test_accuracies_are_those_of_a_plain_training_loop(self):
        record = run(TINY)
        images, x, y = vgg_sweep._images("digits", 8)
        model = network(TINY, 1, 10)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
        shares, after = [], []
        for inputs, labels in images.batches(16, 6, torch.Generator().manual_seed(3)):
            logits = model(inputs)
            shares.append(float((logits.argmax(1) == labels).float().mean()))
            optimizer.zero_grad()
            F.cross_entropy(logits, labels).backward()
            optimizer.step()
            model.eval()
            after.append(float((model(x[:60]).argmax(1) == y[:60]).float().mean()))
            model.train()
        assert record.train == pytest.approx((np.mean(shares[:2]), np.mean(shares[4:])))
        assert record.validation == pytest.approx((after[1], after[5]))

    def test_vgg19_has_the_cells_beta_and_eps_in_every_norm(self):
        model = network(TINY, 1, 10)
        norms = [module for module in model if isinstance(module, nn.BatchNorm2d)]
        assert len(norms) + sum(isinstance(module, nn.Linear) for module in model) == 17
        assert all((norm.eps, norm.momentum) == (0.1, 0.3) for norm in norms)
        assert all(bool((norm.bias == 0.5).all()) for norm in norms)

    def test_an_eps_of_zero_is_pytorchs_default(self):
        model = network(dataclasses.replace(TINY, eps=0.0), 1, 10)
        assert {m.eps for m in model if isinstance(m, nn.BatchNorm2d)} == {nn.BatchNorm2d(1).eps}

    def test_settings_of_a_seed_share_weights_and_batches(self):
        """Differences between settings are then not differences between starting points."""
        one, other = network(TINY, 1, 10), network(dataclasses.replace(TINY, beta=0.0), 1, 10)
        weights = [m.weight for m in one if isinstance(m, nn.Conv2d)]
        others = [m.weight for m in other if isinstance(m, nn.Conv2d)]
        assert len(weights) == 16
        assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))

    def test_divergence_is_a_record_of_zeros(self):
        record = run(dataclasses.replace(TINY, rate=1e30))
        assert record.diverged_at is not None
        assert record.train[-1] == record.validation[-1] == 0

    def test_augmented_batches_are_other_images_with_the_same_labels(self):
        samples = Samples("ramp", torch.rand(8, 3, 32, 32), torch.arange(8), 8)
        cpu = torch.device("cpu")
        cell = dataclasses.replace(TINY, batch_size=8, epoch=1, epochs=(1,))
        augmented = dataclasses.replace(cell, augmented=True)
        ((x, y),) = vgg_sweep._batches(cell, samples, cpu)
        ((z, labels),) = vgg_sweep._batches(augmented, samples, cpu)
        assert torch.equal(y, labels)
        assert z.shape == x.shape
        assert not torch.equal(x, z)


class TestCells:
    def test_the_papers_grid(self):
        paper = cells("paper")
        assert {cell.rate for cell in paper} == {0.001, 0.01, 0.02, 0.05, 0.1, 0.2}
        assert (
            {cell.beta for cell in paper}
            == {cell.eps for cell in paper}
            == {0, 0.05, 0.1, 0.2, 0.5, 1, 2}
        )
        assert {(c.data, c.width, c.norm_momentum, c.augmented, c.epochs) for c in paper} == {
            ("cifar100", 64, nn.BatchNorm2d(1).momentum, True, (1, 4, 10, 20, 40, 80))
        }
        assert len(paper) == len(set(paper)) == 6 * 7 * 7 * 8

    @pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
    def test_fig_6_needs_no_cell_of_its_own(self, scale):
        assert set(fig6.EXPERIMENT.cells(scale)) < set(fig5.EXPERIMENT.cells(scale))
        assert fig6.EXPERIMENT.filed_under == fig5.EXPERIMENT.filed_under

    def test_small_is_a_piece_of_the_papers_grid(self):
        small, paper = cells("small"), cells("paper")
        for name in ("rate", "beta", "eps", "seed"):
            assert {getattr(c, name) for c in small} <= {getattr(c, name) for c in paper}


def made_up(cells_of, accuracy):
    """Records with the accuracy that a function gives a cell after an epoch."""
    found = {}
    for cell in cells_of:
        values = tuple(accuracy(cell, epoch) for epoch in cell.epochs)
        found[cell] = Accuracies(values, tuple(0.9 * value for value in values), None)
    return found


def as_claimed(cell, epoch):
    """β and ε above 0 are 10 points ahead in epoch 1 each, and less and less later."""
    helped = 0.1 * ((0 < cell.beta < 1) + (0 < cell.eps < 1)) / epoch
    return 0.4 + 0.05 * math.log2(epoch) + helped + 0.001 * cell.seed - 0.1 * (cell.rate > 0.05)


def as_not_claimed(cell, epoch):
    return as_claimed(cell, epoch) - 0.5 * (cell.beta > 0 or cell.eps > 0)


class TestScores:
    def test_a_combination_is_scored_by_its_median_seed(self):
        found = Scores((0, 1, 2), {(0.1, 0.0, 0.0): (10.0, 90.0, 30.0)})
        assert found.median((0.1, 0.0, 0.0)) == 30
        assert found.median((0.1, 0.0, 0.0), seeds=[1]) == 90

    def test_matrices_are_maximal_over_what_they_do_not_show(self):
        results = made_up(cells("small"), lambda cell, epoch: cell.rate + cell.beta - cell.eps)
        rates, values, best = matrix(scores(results, "train", 1), "eps")
        assert rates == (0.001, 0.01, 0.05, 0.2)
        assert values == (0, 0.05, 0.2, 1)
        expected = 100 * (np.array(rates) + 1.0 - np.array(values)[:, None])
        np.testing.assert_allclose(best, expected)

    def test_held_out_choices_do_not_profit_from_noise(self):
        """The best of many noisy scores is too good; one chosen by other seeds is not."""
        noise = np.random.default_rng(0).standard_normal((400, 8))
        found = Scores(
            tuple(range(8)), {(float(i), 0.0, 0.0): tuple(row) for i, row in enumerate(noise)}
        )
        held_out = np.array(found.held_out(lambda setting: True))
        best = max(found.median(setting) for setting in found.accuracies)
        assert abs(held_out.mean()) < 4 / math.sqrt(8)
        assert best > 1

    def test_a_setting_without_all_seeds_is_left_out(self):
        results = made_up(cells("small"), as_claimed)
        del results[next(iter(results))]
        assert len(scores(results, "train", 1).accuracies) == 4**3 - 1


class TestVerdict:
    @pytest.mark.parametrize("name", FIGURES)
    def test_what_the_source_says_holds(self, name):
        experiment = FIGURES[name].EXPERIMENT
        verdict = experiment.judge(made_up(experiment.cells("small"), as_claimed))
        assert len(verdict.checks) == 2 * 2 * 3
        assert all(check.holds for check in verdict.checks)
        assert verdict.outcome == "partly"
        assert "CIFAR-100" in verdict.left_out[0]

    @pytest.mark.parametrize("name", FIGURES)
    def test_the_opposite_does_not(self, name):
        experiment = FIGURES[name].EXPERIMENT
        verdict = experiment.judge(made_up(experiment.cells("small"), as_not_claimed))
        assert not any(check.holds for check in verdict.checks)

    def test_leads_by_chance_are_as_rare_as_they_should_be(self):
        """Without any effect, a test at 95 % holds in one case of twenty."""
        noise, draws, lucky = np.random.default_rng(0), 60, 0
        for _ in range(draws):
            results = made_up(fig6.cells("small"), lambda cell, epoch: noise.normal(0.5, 0.1))
            lucky += checks(results, early=1)[0].holds
        expected = 0.05 * draws
        assert lucky < expected + 4 * math.sqrt(expected)

    def test_fig_5_may_mix_what_fig_6_may_not(self):
        """Where only both together help, each alone does not."""

        def both(cell, epoch):
            return 0.4 + 0.2 * (cell.beta > 0 and cell.eps > 0) / epoch + 0.001 * cell.seed

        mixed = fig5.EXPERIMENT.judge(made_up(cells("small"), both)).checks
        alone = fig6.EXPERIMENT.judge(made_up(fig6.cells("small"), both)).checks
        assert all(check.holds for check in mixed)
        assert not any(check.holds for check in alone if "higher" in check.claim)

    @pytest.mark.parametrize("name", FIGURES)
    def test_smoke_is_computed_drawn_and_never_judged(self, name):
        experiment = FIGURES[name].EXPERIMENT
        results = {cell: experiment.run(cell) for cell in experiment.cells("smoke")[:4]}
        assert experiment.judge(results).outcome == "not judged"
        self.draw(experiment, results)

    @pytest.mark.parametrize("name", FIGURES)
    @pytest.mark.parametrize("finished", [1, None], ids=["one cell", "all cells"])
    def test_figures_are_drawn_from_any_records(self, name, finished):
        experiment = FIGURES[name].EXPERIMENT
        results = made_up(experiment.cells("small")[:finished], as_claimed)
        self.draw(experiment, results)

    @staticmethod
    def draw(experiment, results):
        with house_style():
            figure = empty_figure()
            experiment.draw(figure.subfigures(1, 1), results)
            figure.canvas.draw()
