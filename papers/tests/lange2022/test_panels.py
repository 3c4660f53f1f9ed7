"""Trainings with and without BNP: cells are pure, rates are chosen fairly, verdicts can fail."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from equipoise import models
from equipoise.records import from_plain, to_plain
from equipoise.training.record import Curve, Evaluation
from equipoise_papers.lange2022 import EXPERIMENTS, fig8, settings, table1
from equipoise_papers.lange2022.best import ahead, best_of, comparable, does_not_train, not_behind
from equipoise_papers.lange2022.methods import METHODS, build
from equipoise_papers.lange2022.runs import Cell, Run, run
from equipoise_papers.reproduction.style import empty_figure, house_style

BY_NAME = {experiment.name.split(".")[1]: experiment for experiment in EXPERIMENTS}
SETTINGS = {
    "fig3": settings.FC_60,
    "fig4a": settings.FC_6,
    "fig4b": settings.FC_1,
    "fig4c": settings.CNN_1,
    "fig5a": settings.CNN_128,
    "fig5b": settings.CNN_2,
}
# As the paper would have it: the lower, the better.
ORDER = {
    "bnp": 0.28,
    "bnp_paper": 0.30,
    "bnp_adam": 0.31,
    "bn": 0.34,
    "renorm": 0.36,
    "ln": 0.37,
    "adam": 0.38,
    "standardised": 0.39,
    "vanilla": 0.40,
    "four_things": 0.45,
}


def trained(loss: float, accuracy: float = 0.85) -> Run:
    curve = Curve((10, 20), (2 * loss, loss))
    evaluations = (Evaluation(10, loss, accuracy - 0.1), Evaluation(20, loss, accuracy))
    return Run(loss, curve, evaluations, None, None, 1e-3)


REFUSED = Run(math.inf, Curve((), ()), (), None, "Expected more than 1 value", math.nan)
DIVERGED = dataclasses.replace(trained(1.0), loss=math.inf, diverged_at=3)


def as_claimed(name: str, *, losses=ORDER):
    """Runs of every cell of a panel that bear the paper out, best at the middle rate."""
    setting = SETTINGS[name]
    found = {}
    for cell in settings.cells(setting, "small"):
        off = abs(math.log(cell.rate / setting.centres[cell.method]))
        single = setting.batch_size == 1 and cell.method in ("bn", "renorm")
        loss = losses[cell.method]
        if name in ("fig4a", "fig5b") and cell.method == "bn":
            loss = 1.5
        found[cell] = REFUSED if single else trained(loss + 0.1 * off + 0.001 * cell.seed)
    return found


class TestCells:
    def test_a_cell_gives_the_same_run_whenever_it_runs(self):
        cell = Cell("fc", "digits", "bnp_paper", 6, 20, 0.1, 0, 2)
        first = run(cell)
        torch.manual_seed(99)
        second = run(cell)
        assert dataclasses.replace(first, step_seconds=0) == dataclasses.replace(
            second, step_seconds=0
        )
        assert [e.step for e in first.evaluations] == [10, 20]
        assert from_plain(Run, to_plain(first)) == first

    def test_the_global_random_state_is_left_alone(self):
        before = torch.get_rng_state()
        run(Cell("fc", "digits", "vanilla", 6, 3, 0.1, 0, 1))
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize("method", METHODS)
    def test_every_method_takes_steps(self, method):
        found = run(Cell("fc", "digits", method, 6, 4, 0.01, 0, 1))
        assert math.isfinite(found.loss)
        assert 0 <= found.accuracy <= 1

    @pytest.mark.parametrize("network", ["fc", "cnn5"])
    @pytest.mark.parametrize("method", ["bn", "renorm"])
    def test_batch_norm_refuses_single_samples(self, network, method):
        found = run(Cell(network, "digits", method, 1, 4, 0.01, 0, 1))
        assert "more than 1 value per channel" in found.refused
        assert found.loss == math.inf

    def test_divergence_is_a_record(self):
        found = run(Cell("fc", "digits", "vanilla", 6, 50, 1e30, 0, 1))
        assert found.diverged_at is not None
        assert math.isnan(found.accuracy)

    def test_methods_share_the_order_of_the_data(self):
        """The plain network and BNP start from the same weights on the same batch."""
        losses = [
            run(Cell("fc", "digits", method, 6, 1, 0.1, 3, 1)).curve.losses[0]
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


class TestBest:
    def runs(self, **losses):
        return {
            Cell("fc", "x", method, 6, 10, rate, seed): trained(loss + offset + 0.01 * seed)
            for method, loss in losses.items()
            for rate, offset in ((0.01, 0.2), (0.1, 0.0), (1.0, 0.1))
            for seed in range(3)
        }

    def test_the_rate_with_the_lowest_mean_loss(self):
        best = best_of(self.runs(vanilla=1.0))["vanilla"]
        assert best.rate == 0.1
        assert best.losses == pytest.approx((1.0, 1.01, 1.02))
        assert not best.at_edge

    def test_one_diverged_seed_spoils_a_rate(self):
        runs = self.runs(vanilla=1.0)
        runs[next(cell for cell in runs if cell.rate == 0.1)] = DIVERGED
        assert best_of(runs)["vanilla"].rate == 1.0
        assert best_of(runs)["vanilla"].at_edge

    def test_ahead_means_beyond_chance(self):
        best = best_of(self.runs(bnp=0.9, vanilla=1.0))
        assert ahead("", best["bnp"], best["vanilla"]).holds
        assert not ahead("", best["vanilla"], best["bnp"]).holds
        noisy = dataclasses.replace(best["bnp"], runs=(trained(0.5), trained(1.3), trained(0.9)))
        assert ahead("", noisy, best["vanilla"]).holds is None
        assert not_behind("", noisy, best["vanilla"]).holds is None

    @pytest.mark.parametrize(("loss", "holds"), [(0.9, True), (1.04, True), (1.06, False)])
    def test_not_behind_is_up_to_a_twentieth(self, loss, holds):
        best = best_of(self.runs(bnp=loss, vanilla=1.0))
        check = not_behind("", best["bnp"], best["vanilla"])
        assert check.holds is holds
        assert "level is up to +0.051" in check.found  # of the mean over seeds, 1.01

    def test_one_seed_decides_only_between_training_and_not(self):
        best = best_of(self.runs(bnp=0.5, vanilla=1.0))
        one, other = (
            dataclasses.replace(best[m], runs=best[m].runs[:1]) for m in ("bnp", "vanilla")
        )
        refused = dataclasses.replace(other, refused="too few", runs=(REFUSED,))
        assert ahead("", one, other).holds is None
        assert not_behind("", one, other).holds is None
        assert comparable("", one, other, points=50).holds is None
        assert ahead("", one, refused).holds is True
        assert ahead("", refused, one).holds is False
        assert not_behind("", refused, one).holds is False

    def test_whoever_trains_is_ahead_of_whoever_does_not(self):
        best = best_of(
            self.runs(bnp=0.9) | {Cell("fc", "x", "bn", 1, 10, 0.1, s): REFUSED for s in range(3)}
        )
        assert ahead("", best["bnp"], best["bn"]).holds
        assert not ahead("", best["bn"], best["bnp"]).holds
        assert does_not_train("", best["bn"]).holds
        assert not does_not_train("", best["bnp"]).holds

    def test_comparable_is_about_accuracy(self):
        one = best_of(self.runs(bnp=0.9))["bnp"]
        other = dataclasses.replace(one, runs=(trained(0.9, 0.80),) * 3)
        assert comparable("", one, other, points=6).holds
        assert comparable("", one, other, points=4).holds is False
        scatter = dataclasses.replace(other, runs=tuple(trained(0.9, a) for a in (0.7, 0.8, 0.9)))
        assert comparable("", one, scatter, points=6).holds is None


class TestPanels:
    @pytest.mark.parametrize("name", SETTINGS)
    def test_what_the_paper_says_is_judged_reproduced(self, name):
        verdict = BY_NAME[name].judge(as_claimed(name))
        assert [check.claim for check in verdict.checks if not check.holds] in (
            [],
            # ORDER has BN behind BNP from the start.
            ["BN is level with BNP or better in the second half"],
        )
        assert any("CIFAR-10" in left for left in verdict.left_out)

    @pytest.mark.parametrize("name", SETTINGS)
    def test_the_opposite_is_not(self, name):
        upside_down = {method: 1 - loss for method, loss in ORDER.items()}
        verdict = BY_NAME[name].judge(as_claimed(name, losses=upside_down))
        assert not all(check.holds for check in verdict.checks)

    @pytest.mark.parametrize("name", [*SETTINGS, "table2", "table3"])
    @pytest.mark.parametrize("scale", ["smoke", "small"])
    def test_figures_are_drawn_from_any_records(self, name, scale):
        experiment = BY_NAME[name]
        results = {cell: trained(0.5, 0.8) for cell in experiment.cells(scale)}
        results |= dict.fromkeys(list(results)[:3], REFUSED)
        with house_style():
            figure = empty_figure()
            experiment.draw(figure.subfigures(1, 1), results)
            assert figure.subfigs[0].axes

    def test_smoke_is_never_judged(self):
        cells = BY_NAME["fig3"].cells("smoke")
        verdict = BY_NAME["fig3"].judge({cell: trained(0.1) for cell in cells})
        assert verdict.outcome == "not judged"

    def test_tables_share_the_panels_cells(self):
        of_panels = {c for n in ("fig3", "fig4a", "fig4b") for c in BY_NAME[n].cells("small")}
        assert set(BY_NAME["table2"].cells("small")) == of_panels
        assert BY_NAME["table2"].filed_under == BY_NAME["fig3"].filed_under

    def test_tables_compare_rates_with_the_papers(self):
        results = as_claimed("fig3") | as_claimed("fig4a") | as_claimed("fig4b")
        checks = BY_NAME["table2"].judge(results).checks
        assert "vanilla 0.1 (paper 0.01)" in checks[0].found
        assert {check.claim for check in checks if check.holds} >= {
            "BNP beats BN at batch 6",
            "BNP trains at batch 1",
            "BN does not train at batch 1",
        }

    def test_the_papers_scale_has_its_rates_and_data(self):
        cells = BY_NAME["fig3"].cells("paper")
        assert {cell.data for cell in cells} == {"cifar10", "mnist"}
        assert {c.rate for c in cells if c.method == "vanilla"} >= {0.01, 0.1}
        assert {c.seed for c in cells} == set(range(5))


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
        assert [check.holds for check in fig8.judge(as_printed).checks][:4] == [True] * 4
        assert not fig8.judge(as_found).checks[3].holds

    def test_figure_is_drawn(self):
        results = {cell: self.course(cell, gain=20) for cell in fig8.cells("small")}
        with house_style():
            figure = empty_figure()
            fig8.draw(figure.subfigures(1, 1), results)

    def test_a_cell_runs(self):
        course = fig8.run(fig8.Cell("digits", "bnp_paper", 60, 20, 2, 0))
        assert [look.step for look in course.looks] == [0, 10, 20]
        assert course.looks[0].rank <= 60
        assert from_plain(fig8.Course, to_plain(course)) == course

    def course(self, cell, gain):
        rank = 60 if cell.rows == 60 else 101
        look = fig8.Look(0, rank, 1e9 * gain, 1e9, 1e6, 1e5)
        final = 0.3 if cell.method == "bnp_paper" else 0.4
        return fig8.Course(Curve((10,), (final,)), (look, dataclasses.replace(look, step=10)))


class TestTable1:
    def test_operations_are_the_papers_count(self):
        model = table1._network("fc", "vanilla")
        n, m = (784, 100, 100), (100, 100, 10)
        own = table1._operations(model, 16)
        assert own == sum(6 * 16 * a * b for a, b in zip(n, m, strict=True))
        expected = sum(4 * a * 16 + 8 * a + 6 * a * b + 2 * b for a, b in zip(n, m, strict=True))
        assert table1._extra(model, "BNP", 16) == expected
        normalised = table1._network("fc", "BN and input")
        assert table1._extra(normalised, "BN and input", 16) == sum(32 * a * 16 + 4 * a for a in n)

    def test_statistics_every_ten_steps_cost_a_tenth(self):
        model = table1._network("fc", "vanilla")
        often, seldom = (table1._extra(model, v, 512) for v in ("BNP", "BNP every 10 steps"))
        transformation = 6 * (784 + 100) * 100 + 6 * 1000 + 2 * 210
        assert (often - transformation) == pytest.approx(10 * (seldom - transformation))

    def test_a_cell_times_every_variant(self):
        timings = table1.run(table1.Cell("fc", 1, 10))
        assert {row.variant for row in timings.rows} == set(table1._VARIANTS)
        assert timings.ratio(16, "vanilla") == 1.0
        assert from_plain(table1.Timings, to_plain(timings)) == timings

    def timed(self, **changes):
        def row(batch, variant, ratio):
            return table1.Timing(batch, variant, 1.0, ratio, ratio, 1.05)

        ratios = {"vanilla": 1, "BN": 1.2, "BN and input": 1.5, "BNP": 1.21}
        ratios |= {"BNP by step()": 1.2, "BNP every 10 steps": 1.1} | changes
        return {
            table1.Cell("fc", 40, 20): table1.Timings(
                tuple(row(b, v, r) for b in (16, 256, 512) for v, r in ratios.items())
            )
        }

    def test_the_papers_order_is_judged_to_hold(self):
        verdict = table1.judge(self.timed())
        assert [check.holds for check in verdict.checks] == [True] * 4
        assert [check.ours for check in verdict.checks] == [False, False, True, True]
        assert verdict.outcome == "partly"
        assert "GPU" in verdict.left_out[0]

    @pytest.mark.parametrize(
        ("changes", "failing"),
        [
            ({"BNP": 1.19}, 0),
            ({"BNP": 1.27}, 1),
            ({"BNP": 1.51}, 2),
            ({"BNP every 10 steps": 1.4}, 3),
        ],
        ids=["faster at 16", "slower at 256", "dearer than all of BN", "dear even if seldom"],
    )
    def test_each_sentence_can_fail(self, changes, failing):
        assert not table1.judge(self.timed(**changes)).checks[failing].holds

    def test_a_share_of_five_per_cent_is_level(self):
        assert table1.judge(self.timed(BNP=1.25)).checks[1].holds

    def test_figure_is_drawn(self):
        with house_style():
            table1.draw(empty_figure().subfigures(1, 1), self.timed())
