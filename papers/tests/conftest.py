"""The toy experiment in the catalogue, and one thread for all that is simulated."""

import pytest

from support.settings import (
    one_thread,
    pytest_collection,
    pytest_collection_finish,
    pytest_collection_modifyitems,
    seeded,
)

__all__ = [
    "blank_figures",
    "calculator",
    "one_thread",
    "pytest_collection",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "seeded",
    "toy",
]


@pytest.fixture
def blank_figures(monkeypatch):
    """Write empty pictures: they take most of the time of a few small cells."""
    from equipoise_papers.experiments.style import save_figure

    def save(figure, folder):
        figure.clear()
        return save_figure(figure, folder)

    monkeypatch.setattr("equipoise_papers.reproduction.outputs.save_figure", save)


@pytest.fixture
def calculator():
    from papers_support.toy_experiments import Calculator

    return Calculator()


@pytest.fixture
def toy(calculator, monkeypatch):
    """The toy experiment, known to ``reproduce`` as toy.squares."""
    from equipoise_papers.reproduction.catalogue import EXPERIMENTS
    from papers_support.toy_experiments import squares

    experiment = squares(calculator)
    monkeypatch.setitem(EXPERIMENTS, experiment.name, experiment)
    return experiment
