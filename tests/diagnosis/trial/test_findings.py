"""Findings about a trial follow from records written by hand."""

import dataclasses

from equipoise.diagnosis.trial.findings import conclude_trial
from equipoise.records import Estimate
from support.report_examples import trial


def with_gain(**changes):
    """The trial whose comparison of BNP is another one."""
    control, bnp = trial().gains
    return dataclasses.replace(trial(), gains=(control, dataclasses.replace(bnp, **changes)))


def test_without_a_trial_there_is_nothing_to_say():
    assert conclude_trial(None) == []


def test_a_gain_is_good_and_says_when_it_is_reached():
    (finding,) = conclude_trial(trial())
    assert finding.severity == "good"
    assert "reached after 64 of 200 steps" in finding.detail
    assert "BNP(model).attach(optimizer)" in finding.remedy


def test_standardised_inputs_that_help_too_are_compared():
    control, bnp = trial().gains
    control = dataclasses.replace(
        control, helps=True, difference=Estimate(-0.2, 0.01, "mean over seeds")
    )
    _, finding = conclude_trial(dataclasses.replace(trial(), gains=(control, bnp)))
    assert finding.title == "Standardised inputs alone help too"
    assert "51 % of what preconditioning gains" in finding.detail


def test_a_gain_within_its_error_is_a_note():
    (finding,) = conclude_trial(with_gain(helps=False))
    assert finding.title == "Preconditioning does not train this model measurably better"
    assert finding.severity == "note"


def test_one_seed_is_too_few():
    (finding,) = conclude_trial(with_gain(helps=None))
    assert finding.title == "One seed is too few to tell whether preconditioning helps"
    assert finding.remedy == "Try more seeds."


def test_a_trial_that_was_not_possible_says_why():
    reason = "there is no layer to precondition"
    arms = tuple(
        dataclasses.replace(arm, reason=reason if arm.name == "BNP" else None)
        for arm in trial().arms
    )
    (finding,) = conclude_trial(dataclasses.replace(trial(), arms=arms, gains=()))
    assert (finding.title, finding.detail) == ("Preconditioning could not be tried", reason)
