"""Draw an experiment's records as a report does."""

from __future__ import annotations

from equipoise_papers.experiments.style import empty_figure, house_style


def drawn(experiment, results):
    """The axes of an experiment's figure."""
    with house_style():
        figure = empty_figure(1, 2)
        experiment.draw(figure.subfigures(1, 1), results)
        return figure.subfigs[0].axes
