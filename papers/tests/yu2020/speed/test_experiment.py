"""The cost of RUN: a cell times every method, verdicts can fail."""

from __future__ import annotations

import dataclasses
import math

from equipoise.records import from_plain, to_plain
from equipoise_papers.yu2020.speed import experiment as speed
from equipoise_papers.yu2020.speed.methods import METHODS, NEWTON, RUN1, SVD_ROOT
from papers_support.drawings import drawn


class TestSpeed:
    spread = 0.01

    def turns(self, time):
        """Eight turns, half of them faster and half slower."""
        return tuple(time * (1 + self.spread * place) for place in (-2, -1, -1, 0, 0, 1, 1, 2))

    def results(self, newton, *, device="cpu", run=1.0):
        def timings(cell):
            D = cell.channels
            times = {NEWTON: newton * (D / 512) ** 3, RUN1: run * D / 512}
            rows = tuple(
                speed.Timing(m.part, m.name, self.turns(t), 1000, t / 2)
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
        checks = speed.judge(self.results(10.0, device="cuda", run=0.9)).checks
        assert (checks[0].holds, checks[2].holds) == (False, False)

    def test_a_cpu_decides_no_sentence_about_gpus(self):
        for newton in (10.0, 1e6):
            verdict = speed.judge(self.results(newton, run=0.9))
            assert [verdict.checks[place].holds for place in (0, 2, 4)] == [None] * 3
            assert "on a GPU" in verdict.left_out[0]
            assert "784 × 512" in verdict.left_out[1]

    def test_a_slow_run_fails_the_checks(self):
        checks = speed.judge(self.results(10.0, run=30.0)).checks
        assert not checks[1].holds
        assert not checks[5].holds

    def test_turns_on_both_sides_of_a_limit_decide_nothing(self):
        """Newton–Schulz takes as long as RUN in the middle of its turns."""
        one = speed.Timing("head", NEWTON, (0.9, 1.1) * 4, 0, 0.0)
        run = speed.Timing("head", RUN1, (1.0,) * 8, 0, 0.0)
        found = speed.Timings((one, run), 1e11, 1e10).times_slower("head", NEWTON, RUN1)
        assert (found.low, found.median, found.high) == (0.9, 1.0, 1.1)
        assert [found.above(bound) for bound in (0.8, 1.0, 1.2)] == [True, None, False]

    def test_a_cell_times_every_method_and_is_drawn(self):
        cell = speed.TimedSize(16, 4, 2, 1, "cpu")
        found = cell.run()
        assert [(row.part, row.method) for row in found.rows] == [
            (m.part, m.name) for m in METHODS
        ]
        assert len(found.row("normalisation", RUN1).milliseconds) == cell.turns
        assert found.times_slower("normalisation", RUN1, RUN1).median == 1.0
        assert from_plain(speed.Timings, to_plain(found)) == found
        assert speed.judge({cell: found}).checks == ()

    def test_figure(self):
        assert len(drawn(speed.EXPERIMENT, self.results(10.0))) == 3

    def test_every_size_is_a_square_map(self):
        for scale in ("smoke", "small", "paper"):
            assert all(math.isqrt(c.positions) ** 2 == c.positions for c in speed.cells(scale))
        assert SVD_ROOT in {m.name for m in METHODS}
