"""Settings of both test suites: hypothesis' profile, and seeded weights.

PyTorch and hypothesis are imported where they are used: the process that only hands out tests
loads this too, before any other starts.
"""

import gc
import os
from functools import cache, partial
from types import FunctionType

import pytest


def pytest_collection():
    """Choose hypothesis' profile, and collect no garbage while tests are collected, which stay."""
    from hypothesis import settings

    # The first example of a test may fill caches of quadrature rules: no deadline. CI draws the
    # same examples every time; on a developer's machine each run explores further.
    settings.register_profile("equipoise", deadline=None, derandomize="CI" in os.environ)
    settings.load_profile("equipoise")
    gc.disable()


def pytest_collection_modifyitems(items):
    """Begin with tests that fork processes: one worker starts the server, and none waits last."""
    items.sort(key=lambda item: not _forks(getattr(item, "module", None)))


@cache
def _forks(module):
    """Whether a module of tests imports what forks processes."""
    functions = (one for one in vars(module or object).values() if isinstance(one, FunctionType))
    return any(one.__module__ in ("support.forked_ranks", "support.howtos") for one in functions)


def pytest_collection_finish():
    """Leave what collecting made out of garbage collections, which take long with 12,000 tests."""
    # A collection before would take a second, twice, as both suites' conftest.py name this.
    gc.freeze()
    gc.set_threshold(5000)  # 3 % of the tests' time less than with Python's 700, in as much memory
    gc.enable()


@pytest.fixture(autouse=True)
def seeded():
    """Weights that a test does not seed itself are the same in every run."""
    import torch

    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed also notes the stack for devices that are not here: 0.3 ms a test.
        torch.default_generator.manual_seed(0)
        yield


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small matrices wait for each other on several threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_depth(monkeypatch):
    """Let check-ups not search how many blocks could train: half of the time of a small one."""
    from equipoise.diagnosis import examination

    monkeypatch.setattr(examination, "judge", partial(examination.judge, depth=False))
