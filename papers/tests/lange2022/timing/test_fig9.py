"""Fig. 9 from Table 1's records: one store, the paper's seconds, verdicts that can fail."""

from __future__ import annotations

import pytest

from equipoise_papers.experiments.style import empty_figure, house_style
from equipoise_papers.lange2022.timing import fig9, table1, timed

FC = timed.TimedNetwork("fc", 40, 20)
# Table 1, seconds per epoch.
PAPER = {16: (16.08, 16.69), 256: (10.81, 10.70), 512: (10.67, 10.57)}


def timings(seconds):
    """Records of so many seconds per epoch with BN and with BNP."""
    rows = []
    for batch, (bn, bnp) in seconds.items():
        times = {"vanilla": 10.0, "BN": bn, "BN and input": bn, "BNP": bnp}
        times |= {"BNP by step()": bnp, "BNP every 10 steps": bnp}
        rows += [
            timed.Timing(batch, name, 1e3 * time * batch / 50_000, time / 10, time / 10, 1.0)
            for name, time in times.items()
        ]
    return timed.Timings(tuple(rows))


def test_nothing_is_computed_that_table_1_has_computed():
    ours, theirs = fig9.EXPERIMENT, table1.EXPERIMENT
    assert ours.filed_under == theirs.filed_under
    assert ours.revision == theirs.revision
    assert ours.cells("small") == theirs.cells("small")
    assert ours.name != theirs.name


def test_an_epoch_is_all_its_steps():
    rows = timings(PAPER).rows
    assert [fig9.epoch_seconds(row) for row in rows if row.variant == "BN"] == pytest.approx(
        [16.08, 10.81, 10.67]
    )


class TestVerdict:
    def test_the_papers_own_times_bear_it_out(self):
        verdict = fig9.judge({FC: timings(PAPER)})
        assert [check.holds for check in verdict.checks] == [None, True]
        assert verdict.fidelity == "reduced"  # no GPU

    @pytest.mark.parametrize("batch", PAPER)
    @pytest.mark.parametrize("bnp", [9.4, 10.6])
    def test_a_difference_at_any_batch_size_is_not_small(self, batch, bnp):
        """Of steps alone; whole epochs, which the paper times, may differ by less."""
        epochs, steps = fig9.judge({FC: timings(PAPER | {batch: (10.0, bnp)})}).checks
        assert (epochs.holds, steps.holds, steps.ours) == (None, False, True)
        share = 100 * (bnp - 10.0) / PAPER[batch][0]
        assert f"{share:.1f} % at {batch}" in epochs.found

    def test_it_judges_no_sentence_of_table_1(self):
        """A little faster or slower is Table 1's; by how little, this figure's."""
        other_way = {16: (10.0, 9.7), 256: (10.0, 10.3), 512: (10.0, 10.3)}
        check, steps = fig9.judge({FC: timings(other_way)}).checks
        assert steps.holds
        assert not table1.judge({FC: timings(other_way)}).checks[2].holds
        assert check.claim not in {c.claim for c in table1.judge({FC: timings(PAPER)}).checks}

    def test_smoke_is_never_judged(self):
        found = {cell: timings(PAPER) for cell in table1.cells("smoke")}
        assert fig9.judge(found).outcome == "not judged"


def test_the_figure_is_the_papers_three_panels():
    with house_style():
        figure = empty_figure()
        fig9.draw(figure.subfigures(1, 1), {FC: timings(PAPER)})
    panels = figure.subfigs[0].axes
    titles = [axes.get_title(loc="left") for axes in panels]
    assert titles == ["batch 16", "batch 256", "batch 512"]
    assert "extrapolated" in panels[0].get_ylabel()
    bn = panels[0].lines[0]
    assert bn.get_ydata()[-1] == pytest.approx(20 * 16.08)


def test_a_figure_without_the_network_says_so():
    with house_style():
        figure = empty_figure()
        fig9.draw(figure.subfigures(1, 1), {timed.TimedNetwork("cnn5", 40, 20): timings(PAPER)})
    assert "not timed yet" in figure.subfigs[0].texts[0].get_text()
