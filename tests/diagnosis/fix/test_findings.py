"""Findings about remedies follow from records written by hand."""

import dataclasses

from equipoise.diagnosis.fix.findings import conclude_fix, proved
from support.report_examples import fixing


def without_best(**changes):
    """No remedy is recommended, and the gains are other ones."""
    gains = tuple(dataclasses.replace(gain, **changes) for gain in fixing().gains)
    return dataclasses.replace(fixing(), best=None, gains=gains)


def test_without_a_fix_there_is_nothing_to_say():
    assert conclude_fix(None) == []


def test_a_remedy_that_helps_is_good_news_with_its_interval():
    finding, _ = conclude_fix(fixing())
    assert finding.severity == "good"
    assert finding.title.endswith("start every norm's shift β at 0.5")
    assert "9 of 10 cases: −0.41 to −0.38" in finding.detail


def test_that_none_helps_is_a_note():
    finding, _ = conclude_fix(without_best(helps=False))
    assert finding.title == "No remedy trains this model measurably better"
    assert finding.severity == "note"


def test_a_choice_that_may_be_chance_says_so():
    gains = tuple(dataclasses.replace(gain, helps=False) for gain in fixing().gains)
    unsure = dataclasses.replace(fixing(), gains=gains)
    finding, _ = conclude_fix(unsure)
    assert finding.title == "Start every norm's shift β at 0.5 is ahead, perhaps by chance"
    assert proved(unsure) == ""


def test_one_seed_is_too_few():
    finding, _ = conclude_fix(without_best(helps=None))
    assert finding.title == "One seed is too few to tell whether a remedy helps"


def test_a_larger_batch_is_told_from_accumulation():
    _, finding = conclude_fix(fixing())
    assert finding.title == "Batches of 256 samples would help, accumulated gradients would not"
    plain, *rest = fixing().arms
    likely = dataclasses.replace(fixing(), arms=(dataclasses.replace(plain, measured=0.95), *rest))
    assert len(conclude_fix(likely)) == 1


def test_what_a_race_has_shown_is_what_to_do():
    assert proved(fixing()).startswith(
        "Start every norm's shift β at 0.5: beside the model as it is"
    )


def test_and_nothing_else_is():
    assert proved(None) == proved(without_best(helps=False)) == ""
