"""Times and operations with batch norm and with BNP: counts by hand, verdicts that can fail."""

from __future__ import annotations

import pytest
import torch

from equipoise.records import from_plain, to_plain
from equipoise_papers.experiments.style import empty_figure, house_style
from equipoise_papers.lange2022.timing import table1, timed


class TestTable1:
    def test_operations_are_the_papers_count(self):
        model = timed._network("fc", "vanilla")
        n, m = (784, 100, 100), (100, 100, 10)
        batch = torch.zeros(16, 1, 28, 28)
        own = timed._operations(model, batch)
        assert own == sum(6 * 16 * a * b for a, b in zip(n, m, strict=True))
        expected = sum(4 * a * 16 + 8 * a + 6 * a * b + 2 * b for a, b in zip(n, m, strict=True))
        assert timed._extra(model, "BNP", batch) == expected
        normalised = timed._network("fc", "BN and input")
        extra = timed._extra(normalised, "BN and input", batch)
        assert extra == sum(32 * a * 16 + 4 * a for a in n)

    def test_statistics_every_ten_steps_cost_a_tenth(self):
        model = timed._network("fc", "vanilla")
        batch = torch.zeros(512, 1, 28, 28)
        often, seldom = (timed._extra(model, v, batch) for v in ("BNP", "BNP every 10 steps"))
        transformation = 6 * (784 + 100) * 100 + 6 * 1000 + 2 * 210
        assert (often - transformation) == pytest.approx(10 * (seldom - transformation))

    def test_a_cell_times_every_variant(self):
        timings = timed.TimedNetwork("fc", 1, 10).run()
        assert {row.variant for row in timings.rows} == set(timed.VARIANTS)
        assert timings.ratio(16, "vanilla") == 1.0
        assert from_plain(timed.Timings, to_plain(timings)) == timings

    def timed(self, **changes):
        return {timed.TimedNetwork("fc", 40, 20): self.timings(**changes)}

    def timings(self, **changes):
        def row(batch, variant, ratio):
            return timed.Timing(batch, variant, 1.0, ratio, ratio, 1.05)

        ratios = {"vanilla": 1, "BN": 1.2, "BN and input": 1.5, "BNP": 1.21}
        ratios |= {"BNP by step()": 1.2, "BNP every 10 steps": 1.1} | changes
        return timed.Timings(
            tuple(row(b, v, r) for b in (16, 256, 512) for v, r in ratios.items())
        )

    def on_a_gpu(self, steps, epochs):
        return self.timed() | {
            timed.TimedNetwork("fc", 40, 20, "cuda"): self.timings(BNP=steps),
            timed.TimedNetwork("fc", 40, 20, "cuda", loads=True): self.timings(BNP=epochs),
        }

    @pytest.mark.parametrize(
        ("steps", "epochs", "at_small", "at_large"),
        [
            (1.21, 1.22, True, True),
            (2.4, 1.22, True, None),
            (2.4, 2.2, True, False),
            (1.1, 1.22, None, True),
            (1.1, 1.15, False, True),
        ],
    )
    def test_a_gpu_decides_where_steps_and_epochs_agree(self, steps, epochs, at_small, at_large):
        verdict = table1.judge(self.on_a_gpu(steps, epochs))
        assert [check.holds for check in verdict.checks[:2]] == [at_small, at_large]
        assert not any("GPU" in words for words in verdict.left_out)
        assert verdict.fidelity == "reduced"

    def test_images_are_converted_one_by_one(self):
        batches = timed._loaded(4, torch.device("cpu"))
        x, y = next(batches)
        assert (x.shape, y.shape) == ((4, 1, 28, 28), (4,))
        assert (x.min().item(), x.max().item()) == (-2.0, 2.0)
        assert not torch.equal(x, next(batches)[0])
        alone = timed._the_same(4, torch.device("cpu"))
        assert next(alone)[0] is next(alone)[0]

    def test_a_cpu_decides_nothing_that_is_said_of_a_gpu(self):
        verdict = table1.judge(self.timed())
        assert [check.holds for check in verdict.checks] == [None] * 2 + [True] * 4
        assert [check.ours for check in verdict.checks] == [False] * 2 + [True] * 4
        assert verdict.fidelity == "reduced"
        assert "GPU" in verdict.left_out[0]

    @pytest.mark.parametrize(
        ("changes", "failing"),
        [
            ({"BNP": 1.19}, 2),
            ({"BNP": 1.27}, 3),
            ({"BNP": 1.51}, 4),
            ({"BNP every 10 steps": 1.4}, 5),
        ],
        ids=["faster at 16", "slower at 256", "dearer than all of BN", "dear even if seldom"],
    )
    def test_each_sentence_of_ours_can_fail(self, changes, failing):
        assert table1.judge(self.timed(**changes)).checks[failing].holds is False

    def test_a_share_of_five_per_cent_is_level(self):
        assert table1.judge(self.timed(BNP=1.25)).checks[3].holds

    def test_figure_is_drawn(self):
        with house_style():
            table1.draw(empty_figure().subfigures(1, 1), self.timed())
            figure = empty_figure()
            table1.draw(figure.subfigures(1, 1), self.on_a_gpu(1.2, 1.3))
        titles = [axes.get_title(loc="left") for axes in figure.subfigs[0].axes]
        assert titles == ["2 × 100, CPU", "2 × 100, GPU", "2 × 100, GPU, data loader"]
