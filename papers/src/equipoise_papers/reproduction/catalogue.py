"""Which experiments there are, and which of them make up a published figure."""

from __future__ import annotations

from equipoise_papers import lange2022, santurkar2018, yang2019, yu2020
from equipoise_papers.reproduction.experiment import AnyExperiment
from equipoise_papers.reproduction.record import Catalogue, CatalogueEntry

_PAPERS = (yang2019, santurkar2018, lange2022, yu2020)
EXPERIMENTS: dict[str, AnyExperiment] = {
    experiment.name: experiment for paper in _PAPERS for experiment in paper.EXPERIMENTS
}
FIGURES: dict[str, tuple[str, tuple[str, ...]]] = {
    name: figure for paper in _PAPERS for name, figure in paper.FIGURES.items()
}


def find(name: str) -> tuple[AnyExperiment, ...]:
    """Look up an experiment, or all panels of a figure.

    Raises:
        ValueError: If the name is unknown.

    Examples:
        >>> [experiment.name for experiment in find("yang2019.fig1")]
        ['yang2019.fig1a', 'yang2019.fig1b', 'yang2019.fig1c', 'yang2019.fig1d']
    """
    if name in EXPERIMENTS:
        return (EXPERIMENTS[name],)
    if name in FIGURES:
        return tuple(EXPERIMENTS[panel] for panel in FIGURES[name][1])
    known = ", ".join(sorted({*EXPERIMENTS, *FIGURES}))
    raise ValueError(f"unknown experiment {name!r}; known are {known}.")


def catalogue() -> Catalogue:
    """List every name with what it shows, figures before their panels."""
    figures = [CatalogueEntry(name, title, panels) for name, (title, panels) in FIGURES.items()]
    panels = [
        CatalogueEntry(name, experiment.title, (name,)) for name, experiment in EXPERIMENTS.items()
    ]
    return Catalogue(tuple(sorted(figures + panels, key=lambda entry: entry.name)))
