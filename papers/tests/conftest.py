"""The toy experiment in the catalogue, and one thread for all that is simulated."""

import pytest
import torch

from equipoise_papers.reproduction.catalogue import EXPERIMENTS
from papers_support.toy_experiments import Calculator, squares
from support.settings import seeded

__all__ = ["calculator", "one_thread", "seeded", "toy"]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def calculator():
    return Calculator()


@pytest.fixture
def toy(calculator, monkeypatch):
    """The toy experiment, known to ``reproduce`` as toy.squares."""
    experiment = squares(calculator)
    monkeypatch.setitem(EXPERIMENTS, experiment.name, experiment)
    return experiment
