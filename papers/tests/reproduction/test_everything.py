"""All experiments are reproduced, even if one fails; interruptions lose nothing."""

from __future__ import annotations

import pytest

from equipoise_papers.reproduction.catalogue import EXPERIMENTS
from equipoise_papers.reproduction.everything import reproduce_all
from papers_support.toy_experiments import Calculator, squares
from papers_support.toy_report import catalogue_of

NAMES = ("toy.first", "toy.second", "toy.third")


@pytest.fixture
def calculators():
    """The calculators of three toy experiments, which are the whole catalogue."""
    made = {name: Calculator() for name in NAMES}
    with catalogue_of(*(squares(calculator, name=name) for name, calculator in made.items())):
        yield made


def test_every_experiment_has_a_verdict(calculators, tmp_path):
    done = reproduce_all(scale="smoke", out=tmp_path)
    assert [(run.experiment, run.outcome) for run in done.runs] == [
        (name, "holds") for name in NAMES
    ]
    assert done.failed == ()
    assert all((tmp_path / name / "smoke" / "verdict.json").is_file() for name in NAMES)


def test_one_that_breaks_off_does_not_stop_the_others(calculators, tmp_path):
    def judge(results):
        raise ZeroDivisionError("no seeds")

    broken = squares(calculators["toy.second"], name="toy.second", judge=judge)
    EXPERIMENTS["toy.second"] = broken
    done = reproduce_all(scale="smoke", out=tmp_path)
    (failed,) = done.failed
    assert (failed.experiment, failed.outcome) == ("toy.second", None)
    assert failed.failure == "ZeroDivisionError: no seeds"
    assert done.runs[2].outcome == "holds"


def test_failed_cells_are_a_failure_with_the_first_reason(calculators, tmp_path):
    calculators["toy.first"].trouble[2.0] = OSError("no CIFAR-10")
    done = reproduce_all(scale="smoke", out=tmp_path)
    (failed,) = done.failed
    assert (failed.experiment, failed.outcome) == ("toy.first", "incomplete")
    assert failed.failure == "1 of 3 cells failed: Number(value=2.0): OSError: no CIFAR-10"


def test_an_interrupted_run_goes_on_where_it_was(calculators, tmp_path):
    calculators["toy.second"].trouble[3.0] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        reproduce_all(scale="smoke", out=tmp_path)
    assert calculators["toy.third"].calls == []
    calculators["toy.second"].trouble.clear()
    assert reproduce_all(scale="smoke", out=tmp_path).failed == ()
    assert calculators["toy.first"].calls == [1.0, 2.0, 3.0]
    assert calculators["toy.second"].calls == [1.0, 2.0, 3.0, 3.0]


def test_progress_names_the_experiment_and_how_many_there_are(calculators, tmp_path):
    told, ends = [], []
    reproduce_all(
        scale="smoke",
        out=tmp_path,
        progress=lambda *update: told.append(update),
        concluded=lambda number, total, run: ends.append((number, total, run.experiment)),
    )
    assert ("2 of 3: toy.second", 1, 3) in told
    assert ends == [(i, 3, name) for i, name in enumerate(NAMES, start=1)]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"jobs": 0}, "jobs must be at least 1"), ({"shard": (3, 2)}, "a shard is i/n")],
)
def test_what_would_fail_everywhere_is_refused_at_once(calculators, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        reproduce_all(scale="smoke", out=tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()
