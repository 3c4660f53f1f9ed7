"""Every experiment by name, and which of them make up a published figure."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.report import wording
from equipoise_papers import lange2022, santurkar2018, trainability, yang2019, yu2020
from equipoise_papers.experiments.experiment import Experiment

_PAPERS = (yang2019, santurkar2018, lange2022, yu2020, trainability)
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for paper in _PAPERS for experiment in paper.EXPERIMENTS
}
# What a whole figure shows, and its panels.
FIGURES: dict[str, tuple[str, tuple[str, ...]]] = {
    name: figure for paper in _PAPERS for name, figure in paper.FIGURES.items()
}


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A name that ``equipoise reproduce`` knows.

    Args:
        name: An experiment or a whole figure.
        title: What it shows.
        panels: Names of the experiments that it consists of.
    """

    name: str
    title: str
    panels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Every name that ``equipoise reproduce`` knows."""

    entries: tuple[CatalogueEntry, ...]


def find(name: str) -> tuple[Experiment, ...]:
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
    raise ValueError(
        f"there is no experiment {name!r}.{wording.closest(name, [*EXPERIMENTS, *FIGURES])} "
        "`equipoise reproduce --list` shows every name."
    )


def catalogue(of: str | None = None) -> Catalogue:
    """List every name with what it shows, figures before their panels.

    Args:
        of: Only names that begin so, such as ``yang2019`` or ``yang2019.fig4``.

    Raises:
        ValueError: If none does.
    """
    figures = [CatalogueEntry(name, title, panels) for name, (title, panels) in FIGURES.items()]
    panels = [
        CatalogueEntry(name, experiment.title, (name,)) for name, experiment in EXPERIMENTS.items()
    ]
    named = sorted(figures + panels, key=lambda entry: entry.name)
    entries = tuple(entry for entry in named if entry.name.startswith(of or ""))
    if not entries:
        raise ValueError(
            f"no name begins with {of!r}.{wording.closest(of or '', [*EXPERIMENTS, *FIGURES])} "
            "`equipoise reproduce --list` shows every name."
        )
    return Catalogue(entries)
