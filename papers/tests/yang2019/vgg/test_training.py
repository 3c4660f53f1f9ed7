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
from equipoise.records import from_plain, to_plain
from equipoise_papers.experiments.style import empty_figure, house_style
from equipoise_papers.judging import difference
from equipoise_papers.yang2019.vgg import fig5, fig6, training
from equipoise_papers.yang2019.vgg.matrices import matrix
from equipoise_papers.yang2019.vgg.scores import Scores, best_accuracies, moment, scores
from equipoise_papers.yang2019.vgg.training import Accuracies, VGGTraining, cells, network

# Of the eight seeds of scale small.
MIDDLE = 3.5
TINY = VGGTraining("digits", 8, 2, 16, 2, (1, 3), 0.3, False, 60, 0.05, 0.5, 0.1, 3)
FIGURES = {"fig5": fig5, "fig6": fig6}


class TestRun:
    def test_the_same_cell_gives_the_same_record_and_leaves_the_global_state_alone(self):
        before = torch.get_rng_state()
        first = TINY.run()
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(99)
        assert TINY.run() == first
        assert from_plain(Accuracies, to_plain(first)) == first

    def test_accuracies_are_those_of_a_plain_training_loop(self):
        record = TINY.run()
        images, x, y = training._images("digits", 8)
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

    def test_combinations_of_a_seed_share_weights_and_batches(self):
        """Differences between settings are then not differences between starting points."""
        one, other = network(TINY, 1, 10), network(dataclasses.replace(TINY, beta=0.0), 1, 10)
        weights = [m.weight for m in one if isinstance(m, nn.Conv2d)]
        others = [m.weight for m in other if isinstance(m, nn.Conv2d)]
        assert len(weights) == 16
        assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))

    def test_divergence_is_a_record_of_zeros(self):
        record = dataclasses.replace(TINY, rate=1e30).run()
        assert record.diverged_at is not None
        assert record.train[-1] == record.validation[-1] == 0

    def test_augmented_batches_are_other_images_with_the_same_labels(self):
        samples = Samples("ramp", torch.rand(8, 3, 32, 32), torch.arange(8), 8)
        cpu = torch.device("cpu")
        cell = dataclasses.replace(TINY, batch_size=8, epoch=1, epochs=(1,))
        augmented = dataclasses.replace(cell, augmented=True)
        ((x, y),) = training._batches(cell, samples, cpu)
        ((z, labels),) = training._batches(augmented, samples, cpu)
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

    def test_a_network_that_diverged_is_as_good_as_guessing(self):
        """As in Fig. 2; from then on only, and by the number of classes."""
        cell = next(cell for cell in cells("small"))
        found = Accuracies((0.5, 0.6, 0.0, 0.0), (0.4, 0.5, 0.0, 0.0), diverged_at=20)
        assert self.course(cell, found) == [40, 50, 10, 10]
        assert self.course(cell, dataclasses.replace(found, diverged_at=None)) == [40, 50, 0, 0]
        cifar = next(cell for cell in cells("paper"))
        found = Accuracies((0.5,) * 6, (0.4,) * 6, diverged_at=390)
        assert self.course(cifar, found) == [40, *[1] * 5]

    @staticmethod
    def course(cell, record):
        combination = (cell.rate, cell.beta, cell.eps)
        by_epoch = [scores({cell: record}, "validation", epoch) for epoch in cell.epochs]
        return [found.median(combination) for found in by_epoch]

    def test_a_combination_without_all_seeds_is_left_out(self):
        results = made_up(cells("small"), as_claimed)
        del results[next(iter(results))]
        assert len(scores(results, "train", 1).accuracies) == 4**3 - 1


def without_effect(noise, seeds, shared):
    """Fig. 6's scores where β does nothing; settings may differ in ways that seeds share."""
    return Scores(
        tuple(range(seeds)),
        {
            (rate, beta, 0.0): tuple(noise.normal(shared * noise.normal(), 1, seeds))
            for rate in range(4)
            for beta in range(4)
        },
    )


class TestChance:
    """More settings have β > 0 than β = 0: what that does where β has no effect."""

    DRAWS = 400

    def test_choosing_by_other_seeds_is_unbiased(self):
        noise = np.random.default_rng(0)
        drawn = [without_effect(noise, 3, shared=0) for _ in range(self.DRAWS)]
        gaps = [difference(*best_accuracies(found, "beta")).mean for found in drawn]
        assert abs(np.mean(gaps)) < 4 * np.std(gaps) / math.sqrt(self.DRAWS)

    def test_choosing_by_all_seeds_is_not(self):
        noise = np.random.default_rng(0)
        drawn = [without_effect(noise, 3, shared=0) for _ in range(self.DRAWS)]
        gaps = [self.best(found, zero=False) - self.best(found, zero=True) for found in drawn]
        assert np.mean(gaps) > 4 * np.std(gaps) / math.sqrt(self.DRAWS)

    @staticmethod
    def best(found, *, zero):
        return max(found.median(s) for s in found.accuracies if (s[1] == 0) == zero)

    @pytest.mark.parametrize(
        ("seeds", "shared", "percent"), [(3, 0, 9), (8, 0, 14), (3, 1, 22), (8, 1, 39)]
    )
    def test_wrong_decisions_are_as_frequent_as_is_said(self, seeds, shared, percent):
        noise = np.random.default_rng(1)
        wrong = [
            difference(*best_accuracies(without_effect(noise, seeds, shared), "beta")).above()
            is True
            for _ in range(self.DRAWS)
        ]
        expected = percent / 100
        error = math.sqrt(expected * (1 - expected) / self.DRAWS)
        assert abs(np.mean(wrong) - expected) < 4 * error
        assert f"{percent} %" in "".join(fig5.CHOICES)


