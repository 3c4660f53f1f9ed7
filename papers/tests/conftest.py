"""The toy experiment in the catalogue, and one thread for all that is simulated."""

import pytest

from equipoise_papers.reproduction.catalogue import EXPERIMENTS
from papers_support.toy_experiments import Calculator, squares
from support.settings import one_thread, pytest_collection, pytest_collection_finish, seeded

__all__ = [
    "calculator",
    "one_thread",
    "pytest_collection",
    "pytest_collection_finish",
    "seeded",
    "toy",
]


@pytest.fixture
def calculator():
    return Calculator()


@pytest.fixture
def toy(calculator, monkeypatch):
    """The toy experiment, known to ``reproduce`` as toy.squares."""
    experiment = squares(calculator)
    monkeypatch.setitem(EXPERIMENTS, experiment.name, experiment)
    return experiment
