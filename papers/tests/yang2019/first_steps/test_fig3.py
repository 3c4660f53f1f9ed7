"""The first ten steps: profiles are true norms, theory meets step 0, and each claim can fail."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from torch.nn import functional as F

from equipoise import data, theory
from equipoise.records import Estimate, from_plain, to_plain
from equipoise_papers.experiments.style import empty_figure, house_style
from equipoise_papers.yang2019.first_steps import fig3
from equipoise_papers.yang2019.first_steps.training import FirstSteps, ShortTraining, network
from equipoise_papers.yang2019.samples import agrees, log_slopes, sample_mean

TINY = ShortTraining("digits", 5, 16, 12, 1e-3, 0.5, (0, 1, 3), 7)
DECISIVE = 0.1


def by_hand(cell, steps):
    """The same network trained with a plain loop; returns (weights, signals, gradients)."""
    images = data.split(cell.data).train
    generator = torch.Generator().manual_seed(cell.seed)
    model = network(cell, 64, 10, generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=cell.rate)
    batches = list(images.batches(cell.batch_size, cell.steps[-1] + 1, generator))
    for x, y in batches[: steps + 1]:
        optimizer.zero_grad()
        hidden = []
        h = x.flatten(1)
        for name, module in model.named_children():
            h = module(h)
            if name.startswith("linear"):
                h.retain_grad()
                hidden.append(h)
        F.cross_entropy(h, y).backward()
        weights = [p for name, p in model.named_parameters() if name.startswith("linear")]
        found = (
            [float(w.detach().square().sum()) / cell.width for w in weights],
            [float(h.grad.square().sum()) for h in hidden],
            [float(w.grad.square().sum()) for w in weights],
        )
        optimizer.step()
    return found


class TestRun:
    @pytest.mark.parametrize("look", [0, 1, 2])
    def test_profiles_are_those_of_a_plain_training_loop(self, look):
        record = TINY.run()
        expected = by_hand(TINY, TINY.steps[look])
        found = (record.weights[look], record.signals[look], record.gradients[look])
        # Four digits of logarithms are stored; float32 adds as much again.
        np.testing.assert_allclose(np.array(found), np.log(expected), rtol=0, atol=2e-4)

    def test_the_same_cell_gives_the_same_record_and_leaves_the_global_state_alone(self):
        before = torch.get_rng_state()
        first = TINY.run()
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(5)
        assert TINY.run() == first
        assert from_plain(FirstSteps, to_plain(first)) == first

    def test_another_seed_gives_another_record(self):
        assert dataclasses.replace(TINY, seed=8).run() != TINY.run()

    def test_weights_start_alike_in_every_layer(self):
        """‖W‖²/N is a mean of at least N² squares, of relative deviation √2/N."""
        record = TINY.run()
        assert np.abs(record.weights[0]).max() < 5 * math.sqrt(2) / TINY.width


@pytest.fixture(scope="module")
def records():
    return [ShortTraining("digits", 30, 128, 32, 1e-3, 0.1, (0,), seed).run() for seed in range(4)]


class TestStepZero:
    """Slopes of both gradients at step 0, on real images, against λ_G."""

    @pytest.mark.parametrize("row", ["signals", "gradients"])
    def test_gradients_explode_at_the_rate_of_theory(self, records, row):
        profiles = np.array([getattr(record, row)[0] for record in records])[:, 2:]
        rate = theory.explosion_rate("relu", 32, eps=1e-3)
        assert rate == records[0].rate
        assert agrees("", sample_mean(-log_slopes(profiles)), math.log(rate.value), 4 / 128).holds

    def test_gradients_do_not_explode_at_the_rate_of_norms(self, records):
        profiles = np.array([record.signals[0] for record in records])[:, 2:]
        half = math.log(records[0].rate.value) / 2
        assert not agrees("", sample_mean(-log_slopes(profiles)), half, 4 / 128).holds


SLOPE = 0.42


def profile(cell, *, peak, above, below, grown=True, late=0.1, flat=0.0):
    """A record whose profiles are straight lines: what the source describes, or not."""
    layers = np.arange(cell.depth)
    noise = 0.01 * np.random.default_rng(cell.seed).standard_normal(cell.depth)
    exploding = SLOPE * (cell.depth - 1 - layers)
    after = np.where(layers < peak, below * (layers - peak), above * (peak - layers))
    signals, weights, gradients = [], [], []
    for step in cell.steps:
        first = step == 0
        signals.append(tuple((exploding if first else after - late * step) + noise))
        gradients.append(tuple((exploding if first else after - 20.0 - late * step) + noise))
        growth = np.log1p(np.exp(exploding - 10)) if grown and not first else 0 * layers
        weights.append(tuple(growth + flat * layers + 0.01 * noise))
    rate = Estimate(math.exp(SLOPE), 0.0, "made up")
    losses = (2.3,) * len(cell.steps)
    return FirstSteps(tuple(weights), tuple(signals), tuple(gradients), losses, rate)


def as_claimed(**changes):
    lines = {"above": 0.05, "below": 0.4} | changes
    return {
        cell: profile(cell, peak=cell.depth // 2, **lines)
        for cell in fig3.cells("small")
        if cell.depth > 20
    }


def failed(results):
    return [check.claim for check in fig3.judge(results).checks if not check.holds]


class TestVerdict:
    def test_what_the_source_says_is_reproduced(self):
        verdict = fig3.judge(as_claimed())
        assert all(check.holds for check in verdict.checks)
        assert len(verdict.checks) == 2 * 3 + 2 * 7 + 1
        assert (verdict.outcome, verdict.fidelity) == ("holds", "stand-in data")
        assert "Fashion-MNIST" in verdict.left_out[0]

    def test_nothing_is_left_out_on_the_sources_images(self):
        results = {
            dataclasses.replace(cell, data="mnist"): record
            for cell, record in as_claimed().items()
        }
        assert fig3.judge(results).outcome == "holds"

    @pytest.mark.parametrize(
        ("changes", "claim"),
        [
            ({"flat": 0.01}, "weights are flat"),
            ({"grown": False}, "weights grow"),
            ({"above": 0.42}, "stable from the output"),
            ({"below": -0.01}, "vanish exponentially"),
            ({"late": 20.0}, "the first step changes"),
        ],
        ids=lambda value: value if isinstance(value, str) else None,
    )
    def test_each_claim_fails_where_it_is_wrong(self, changes, claim):
        found = [text for text in failed(as_claimed(**changes)) if claim in text]
        # Two depths; whatever is said of gradients is said of both kinds.
        assert len(found) == 2 * (1 if "weights" in claim else 2)

    def test_both_kinds_of_gradients_are_judged_by_name(self):
        """Only ∂E/∂W goes on exploding."""
        good, bad = as_claimed(), as_claimed(above=0.42)
        mixed = {
            cell: dataclasses.replace(record, gradients=bad[cell].gradients)
            for cell, record in good.items()
        }
        assert all("∂E/∂W are stable" in text for text in failed(mixed))
        assert len(failed(mixed)) == 2

    def test_too_few_layers_above_the_threshold_decide_nothing(self):
        results = {
            cell: profile(cell, peak=cell.depth - 1, above=0.05, below=0.4)
            for cell in fig3.cells("small")
        }
        stable = [c for c in fig3.judge(results).checks if "are stable" in c.claim]
        assert {check.holds for check in stable} == {None}
        assert all("too near to the output" in check.found for check in stable)

    def test_a_slope_near_the_limit_is_undecided(self):
        results = as_claimed(above=0.5 * SLOPE)
        stable = [c for c in fig3.judge(results).checks if "are stable" in c.claim]
        assert {check.holds for check in stable} == {None}

    def test_a_wrong_rate_fails_both_gradients_of_both_depths_at_step_zero(self):
        wrong = {
            cell: dataclasses.replace(record, rate=Estimate(math.exp(0.5), 0.0, "wrong"))
            for cell, record in as_claimed().items()
        }
        assert sum("grow towards the input by ln λ_G" in text for text in failed(wrong)) == 2 * 2

    def test_moving_lower_layers_fail_the_last_claim(self):
        moving = {
            cell: dataclasses.replace(record, gradients=record.weights)
            for cell, record in as_claimed().items()
        }
        assert any("lower quarter" in text for text in failed(moving))

    def test_the_tuned_rate_decides_and_others_are_reported(self):
        good, bad = as_claimed(), as_claimed(grown=False)
        mixed = {cell: (good if cell.rate == DECISIVE else bad)[cell] for cell in good}
        verdict = fig3.judge(mixed)
        assert all(check.holds for check in verdict.checks)
        (grow,) = [c for c in verdict.checks if c.claim.startswith("depth 80: after one step w")]
        assert "rate 0.00032: 0 layers grew tenfold" in grow.found

    def test_smoke_is_never_judged(self):
        results = {cell: cell.run() for cell in fig3.cells("smoke")[:1]}
        assert fig3.judge(results).outcome == "not judged"


class TestFigure:
    @pytest.mark.parametrize("finished", [1, None], ids=["one cell", "all cells"])
    def test_it_can_be_drawn(self, finished):
        results = dict(list(as_claimed().items())[:finished])
        with house_style():
            figure = empty_figure()
            fig3.draw(figure.subfigures(1, 1), results)
            figure.canvas.draw()

    def test_steps_are_told_apart_by_colour(self):
        results = as_claimed()
        with house_style():
            figure = empty_figure()
            fig3.draw(figure.subfigures(1, 1), results)
        lines = {line.get_label(): line for line in figure.subfigs[0].axes[3].lines}
        colours = np.array([to_rgb(lines[f"step {step}"].get_color()) for step in (0, 1, 2, 4)])
        assert (np.abs(np.diff(colours, axis=0)).max(1) > 0.1).all()
        assert r"slope $-\log_{10}\lambda_G=-0.182$" in next(k for k in lines if "theory" in k)

    def test_smoke_is_computed_and_drawn(self):
        results = {cell: cell.run() for cell in fig3.cells("smoke")}
        with house_style():
            figure = empty_figure()
            fig3.draw(figure.subfigures(1, 1), results)
            figure.canvas.draw()

    def test_every_scale_has_fig_2s_rate_and_a_tuned_one(self):
        for scale in ("smoke", "small", "paper"):
            cells = fig3.cells(scale)
            assert len(set(cells)) == len(cells)
            assert {cell.rate for cell in cells} >= {1e-5 * 32, DECISIVE}
        assert {cell.width for cell in fig3.cells("paper")} == {384}
        assert {cell.steps for cell in fig3.cells("paper")} == {tuple(range(11))}
