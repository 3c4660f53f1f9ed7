"""Condition numbers of the Hessian: as an explicit one has them, and verdicts that can fail."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from equipoise import models
from equipoise.records import from_plain, to_plain
from equipoise.training import Curve
from equipoise_papers.experiments.style import empty_figure, house_style
from equipoise_papers.lange2022 import fig8


class TestFig8:
    def test_condition_numbers_are_those_of_the_explicit_hessian(self):
        torch.manual_seed(0)
        model = models.glorot_uniform_(fig8._network(torch.Size((1, 8, 8))))
        x, y = torch.rand(150, 1, 8, 8), torch.randint(10, (150,))
        look = fig8._look(model, (x, y), 0)
        h = model.double()[:-1](x.double()).detach()
        p = torch.softmax(model(x.double()), 1).detach()[:, 0]
        extended = torch.cat([torch.ones(150, 1).double(), h], 1)
        values = torch.linalg.svdvals(extended.T @ (extended * (p * (1 - p) / 150)[:, None]))
        assert look.hessian == pytest.approx(float(values[0] / values[look.rank - 1]), rel=1e-6)

    def test_what_the_paper_says_is_judged_reproduced_and_what_we_found_is_not(self):
        cells = fig8.cells("small")
        as_printed = {cell: self.course(cell, gain=1e6) for cell in cells}
        as_found = {cell: self.course(cell, gain=20) for cell in cells}
        assert [check.holds for check in fig8.judge(as_printed).checks][:5] == [True] * 5
        assert not fig8.judge(as_found).checks[4].holds

    @pytest.mark.parametrize(("bad", "holds"), [(1, True), (3, False)])
    def test_one_look_of_twenty_refutes_nothing(self, bad, holds):
        def course(cell):
            (good, _), curve = self.course(cell, gain=1e6).looks, Curve((10,), (0.3,))
            worse = dataclasses.replace(good, hessian=good.preconditioned / 2)
            return fig8.Course(curve, (0.5,) * 20, (*[worse] * bad, *[good] * (20 - bad)))

        checks = fig8.judge({cell: course(cell) for cell in fig8.cells("small")}).checks
        assert checks[2].holds is holds

    def test_sooner_is_in_the_first_half(self):
        """The last look and the one before the first step do not count."""
        cells = fig8.cells("small")

        def verdict(early):
            found = {}
            for cell in cells:
                course, helped = self.course(cell, gain=20), cell.method == "bnp_paper"
                rises = (0.9, early if helped else 0.5, 0.1, 0.9)
                found[cell] = dataclasses.replace(
                    course,
                    accuracies=tuple(share + 0.001 * cell.seed for share in rises),
                    looks=course.looks * 2,
                )
            return fig8.judge(found).checks[1].holds

        assert verdict(early=0.6) is True
        assert verdict(early=0.4) is False

    def test_figure_is_drawn(self):
        results = {cell: self.course(cell, gain=20) for cell in fig8.cells("small")}
        with house_style():
            figure = empty_figure()
            fig8.draw(figure.subfigures(1, 1), results)

    def test_a_cell_runs(self):
        course = fig8.WatchedTraining("digits", "bnp_paper", 60, 20, 2, 0).run()
        assert [look.step for look in course.looks] == [0, 10, 20]
        assert course.looks[0].rank <= 60
        assert len(course.accuracies) == 3
        assert course.accuracies[0] < course.accuracies[-1] <= 1
        assert from_plain(fig8.Course, to_plain(course)) == course

    def course(self, cell, gain):
        rank = 60 if cell.rows == 60 else 101
        look = fig8.Look(0, rank, 1e9 * gain, 1e9, 1e6, 1e5)
        final = (0.3 if cell.method == "bnp_paper" else 0.4) + 0.001 * cell.seed
        accuracies = (0.1, 1 - final)
        looks = look, dataclasses.replace(look, step=10)
        return fig8.Course(Curve((10,), (final,)), accuracies, looks)
