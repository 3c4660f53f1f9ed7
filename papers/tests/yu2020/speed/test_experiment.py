"""The cost of RUN: a cell times every method, verdicts can fail."""

from __future__ import annotations

import math
from dataclasses import replace

from equipoise.pooling import bilinear
from equipoise.records import from_plain, to_plain
from equipoise_papers.yu2020.speed import verdict
from equipoise_papers.yu2020.speed.cells import TimedSize, Timing, Timings, cells
from equipoise_papers.yu2020.speed.experiment import EXPERIMENT
from equipoise_papers.yu2020.speed.methods import METHODS, NEWTON, RUN1, SVD_ROOT
from equipoise_papers.yu2020.speed.verdict import judge
from papers_support.drawings import drawn


class TestSpeed:
    spread = 0.01

    def turns(self, time):
        """Eight turns, half of them faster and half slower."""
        return tuple(time * (1 + self.spread * place) for place in (-2, -1, -1, 0, 0, 1, 1, 2))

    def results(self, newton, *, devices=("cpu",), run=1.0):
        def timings(cell):
            D = cell.channels
            times = {NEWTON: newton * (D / 512) ** 3, RUN1: run * D / 512}
            rows = tuple(
                Timing(m.part, m.name, self.turns(t), 1000, t / 2)
                for m in METHODS
                for t in [times.get(m.name, 1.1)]
            )
            return Timings(rows, 1e11, 1e10)

        return {c: timings(c) for c in cells("small") if c.device in devices}

    def test_what_the_paper_says_is_judged_reproduced_on_a_gpu(self):
        verdict = judge(self.results(1e6, devices=("cpu", "cuda"), run=1e-4))
        assert [c.holds for c in verdict.checks] == [True, True, True, True, False, True]
        assert verdict.fidelity == "reduced"  # the paper's sizes and batches were not available
        assert not any("GPU" in words for words in verdict.left_out)

    def test_a_factor_of_ten_is_not(self):
        checks = judge(self.results(10.0, devices=("cpu", "cuda"), run=0.9)).checks
        assert (checks[0].holds, checks[2].holds) == (False, False)

    def test_operations_are_counted_and_times_told_beside_them(self):
        """At these sizes a GPU takes as long for small matrices as for large ones."""
        results = self.results(10.0, devices=("cpu", "cuda"), run=0.9)
        same = next(iter(results.values()))
        level = {c: r if c.device == "cpu" else same for c, r in results.items()}
        check = judge(level).checks[3]
        assert check == judge(self.results(10.0, run=0.9)).checks[3]
        assert check.holds
        assert "14 ND" in check.found
        assert "72 D³" in check.found
        assert "grows as D to the 3 " in check.found

    def test_a_run_that_forms_second_moments_is_refuted(self, monkeypatch):
        by_name = {m.name: m for m in METHODS if m.part == "normalisation"}
        slow = replace(by_name[RUN1], make=lambda D: lambda F: F @ bilinear(F))
        monkeypatch.setattr(verdict, "methods_of", lambda _: [*{**by_name, RUN1: slow}.values()])
        assert judge(self.results(10.0, run=0.9)).checks[3].holds is False

    def test_a_cpu_decides_no_sentence_about_gpus(self):
        for newton in (10.0, 1e6):
            verdict = judge(self.results(newton, run=0.9))
            assert [verdict.checks[place].holds for place in (0, 2, 4)] == [None] * 3
            assert "on a GPU" in verdict.left_out[0]
            assert "784 × 512" in verdict.left_out[1]

    def test_a_slow_run_fails_the_checks(self):
        checks = judge(self.results(10.0, run=30.0)).checks
        assert not checks[1].holds
        assert not checks[5].holds

    def test_turns_on_both_sides_of_a_limit_decide_nothing(self):
        """Newton–Schulz takes as long as RUN in the middle of its turns."""
        one = Timing("head", NEWTON, (0.9, 1.1) * 4, 0, 0.0)
        run = Timing("head", RUN1, (1.0,) * 8, 0, 0.0)
        found = Timings((one, run), 1e11, 1e10).times_slower("head", NEWTON, RUN1)
        assert (found.low, found.median, found.high) == (0.9, 1.0, 1.1)
        assert [found.above(bound) for bound in (0.8, 1.0, 1.2)] == [True, None, False]

    def test_a_cell_times_every_method_and_is_drawn(self):
        cell = TimedSize(16, 4, 2, 1, "cpu")
        found = cell.run()
        assert [(row.part, row.method) for row in found.rows] == [
            (m.part, m.name) for m in METHODS
        ]
        assert len(found.row("normalisation", RUN1).milliseconds) == cell.turns
        assert found.times_slower("normalisation", RUN1, RUN1).median == 1.0
        assert from_plain(Timings, to_plain(found)) == found
        assert judge({cell: found}).checks == ()

    def test_starts_move_with_their_normalisation(self):
        method = next(m for m in METHODS if (m.part, m.name) == ("normalisation", RUN1))
        assert [b.device.type for b in method.make(4).to("meta").buffers()] == ["meta"]

    def test_figure(self):
        assert len(drawn(EXPERIMENT, self.results(10.0))) == 3

    def test_the_figure_is_a_gpus_if_there_is_one(self):
        figure = drawn(EXPERIMENT, self.results(10.0, devices=("cpu", "cuda")))
        assert figure[0].get_ylabel() == "GPU ms of a batch"
        assert not any(line.get_linestyle() == ":" for line in figure[0].lines)

    def test_where_there_is_no_gpu_its_cells_are_not_missed(self, monkeypatch):
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        here = EXPERIMENT.cells_here("small")
        assert {cell.device for cell in here} == {"cpu"}
        from_elsewhere = cells("small")[-1]
        assert EXPERIMENT.cells_here("small", {from_elsewhere}) == (*here, from_elsewhere)
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        assert EXPERIMENT.cells_here("small") == cells("small")

    def test_every_size_is_a_square_map(self):
        for scale in ("smoke", "small", "paper"):
            assert all(math.isqrt(c.positions) ** 2 == c.positions for c in cells(scale))
        assert SVD_ROOT in {m.name for m in METHODS}
