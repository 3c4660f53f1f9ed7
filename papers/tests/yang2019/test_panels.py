"""Each panel: same cell, same numbers; the claim holds of them, and fails of wrong ones."""

from dataclasses import replace

import pytest

from equipoise.records import Estimate, from_plain, to_plain
from equipoise_papers.experiments.style import empty_figure, house_style
from equipoise_papers.reproduction.catalogue import EXPERIMENTS
from equipoise_papers.yang2019.fig1.covariances import cells as networks
from equipoise_papers.yang2019.fig1.eigenvalues import EigenvalueSample
from equipoise_papers.yang2019.fig1.gradients import GradientSample
from equipoise_papers.yang2019.fig1.symmetry import VarianceSample
from equipoise_papers.yang2019.trainability import fig2, fig4
from equipoise_papers.yang2019.trainability.forecast import ForecastPoint
from equipoise_papers.yang2019.trainability.line import LinePoint
from equipoise_papers.yang2019.trainability.panels import points
from equipoise_papers.yang2019.trainability.stack import Stack

# Smaller than smoke, where smoke takes seconds; the other panels run at smoke scale.
SMALL_CELLS = {
    "yang2019.fig1a": [
        EigenvalueSample(size, 200, 6, 5, seed) for seed, size in enumerate((8, 16, 100))
    ],
    "yang2019.fig1b": [GradientSample(size, 128, 30, 4, size) for size in (8, 32, 128)],
    "yang2019.fig1c": [
        VarianceSample(method, alpha, 10, 1000, 50, networks, 0)
        for method, networks in (("networks", 5), ("infinite width", 1))
        for alpha in (1.0, 1.3, 1.5, 1.7)
    ],
    "yang2019.fig1d": networks("smoke"),
}
TRAINED = {
    f"yang2019.fig{number}{letter}": cells(panel, "smoke")
    for number, cells, panels in (
        (2, fig2.cells, (fig2.SGD, fig2.SUB_BATCHES, fig2.RMSPROP, fig2.OTHER_DATA)),
        (4, fig4.cells, (fig4.GAMMA, fig4.BETA, fig4.TANH_EPS, fig4.RELU_EPS)),
    )
    for letter, panel in zip("abcd", panels, strict=True)
}


def fewer(name, cells):
    """Lines at one of the batch sizes, and one forecast: these take half a second each."""
    forecasts = [cell for cell in cells if isinstance(cell, ForecastPoint)]
    return [
        cell
        for cell in cells
        if cell in forecasts[:1]
        or (cell not in forecasts and ("fig2" in name or cell.batch_size == 64))
    ]


SMALL_CELLS |= {name: fewer(name, cells) for name, cells in TRAINED.items()}
PANELS = list(SMALL_CELLS)
# What each panel says of its predicted line.
LINES = {
    "yang2019.fig2a": fig2.line_checks,
    "yang2019.fig4a": lambda results: fig4.gamma_checks(points(results)),
    "yang2019.fig4b": lambda results: fig4.beta_checks(points(results)),
    "yang2019.fig4c": lambda results: fig4.eps_checks(points(results)),
    "yang2019.fig4d": lambda results: fig4.eps_checks(points(results)),
}


@pytest.fixture(scope="module")
def computed():
    """Results by panel, computed at first use."""
    known = {}

    def results(name):
        if name not in known:
            known[name] = {cell: cell.run() for cell in SMALL_CELLS[name]}
        return known[name]

    return results


def judged(name, results):
    """Whether each check of a panel, or of its predicted line, holds."""
    checks = LINES[name](results) if name in LINES else EXPERIMENTS[name].judge(results).checks
    return [check.holds for check in checks]


@pytest.mark.parametrize("name", LINES)
def test_of_the_line_the_source_says_no_more_than_where_gradients_explode(name, computed):
    theirs = [check.claim for check in LINES[name](computed(name)) if not check.ours]
    assert all("gradients explode below ε = 1" in claim for claim in theirs)
    assert bool(theirs) == (name in ("yang2019.fig4c", "yang2019.fig4d"))


def with_line(results, change):
    """The same results with other predicted points."""
    return {
        cell: change(record) if isinstance(cell, LinePoint) else record
        for cell, record in results.items()
    }


@pytest.mark.parametrize("name", [name for name in PANELS if name in LINES or "fig1" in name])
def test_the_claim_holds(name, computed):
    """Of trained panels, what they say about the predicted line."""
    answers = judged(name, computed(name))
    assert answers
    assert all(answers)


