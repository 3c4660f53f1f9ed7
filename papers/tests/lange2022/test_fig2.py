"""Channel statistics against those of each tap: by hand, by the bound, and in a verdict."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from equipoise.preconditioners import ColumnStatistics, condition, preconditioner
from equipoise.records import from_plain, to_plain
from equipoise_papers.experiments.style import empty_figure, house_style
from equipoise_papers.lange2022 import fig2

CELL = fig2.InputMaps("one layer", "digits", 1, 20, 0)


def columns_by_hand(maps):
    """What each tap of a padded 3 × 3 kernel meets: [channels, taps, samples · positions]."""
    side = maps.shape[-1]
    padded = torch.nn.functional.pad(maps, (1, 1, 1, 1))
    taps = [padded[..., t : t + side, a : a + side] for t in range(3) for a in range(3)]
    return torch.stack([tap.movedim(1, 0).flatten(1) for tap in taps], 1)


def maps_of(cell):
    generator = torch.Generator().manual_seed(cell.seed)
    images, _ = next(fig2._images(cell.data).batches(cell.samples, 1, generator))
    return fig2._layer_inputs(cell, images.double(), generator)


class TestErrors:
    @pytest.mark.parametrize("kind", ["one layer", "network"])
    def test_errors_are_those_of_the_submatrices(self, kind):
        cell = dataclasses.replace(CELL, maps=kind)
        found, maps = cell.run(), maps_of(cell)
        columns = columns_by_hand(maps)
        channel = maps.movedim(1, 0).flatten(1)
        mean, variance = channel.mean(1)[:, None], channel.var(1, correction=0)[:, None]
        live = variance[:, 0] > 0
        means = ((columns.mean(2) - mean).abs() / variance.sqrt())[live]
        variances = (columns.var(2, correction=0) / variance - 1).abs()[live]
        assert found.mean == pytest.approx(float(means.max()))
        assert found.variance == pytest.approx(float(variances.max()))

    def test_condition_numbers_are_those_of_the_whole_matrix(self):
        found, maps = CELL.run(), maps_of(CELL)
        columns = columns_by_hand(maps).flatten(0, 1).T
        features = torch.cat([columns.new_ones(len(columns), 1), columns], 1)
        exact = preconditioner(
            ColumnStatistics(features[:, 1:].mean(0), features[:, 1:].var(0, correction=0))
        )
        assert found.raw == pytest.approx(condition(features).value)
        assert found.exact == pytest.approx(condition(exact.normalise(features)).value)

    def test_a_border_of_zeros_leaves_no_error(self):
        """The padding then replaces zeros by zeros."""
        maps = torch.zeros(4, 2, 8, 8, dtype=torch.float64)
        maps[..., 1:-1, 1:-1] = torch.rand(4, 2, 6, 6, dtype=torch.float64)
        conv = torch.nn.Conv2d(2, 1, 3, padding=1)
        pairs = (fig2.tap_statistics(conv, maps, exact=exact) for exact in (True, False))
        mean, variance = fig2._differences(*pairs)
        assert float(mean.max()) < 1e-12
        assert float(variance.max()) < 1e-12

    def test_proposition_10_is_attained_by_a_lone_border(self):
        """All of a map in the row and column that a corner tap does not meet."""
        maps = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
        maps[..., 0, :] = maps[..., :, 0] = 1.0
        conv = torch.nn.Conv2d(1, 1, 3, padding=1)
        exact, channel = (fig2.tap_statistics(conv, maps, exact=e) for e in (True, False))
        ratio = (exact.mean - channel.mean).abs() / fig2._bound(maps)
        assert float(ratio.max()) == pytest.approx(1.0)

    def test_a_cell_gives_the_same_record_and_leaves_the_random_state_alone(self):
        before = torch.get_rng_state()
        found = CELL.run()
        assert found == CELL.run()
        assert torch.equal(torch.get_rng_state(), before)
        assert from_plain(fig2.Errors, to_plain(found)) == found


def errors(side, **changes):
    """As the paper has it: an error that falls with the size of the map."""
    base = fig2.Errors(side, 0.5 / side, 1 / side, 0.3 / side, 0.7, 100.0, 20.0, 15.0, 73, 73)
    return dataclasses.replace(base, **changes)


def results(make=errors):
    return {cell: make(28 >> cell.stage) for cell in fig2.cells("small")}


class TestVerdict:
    def test_what_the_paper_says_is_judged_to_hold(self):
        assert fig2.judge(results()).outcome == "holds"

    @pytest.mark.parametrize(
        ("change", "claim"),
        [
            (lambda side: errors(side, bound_used=1.01), "Proposition 10"),
            (lambda side: errors(side, variance=3 / side), "means and variances of every tap"),
            (lambda side: errors(side, mean=3 / side), "means and variances of every tap"),
            (lambda side: errors(side, typical_variance=0.2), "half of the taps"),
            (lambda side: errors(side, variance=side / 100), "falls as the map grows"),
            (lambda side: errors(side, channel=31.0), "within a factor of 2"),
        ],
    )
    def test_each_sentence_can_fail(self, change, claim):
        failed = [check.claim for check in fig2.judge(results(change)).checks if not check.holds]
        assert any(claim in sentence for sentence in failed)

    def test_the_papers_sentence_is_about_every_tap_and_the_median_is_ours(self):
        """Errors that are large at one size are no refutation: larger maps may have small ones."""
        verdict = fig2.judge(results(lambda side: errors(side, variance=3 / side)))
        assert verdict.outcome == "partly open"
        assert verdict.fidelity == "stand-in data"
        mine = [check.claim for check in verdict.checks if check.ours]
        assert sum("half of the taps" in claim for claim in mine) == 2
        assert sum("condition Ĥ" in claim for claim in mine) == len(mine) - 2 == 1
        assert fig2.judge(results(lambda s: errors(s, channel=31.0))).outcome == "holds"

    def test_smoke_is_never_judged(self):
        found = {cell: errors(8 >> cell.stage) for cell in fig2.cells("smoke")}
        assert fig2.judge(found).outcome == "not judged"

    @pytest.mark.parametrize("scale", ["smoke", "small"])
    def test_figure_is_drawn(self, scale):
        found = {cell: errors(28 >> cell.stage) for cell in fig2.cells(scale)}
        with house_style():
            figure = empty_figure()
            fig2.draw(figure.subfigures(1, 1), found)
            left, _ = figure.subfigs[0].axes
            assert "10%: small, as judged" in left.get_legend_handles_labels()[1]
