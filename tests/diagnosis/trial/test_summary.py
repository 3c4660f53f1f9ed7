"""The gain of a variant: differences seed by seed, and what they can tell."""

import pytest

from equipoise.diagnosis.trial.summary import gain_record
from equipoise.training.record import History


def histories(*finals, diverged=None):
    return [History((final,) * 8, 0.8, (), diverged) for final in finals]


def test_differences_are_seed_by_seed():
    """Seeds differ by much more than the arms, which pairing takes out."""
    gain = gain_record("x", histories(1, 2, 3), histories(0.9, 1.91, 2.89))
    assert gain.difference.value == pytest.approx(-0.1)
    assert gain.helps


def test_a_difference_within_its_error_does_not_help():
    assert not gain_record("x", histories(1, 2, 3), histories(0.5, 2.4, 2.9)).helps


def test_one_seed_cannot_tell():
    assert gain_record("x", histories(1), histories(0.5)).helps is None


def test_divergence_never_helps_and_curing_it_does():
    bad, good = histories(1, 1, diverged=3), histories(1, 1)
    assert gain_record("x", good, bad).helps is False
    assert gain_record("x", bad, good).helps is True


def test_steps_and_seconds_to_the_same_loss():
    falling = [History(tuple(8.0 - i for i in range(8)), 1.6)] * 2
    gain = gain_record("x", histories(5, 5), falling)
    assert gain.steps == 4
    assert gain.seconds == pytest.approx(0.8)