@pytest.mark.parametrize("name", PANELS)
class TestEveryPanel:
    def test_the_same_cell_gives_the_same_numbers(self, name, computed):
        results = computed(name)
        cell = next(iter(results))
        assert cell.run() == results[cell]

    def test_records_survive_being_stored(self, name, computed):
        for cell, record in computed(name).items():
            assert from_plain(cell.record_type, to_plain(record)) == record

    @pytest.mark.parametrize("finished", [1, None], ids=["one cell", "all cells"])
    def test_it_can_be_drawn(self, name, computed, finished):
        results = dict(list(computed(name).items())[:finished])
        with house_style():
            figure = empty_figure()
            EXPERIMENTS[name].draw(figure, results)
            figure.canvas.draw()

    def test_larger_scales_have_more_cells_and_none_twice(self, name, computed):
        smoke, small, paper = map(EXPERIMENTS[name].cells, ("smoke", "small", "paper"))
        assert len(paper) == len(set(paper))
        # Whatever seeds and rates are trained together, or how many of them.
        smoke, small, paper = (
            {replace(c, seeds=(), rates=()) if isinstance(c, Stack) else c for c in cells}
            for cells in (smoke, small, paper)
        )
        assert len(smoke) <= len(small) <= len(paper)


@pytest.mark.parametrize("name", ["yang2019.fig1a", "yang2019.fig1b", "yang2019.fig1c"])
def test_another_seed_gives_other_numbers(name, computed):
    results = computed(name)
    cell = next(iter(results))
    assert replace(cell, seed=cell.seed + 1).run() != results[cell]


class TestWrongNumbersFail:
    """The twins: each panel's checks, of records with one thing changed."""

    def test_eigenvalues_a_tenth_too_large(self, computed):
        wrong = {
            cell: replace(r, measured=tuple(tuple(1.1 * v for v in row) for row in r.measured))
            for cell, r in computed("yang2019.fig1a").items()
        }
        assert judged("yang2019.fig1a", wrong)[:3] == [False] * 3

    def test_l_and_g_confused(self, computed):
        wrong = {
            cell: replace(r, measured=tuple((row[1], row[0], row[2]) for row in r.measured))
            for cell, r in computed("yang2019.fig1a").items()
        }
        assert not judged("yang2019.fig1a", wrong)[4]

    def test_a_norm_in_place_of_its_square(self, computed):
        wrong = {
            cell: replace(
                r, log_gradients=tuple(tuple(v / 2 for v in row) for row in r.log_gradients)
            )
            for cell, r in computed("yang2019.fig1b").items()
        }
        checks = EXPERIMENTS["yang2019.fig1b"].judge(wrong).checks
        assert all(check.holds == ("straight" in check.claim) for check in checks)

    def test_a_bent_line(self, computed):
        wrong = {
            cell: replace(
                r,
                log_gradients=tuple(
                    tuple(v * abs(v / row[0]) for v in row) for row in r.log_gradients
                ),
            )
            for cell, r in computed("yang2019.fig1b").items()
        }
        checks = EXPERIMENTS["yang2019.fig1b"].judge(wrong).checks
        assert not any(check.holds for check in checks if "straight" in check.claim)

    @pytest.mark.parametrize("place", [1.15, 1.605])
    def test_a_transition_elsewhere(self, computed, place):
        wrong = {
            cell: replace(r, transition=Estimate(place, 0.0, "wrong"))
            for cell, r in computed("yang2019.fig1c").items()
        }
        assert not any(judged("yang2019.fig1c", wrong))

    def test_no_symmetry_breaking(self, computed):
        below, above = computed("yang2019.fig1d")
        equal = computed("yang2019.fig1d")[below]
        assert judged("yang2019.fig1d", {below: equal, above: equal}) == [True, True, False, False]

    def test_a_boundary_that_falls_with_the_batch_size(self, computed):
        line = points(computed("yang2019.fig2a"))
        wrong = dict(zip(line, reversed(line.values()), strict=True))
        assert judged("yang2019.fig2a", wrong) == [False] * 2

    @pytest.mark.parametrize("panel", ["a", "b"])
    def test_curves_upside_down(self, panel, computed):
        wrong = with_line(
            computed(f"yang2019.fig4{panel}"),
            lambda point: replace(point, depth=point.linear_depth**2 / point.depth),
        )
        assert not any(judged(f"yang2019.fig4{panel}", wrong)[:1])

    def test_a_divergence_of_another_power(self, computed):
        wrong = with_line(
            computed("yang2019.fig4c"), lambda point: replace(point, depth=point.depth**0.5)
        )
        assert judged("yang2019.fig4c", wrong)[1::3] == [False]

    def test_a_divergence_elsewhere(self, computed):
        results = computed("yang2019.fig4d")
        wrong = {
            replace(cell, eps=1.3 * cell.eps): record for cell, record in points(results).items()
        }
        assert not any(judged("yang2019.fig4d", wrong))


@pytest.mark.parametrize("name", TRAINED)
def test_a_few_steps_of_one_seed_are_not_judged(name, computed):
    verdict = EXPERIMENTS[name].judge(computed(name))
    assert verdict.outcome == "not judged"
    assert "training" in verdict.left_out[0]
