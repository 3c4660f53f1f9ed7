"""An engine is refused before any work if it cannot do it, and says why."""

import sys
import time

import pytest

from equipoise_papers.sweeps.backends import Engine


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "slurm"}, "backend must be one of loky, threading, dask, ray, got 'slurm'"),
        ({"jobs": 0}, "jobs must be at least 1, got 0"),
        ({"backend": "dask", "jobs": 2}, "a Dask cluster brings its own"),
        ({"scheduler": "tcp://host:1"}, "loky works on this machine and has no scheduler"),
    ],
)
def test_settings_that_do_not_fit_together(settings, message):
    with pytest.raises(ValueError, match=message):
        Engine(**settings)


@pytest.mark.parametrize(
    ("backend", "module"), [("dask", "distributed"), ("ray", "ray")], ids=["dask", "ray"]
)
def test_a_backend_that_is_not_installed(backend, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not
    with pytest.raises(ValueError, match=rf"needs the package {module}: pip install 'equip"):
        list(Engine(backend=backend).stream(abs, [1]))


@pytest.mark.parametrize("jobs", [1, 3])
def test_answers_come_as_soon_as_they_are_known(jobs):
    """With one worker in order, with three the quick ones first."""

    def slow(seconds):
        time.sleep(seconds)
        return seconds

    waits = [0.6, 0.3, 0.0]
    answers = list(Engine(backend="threading", jobs=jobs).stream(slow, waits))
    assert answers == (waits if jobs == 1 else waits[::-1])


def test_closing_cancels_what_is_left():
    begun = []
    answers = Engine(backend="threading", jobs=1).stream(begun.append, range(1000))
    next(answers)
    answers.close()
    assert len(begun) < 10


def test_an_exception_of_the_work_comes_through():
    with pytest.raises(ZeroDivisionError):
        list(Engine(backend="threading", jobs=2).stream(lambda x: 1 / x, [1, 0]))
