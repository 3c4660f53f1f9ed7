"""A verdict is the source's claim and nothing else."""

import pytest

from equipoise_papers.experiments.verdict import Check, Verdict, ours
from support.cases import each

YES, NO, OPEN = (Check("claim", "found", holds) for holds in (True, False, None))


@pytest.mark.parametrize(
    ("checks", "left_out", "outcome"),
    [
        ((YES, YES), (), "holds"),
        ((YES, YES), ("a panel",), "holds"),
        ((YES, NO), (), "mixed"),
        ((YES, NO, OPEN), (), "mixed"),
        ((YES, OPEN), (), "partly open"),
        ((YES, YES, OPEN, OPEN), (), "partly open"),
        ((NO, NO), (), "fails"),
        ((NO, OPEN), (), "fails"),
        ((OPEN,), (), "undecided"),
        ((), (), "not judged"),
    ],
)
class TestOutcome:
    def test_it_counts_the_source_s_sentences(self, checks, left_out, outcome):
        assert Verdict(checks, left_out).outcome == outcome

    @each("own", [YES, NO, OPEN])
    def test_sentences_of_ours_change_nothing(self, checks, left_out, outcome, own):
        assert Verdict((*checks, ours(own)), left_out).outcome == outcome


def test_a_sentence_says_whose_it_is():
    assert (NO.sentence, ours(NO).sentence) == ("claim", "not in the paper: claim")
    assert [check.answer for check in (YES, NO, OPEN)] == ["yes", "no", "undecided"]
