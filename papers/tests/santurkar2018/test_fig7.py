"""What one step does to activations: followed without a trace, and verdicts that can fail."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from equipoise.layers import NoisyBatchNorm2d
from equipoise.records import from_plain, to_plain
from equipoise_papers.experiments.style import empty_figure, house_style
from equipoise_papers.santurkar2018 import fig7
from equipoise_papers.santurkar2018.training import ProbedTraining, samples_of, vgg_for

CELL = fig7.FollowedTraining("digits", "noisy", 0.1, 32, 6, 1, 0)


class TestTrainings:
    @pytest.mark.parametrize("norm", ["none", "noisy"])
    def test_following_steps_does_not_change_the_training(self, norm):
        """The trainings are those of Figs. 1 and 2."""
        watched = dataclasses.replace(CELL, norm=norm).run()
        plain = ProbedTraining("vgg", "digits", norm, 0.1, 32, 6, 0, 0).run()
        assert watched.loss == plain.loss

    def test_a_step_is_followed_from_just_before_to_just_after(self):
        every, third = CELL.run(), dataclasses.replace(CELL, every=3).run()
        assert every.steps == (1, 2, 3, 4, 5, 6)
        assert third.steps == (3, 6)
        for all_steps, some in zip(every.layers, third.layers, strict=True):
            assert all_steps.after[:-1] == all_steps.before[1:]
            assert some.before == (all_steps.before[2], all_steps.before[5])
            assert some.after == (all_steps.after[2], all_steps.after[5])
        assert from_plain(fig7.Course, to_plain(every)) == every

    def test_activations_are_what_noise_is_added_to(self):
        samples, _ = samples_of("digits")
        torch.manual_seed(0)
        model = vgg_for("digits", "noisy", samples)
        seen = {}
        for name, module in model.named_modules():
            if isinstance(module, NoisyBatchNorm2d):
                module.register_forward_hook(
                    lambda module, args, output, name=name: seen.setdefault(name, output)
                )
        state = torch.get_rng_state()
        found = fig7._moments(model, samples.inputs[:16])
        seen.clear()
        torch.set_rng_state(state)
        with torch.no_grad():
            model(samples.inputs[:16])
        assert list(found) == ["conv1_1", "conv3_1", "linear4"]
        unit = seen["norm3_1"][:, 0].double()
        assert found["conv3_1"] == pytest.approx((float(unit.mean()), float(unit.var())))

    def test_networks_without_normaliser_have_the_layers_outputs(self):
        samples, _ = samples_of("digits")
        torch.manual_seed(0)
        model = vgg_for("digits", "none", samples)
        found = fig7._moments(model, samples.inputs[:16])
        unit = model.conv1_1(samples.inputs[:16]).detach()[:, 0].double()
        assert found["conv1_1"] == pytest.approx((float(unit.mean()), float(unit.var())))


class TestVerdict:
    def test_what_the_paper_says_is_judged_reproduced_and_its_opposite_is_not(self):
        cells = fig7.cells("small")
        verdict = fig7.judge({cell: course(cell, noise=1.0) for cell in cells})
        assert all(check.holds for check in verdict.checks)
        still = fig7.judge({cell: course(cell, noise=0.001) for cell in cells})
        assert [check.holds for check in still.checks] == [False, False, True, False, False, False]

    def test_a_training_that_diverged_decides_nothing(self):
        found = {cell: course(cell, noise=1.0) for cell in fig7.cells("small")}
        worst = next(cell for cell in found if cell.norm == "none")
        lost = tuple(
            dataclasses.replace(moments, after=((math.nan, math.nan),) * len(moments.after))
            for moments in found[worst].layers
        )
        found[worst] = dataclasses.replace(found[worst], loss=math.inf, layers=lost)
        assert [check.holds for check in fig7.judge(found).checks][:5] == [None] * 5

    def test_figure_is_drawn(self):
        with house_style():
            figure = empty_figure().subfigures(1, 1)
            fig7.draw(figure, {c: course(c, noise=1.0) for c in fig7.cells("small")})
        assert len(figure.axes) == 6

    def test_smoke_is_not_judged(self):
        found = {cell: course(cell, noise=1.0) for cell in fig7.cells("smoke")}
        assert fig7.judge(found).outcome == "not judged"


def course(cell, noise):
    """A noisy network's moments move by ``noise``; a standard one's by 0.1, a BN's by 0.01."""
    size = {"none": 0.1, "batch": 0.01, "noisy": noise}[cell.norm] * (1 + 0.01 * cell.seed)
    before, after = ((0.0, 1.0),) * 2, ((size, 1 + size), (-size, 1 + 2 * size))
    layers = tuple(fig7.Moments(name, before, after) for name in ("conv1_1", "conv3_1", "linear4"))
    loss = {"none": 0.9, "batch": 0.4, "noisy": 0.42}[cell.norm] + 0.001 * cell.seed
    return fig7.Course(loss, (1, 2), layers)