class TestVerdict:
    @pytest.mark.parametrize("name", FIGURES)
    def test_what_the_source_says_holds(self, name):
        experiment = FIGURES[name].EXPERIMENT
        verdict = experiment.judge(made_up(experiment.cells("small"), as_claimed))
        assert len(verdict.checks) == 2 * 2 * 3
        assert all(check.holds for check in verdict.checks)
        assert sum(check.ours for check in verdict.checks) == 2 * 2
        assert verdict.fidelity == "stand-in data"
        assert "CIFAR-100" in verdict.left_out[0]

    @pytest.mark.parametrize("name", FIGURES)
    def test_the_opposite_does_not(self, name):
        experiment = FIGURES[name].EXPERIMENT
        verdict = experiment.judge(made_up(experiment.cells("small"), as_not_claimed))
        assert [check.holds for check in verdict.checks] == [False] * 12

    @pytest.mark.parametrize("name", FIGURES)
    def test_seeds_that_scatter_more_than_the_effect_decide_nothing(self, name):
        """Seeds that scatter by more than the effect neither bear a sentence out nor refute it."""
        experiment = FIGURES[name].EXPERIMENT
        # About as much harm as help; most of any seven seeds are helped, so that settings above 0
        # are chosen whichever seed is left out.
        helps = (-0.3, -0.25, -0.2, 0.1, 0.12, 0.14, 0.16, 0.2)

        def noisy(cell, epoch):
            return 0.5 + ((cell.beta > 0) + (cell.eps > 0)) * helps[cell.seed]

        verdict = experiment.judge(made_up(experiment.cells("small"), noisy))
        assert {check.holds for check in verdict.checks} == {None}
        assert verdict.outcome == "undecided"

    @pytest.mark.parametrize(("harm", "holds"), [(0.01, True), (0.033, None), (0.08, False)])
    def test_harm_is_judged_by_a_margin_of_three_points(self, harm, holds):
        def harmful(cell, epoch):
            return (
                0.7 - harm * (cell.beta > 0) * (1 + 0.2 * (cell.seed - MIDDLE)) + 0.01 * cell.seed
            )

        checks = fig6.EXPERIMENT.judge(made_up(fig6.cells("small"), harmful)).checks
        last = [c for c in checks if c.ours and "train" in c.claim and "β" in c.claim]
        assert [check.holds for check in last] == [holds]
        assert "at most 3 points lower" in last[0].sentence

    def test_only_the_papers_epochs_are_called_so(self):
        small, paper = cells("small")[0], cells("paper")[0]
        assert [moment(small, epoch) for epoch in small.epochs] == [
            "10 steps",
            "20 steps",
            "40 steps",
            "80 steps",
        ]
        assert moment(paper, 80) == "epoch 80"
        verdict = fig5.EXPERIMENT.judge(made_up(cells("small"), as_claimed))
        assert not any("epoch" in check.claim for check in verdict.checks)

    def test_only_fig_5_compares_beta_and_eps_together(self):
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
        results = {cell: cell.run() for cell in experiment.cells("smoke")[:4]}
        assert experiment.judge(results).outcome == "not judged"
        self.draw(experiment, results)

    @pytest.mark.parametrize("name", FIGURES)
    @pytest.mark.parametrize("finished", [1, None], ids=["one cell", "all cells"])
    def test_figures_are_drawn_from_any_records(self, name, finished):
        experiment = FIGURES[name].EXPERIMENT
        results = made_up(experiment.cells("small")[:finished], as_claimed)
        self.draw(experiment, results)

    def test_all_matrices_have_one_scale_of_colours_from_guessing(self):
        figure = self.draw(fig5.EXPERIMENT, made_up(cells("small"), as_claimed))
        scales = {image.get_clim() for axes in figure.axes for image in axes.images}
        assert [low for low, _ in scales] == [10]
        titles = [axes.get_title(loc="left") for axes in figure.axes[:4]]
        assert titles == ["after 10 steps", "after 20 steps", "after 40 steps", "after 80 steps"]

    @staticmethod
    def draw(experiment, results):
        with house_style():
            figure = empty_figure()
            experiment.draw(figure.subfigures(1, 1), results)
            figure.canvas.draw()
        return figure.subfigs[0]
