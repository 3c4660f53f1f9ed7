"""Fit exponential growth through norms per layer."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from equipoise.records.estimate import Estimate

Array = NDArray[np.float64]


def log_slopes(log_norms: Array, positions: Array | None = None) -> Array:
    """Least-squares slope of each row against the layers' positions.

    Args:
        log_norms: Logarithms of squared norms, of shape ``[replicates, layers]``.
        positions: Position of each column, of shape ``[layers]``; by default 0, 1, ….

    Returns:
        One slope per replicate, of shape ``[replicates]``.

    Raises:
        ValueError: If there are fewer than two columns.

    Examples:
        >>> log_slopes(np.array([[0.0, 1.0, 2.0], [0.0, -2.0, -4.0]]))
        array([ 1., -2.])
    """
    if log_norms.shape[1] < 2:
        raise ValueError(f"a slope needs at least 2 layers, got {log_norms.shape[1]}.")
    columns = _centred(log_norms.shape[1], positions)
    return np.asarray(log_norms @ columns / (columns @ columns))


def growth_rate(log_norms: Array, method: str, positions: Array | None = None) -> Estimate:
    """Growth per layer *towards the input*: exp of minus the mean slope.

    Args:
        log_norms: Logarithms of squared gradient norms, ``[replicates, layers]``, layers from
            input to output.
        method: How the norms were obtained.
        positions: Position of each layer, of shape ``[layers]``; by default 0, 1, ….

    Returns:
        The rate. Its standard error is over replicates; with a single replicate it is that of
        the fitted line, which excludes the spread between initialisations.

    Examples:
        >>> round(growth_rate(np.log([[8.0, 4.0, 2.0], [8.0, 4.0, 2.0]]), "exact").value, 9)
        2.0
    """
    slope = Estimate.of_mean(-log_slopes(log_norms, positions), method)
    error = slope.error
    if len(log_norms) == 1:
        error, method = _line_error(log_norms[0], positions), f"{method}, error of the fit alone"
    rate = math.exp(slope.value)
    return Estimate(rate, rate * error, method)


def _centred(count: int, positions: Array | None) -> Array:
    columns = np.arange(count) if positions is None else positions
    return np.asarray(columns - np.mean(columns), dtype=np.float64)


def _line_error(log_norms: Array, positions: Array | None) -> float:
    layers = len(log_norms)
    if layers < 3:
        return math.nan
    columns = _centred(layers, positions)
    slope = log_slopes(log_norms[None], positions)[0]
    residual = log_norms - log_norms.mean() - slope * columns
    return math.sqrt(float(residual @ residual) / (layers - 2) / float(columns @ columns))
