"""RUN's theorem, cost and accuracy: cells are pure, verdicts can fail, figures are drawn."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn

from equipoise.data import DataNotFoundError
from equipoise.pooling.vectorise import bilinear
from equipoise.records import from_plain, to_plain
from equipoise_papers.reproduction.style import empty_figure, house_style
from equipoise_papers.yu2020 import (
    EXPERIMENTS,
    accuracy,
    folders,
    runs,
    speed,
    synthetic,
    theorem1,
)
from equipoise_papers.yu2020.averages import averaged_forms, features, printed_inequality
from equipoise_papers.yu2020.methods import METHODS, NEWTON, RUN1, SVD_ROOT, inputs, svd_root
from equipoise_papers.yu2020.networks import HEADS
from equipoise_papers.yu2020.runs import Cell, Score
from equipoise_papers.yu2020.timing import forward_backward, in_turns, saved_bytes

FLOAT = torch.float64


def drawn(experiment, results):
    with house_style():
        figure = empty_figure(1, 2)
        experiment.draw(figure.subfigures(1, 1), results)
        return figure.subfigs[0].axes


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.name)
@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_cells_are_distinct_and_are_stored(experiment, scale):
    cells = experiment.cells(scale)
    assert len(set(cells)) == len(cells) > 0
    assert from_plain(type(cells[0]), to_plain(cells[0])) == cells[0]


class TestTheorem1:
    cell = theorem1.Cell("mild", theorem1.SPECTRA["mild"], 1, 0.5, 4000, 4000)

    def test_a_cell_is_pure_and_the_theorem_holds(self):
        found = theorem1.run(self.cell)
        torch.manual_seed(99)
        assert theorem1.run(self.cell) == found
        assert from_plain(theorem1.Averages, to_plain(found)) == found
        assert max(found.shares.largest, found.matrix.largest, found.factor.largest) < 4.5

    def test_features_have_the_spectrum(self):
        sigma = torch.tensor([3.0, 2.0, 0.5], dtype=FLOAT)
        F, U = features(sigma, torch.Generator().manual_seed(0))
        torch.testing.assert_close(U.mT @ F.mT @ F @ U, torch.diag(sigma))

    def test_means_are_those_of_all_starts_at_once(self):
        """4,001 starts come in two chunks."""
        sigma = torch.tensor([3.0, 1.0], dtype=FLOAT)
        F, U = features(sigma, torch.Generator().manual_seed(0))
        generator = torch.Generator().manual_seed(1)
        _, factor = averaged_forms(F, U, eta=1.0, num_steps=1, draws=4001, generator=generator)
        starts = torch.cat(
            [torch.randn(n, 2, generator=generator.manual_seed(1), dtype=FLOAT) for n in (4000,)]
            + [torch.randn(1, 2, generator=generator, dtype=FLOAT)]
        )
        B = F.mT @ F
        v = nn.functional.normalize(starts @ B, dim=-1)
        left = torch.eye(2, dtype=FLOAT) - v[:, :, None] * v[:, None]
        whole = U.mT @ (left @ B @ left) @ U
        torch.testing.assert_close(factor.values, whole.mean(0))
        torch.testing.assert_close(factor.errors, whole.std(0) / math.sqrt(4001))

    def test_the_printed_inequality_fails_only_where_the_order_of_b_is_reversed(self):
        """Erratum 1: in 9 to 37 % of starts, whatever pair is looked at."""
        sigma = torch.tensor([3.0, 2.0, 1.5, 1.0, 0.5], dtype=FLOAT)
        generator = torch.Generator().manual_seed(0)
        broken, sound = printed_inequality(sigma, num_steps=1, draws=20_000, generator=generator)
        assert sound == 0
        assert 0.08 < float(broken.min()) < 0.10
        assert 0.36 < float(broken.max()) < 0.38

    def results(self, **changes):
        def averages(cell):
            after = (1.298, 1.645, 1.0) if cell.num_steps == 8 else cell.eigenvalues
            fine = theorem1.Comparison(after, after, (0.01,) * len(after), 2.0, len(after))
            shares = dataclasses.replace(fine, predicted=(0.7, 0.2, 0.1))
            found = theorem1.Averages(shares, fine, fine, (0.1, 0.37), 0)
            return dataclasses.replace(found, **changes)

        return {cell: averages(cell) for cell in theorem1.cells("small")}

    def test_what_we_found_is_judged_partly_because_of_the_printed_proof(self):
        verdict = theorem1.judge(self.results())
        assert [c.holds for c in verdict.checks] == [True, True, True, True, False, True]
        assert verdict.outcome == "partly"

    def test_a_wrong_theorem_would_be_found_out(self):
        off = theorem1.Comparison((0.1, 0.9, 0.0), (0.9, 0.1, 0.0), (0.01,) * 3, 80.0, 3)
        verdict = theorem1.judge(self.results(shares=off, matrix=off))
        assert [c.holds for c in verdict.checks][:3] == [False, False, False]

    def test_figure(self):
        assert len(drawn(theorem1.EXPERIMENT, self.results())) == 4


class TestTiming:
    def test_bytes_saved_are_counted_once_and_beside_the_input(self):
        x = torch.randn(4, 5)
        assert saved_bytes(lambda x: x * x, x) == 0
        assert saved_bytes(lambda x: x.exp().sum(0), x) == 4 * 5 * 4
        assert saved_bytes(lambda x: (x.exp() ** 2).flatten(), x) == 4 * 5 * 4
        assert saved_bytes(nn.Linear(5, 3), x) == 0

    def test_run_saves_what_the_specification_says(self):
        """At most (K + 1)(N + D) + 2K numbers a sample."""
        for name, K in ((RUN1, 1), ("RUN, K = 2", 2)):
            (method,) = [m for m in METHODS if (m.name, m.part) == (name, "normalisation")]
            fed = inputs(method, 2, 4, 8)
            numbers = saved_bytes(method.make(8), fed) / 4 / 2
            assert 0 < numbers <= (K + 1) * (16 + 8) + 2 * K + 8  # and the start

    def test_methods_take_turns(self):
        order = []
        passes = {name: lambda name=name: order.append(name) for name in "ab"}
        found = in_turns(passes, 2, torch.device("cpu"))
        assert len(found["a"].wall) == len(found["b"].cpu) == 2
        tries = len(order) // 8
        assert order == (["a"] * tries + ["b"] * tries) * 4

    @pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.part} {m.name}")
    def test_every_method_passes_back(self, method):
        fed = inputs(method, 2, 4, 4)
        forward = method.make(4)
        forward_backward(forward, fed)()
        leaf = fed.clone().requires_grad_()
        forward(leaf).sum().backward()
        assert bool(leaf.grad.isfinite().all())

    def test_operations_are_the_specifications(self):
        """At K = 1 a whole pass of RUN is 22 ND; five Newton-Schulz steps take 72 D³ of 100."""
        by_name = {m.name: m for m in METHODS if m.part == "normalisation"}
        assert by_name[RUN1].operations(784, 512) == 22 * 784 * 512
        assert by_name[NEWTON].operations(784, 512) == 72 * 512**3

    def test_a_floor_is_the_slower_of_operations_and_traffic(self):
        (method,) = [m for m in METHODS if (m.name, m.part) == (RUN1, "normalisation")]
        rates = {"rate": 1e9, "bandwidth": 1e30}
        assert method.floor_seconds(2, 10, 5, **rates) == pytest.approx(2 * 22 * 50 / 1e9)
        rates = {"rate": 1e30, "bandwidth": 1e9}
        assert method.floor_seconds(2, 10, 5, **rates) == pytest.approx(2 * 5 * 50 * 4 / 1e9)

    def test_the_svd_root_is_a_root(self):
        F = torch.randn(1, 6, 3, dtype=FLOAT)
        square = bilinear(svd_root(F), scale="none")
        torch.testing.assert_close(square @ square, bilinear(F, scale="none"))


class TestSpeed:
    def results(self, newton, *, device="cpu", run=1.0):
        def timings(cell):
            D = cell.channels
            times = {NEWTON: newton * (D / 512) ** 3, RUN1: run * D / 512}
            rows = tuple(
                speed.Timing(m.part, m.name, t, t, t, 1000, t / 2)
                for m in METHODS
                for t in [times.get(m.name, 1.1)]
            )
            return speed.Timings(rows, 1e11, 1e10)

        cells = [dataclasses.replace(c, device=device) for c in speed.cells("small")]
        return {c: timings(c) for c in cells if c.device == device}

    def test_what_the_paper_says_is_judged_reproduced_on_a_gpu(self):
        results = self.results(1e6, device="cuda", run=1e-4)
        checks = speed.judge(results).checks
        assert [check.holds for check in checks] == [True, True, True, True, False, True]

    def test_a_factor_of_ten_is_not(self):
        verdict = speed.judge(self.results(10.0, run=0.9))
        assert not verdict.checks[0].holds
        assert not verdict.checks[2].holds
        assert verdict.left_out == ("timings on a GPU",)

    def test_an_expensive_run_is_found_out(self):
        checks = speed.judge(self.results(10.0, run=30.0)).checks
        assert not checks[1].holds
        assert not checks[5].holds

    def test_a_cell_times_every_method_and_is_drawn(self):
        cell = speed.Cell(16, 4, 2, 1, "cpu")
        found = speed.run(cell)
        assert [(row.part, row.method) for row in found.rows] == [
            (m.part, m.name) for m in METHODS
        ]
        assert found.row("normalisation", RUN1).ratio == 1.0
        assert from_plain(speed.Timings, to_plain(found)) == found
        assert speed.judge({cell: found}).checks == ()

    def test_figure(self):
        assert len(drawn(speed.EXPERIMENT, self.results(10.0))) == 3

    def test_every_size_is_a_square_map(self):
        for scale in ("smoke", "small", "paper"):
            assert all(math.isqrt(c.positions) ** 2 == c.positions for c in speed.cells(scale))
        assert SVD_ROOT in {m.name for m in METHODS}


class TestAccuracy:
    def test_the_task_is_the_specifications(self):
        """Class covariances LᵀL, and one common direction with a bursty amplitude."""
        problem = synthetic.task(classes=2, channels=6, positions=400, train=300, test=10, seed=0)
        x, y = problem.train, problem.train_classes
        leading = torch.linalg.eigh(bilinear(x).mean(0)).eigenvectors[:, -1]
        assert bool((leading > 0).all() | (leading < 0).all())
        apart = torch.eye(6, dtype=FLOAT) - torch.outer(leading, leading)
        per_class = [apart @ bilinear(x[y == c].flatten(0, 1)) @ apart for c in (0, 1)]
        assert float((per_class[0] - per_class[1]).abs().max()) > 0.05
        amplitude = (x @ leading).mean(1).abs().log()
        assert float(amplitude.std()) == pytest.approx(0.8, abs=0.15)

    def test_a_cell_is_pure(self):
        cell = Cell("synthetic", "reduced", "RUN, η = 0.5, K = 1", 0)
        found = runs.run(cell)
        torch.manual_seed(99)
        assert runs.run(cell) == found
        assert found.accuracy > 0.3
        assert not math.isnan(found.other_start)
        plain = runs.run(Cell("synthetic", "reduced", "plain", 0))
        assert math.isnan(plain.other_start)

    @pytest.mark.parametrize("head", HEADS)
    def test_every_head_trains(self, head):
        before = torch.get_rng_state()
        cell = Cell("cnn", "digits", head, 0, 0.003, 3)
        found = runs.run(cell)
        assert math.isfinite(found.loss)
        assert torch.equal(torch.get_rng_state(), before)
        assert to_plain(from_plain(Score, to_plain(found))) == to_plain(found)

    def test_the_rate_is_chosen_by_training_loss(self):
        results = {
            Cell("cnn", "x", "plain", seed, rate, 10): Score(test, math.nan, loss)
            for rate, loss, test in ((0.1, 0.5, 0.9), (0.2, 0.4, 0.8), (0.3, 0.6, 0.95))
            for seed in (0, 1)
        }
        best = accuracy.best_of(results, "cnn")["plain"]
        assert best.rate == 0.2
        assert best.accuracies == (80.0, 80.0)
        assert not best.at_edge

    def results(self, level, scale="small"):
        def score(cell):
            points = level(cell.method) + 0.001 * cell.seed
            lost = 0.02 if "K = 1" in cell.method else 0.0
            other = points - lost - 0.0001 * cell.seed if "RUN" in cell.method else math.nan
            return Score(points, other, 0.5 + abs(cell.rate - 0.003))

        return {cell: score(cell) for cell in accuracy.cells(scale)}

    def test_what_the_paper_says_is_judged_reproduced(self):
        def as_claimed(method):
            return 0.9 if "RUN" in method or "iSQRT" in method else 0.85

        verdict = accuracy.judge(self.results(as_claimed))
        assert all(check.holds for check in verdict.checks)
        assert verdict.outcome == "partly"  # the public benchmarks are left out
        assert not accuracy.judge(self.results(as_claimed, "paper")).left_out

    def test_the_opposite_is_not(self):
        verdict = accuracy.judge(self.results(lambda method: 0.8 if "RUN" in method else 0.85))
        assert [check.holds for check in verdict.checks].count(True) == 1

    def test_smoke_is_not_judged(self):
        assert accuracy.judge(self.results(lambda method: 0.9, "smoke")).checks == ()

    def test_figure(self):
        assert len(drawn(accuracy.EXPERIMENT, self.results(lambda method: 0.9))) == 2


class TestFolders:
    def test_a_missing_set_says_what_to_do(self, tmp_path):
        with pytest.raises(DataNotFoundError, match="one folder of images per class"):
            folders.image_folder("cub", tmp_path)

    def test_a_set_is_found(self, tmp_path):
        for part in ("train", "test"):
            (tmp_path / "cub" / part / "wren").mkdir(parents=True)
        assert folders.image_folder("cub", tmp_path) == tmp_path / "cub"

    def test_a_missing_torchvision_is_one_clear_error(self, monkeypatch):
        def refuse(name):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        monkeypatch.setattr(folders.importlib, "import_module", refuse)
        with pytest.raises(ValueError, match="pip install torchvision pillow"):
            folders.torchvision()
