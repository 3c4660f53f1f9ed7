r"""Fit the verdict to the benchmark: logistic regression whose coefficients keep their sign.

.. math:: \min_{a,\,b \ge 0}\ \sum_n \log\big(1 + e^{-s_n(a - b\cdot x_n)}\big)
          + \tfrac\lambda2 \sum_i (\sigma_i b_i)^2, \qquad s_n = \pm 1,

with the standard deviations σ of the quantities. Families are held out one after the other:
networks of a family are judged by a fit to all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

Array = NDArray[np.float64]

_RIDGE = 0.3
_RESAMPLES = 100


@dataclass(frozen=True, slots=True)
class Logistic:
    """A fitted model: log-odds are ``intercept + x @ coefficients``."""

    intercept: float
    coefficients: Array

    def log_odds(self, x: Array) -> Array:
        """Of rows of quantities."""
        return np.asarray(self.intercept + x @ self.coefficients)

    def probability(self, x: Array) -> Array:
        """Of rows of quantities."""
        return np.asarray(1 / (1 + np.exp(-np.clip(self.log_odds(x), -50, 50))))


def fit(x: Array, trained: Array, signs: Array) -> Logistic:
    """Fit to rows of quantities.

    Args:
        x: Shape ``[N, K]``.
        trained: 1 or 0, shape ``[N]``.
        signs: 1 or -1, which sign each coefficient may have; 0 for any.

    Examples:
        More of a risk cannot help, whatever the data say:

        >>> x, trained = np.array([[0.0], [1.0]]), np.array([0.0, 1.0])
        >>> abs(float(fit(x, trained, np.array([-1.0])).coefficients[0]))
        0.0
    """
    scale = np.maximum(x.std(0), 1e-6)
    z, s = x / scale, 2 * trained - 1

    def loss(parameters: Array) -> tuple[float, Array]:
        odds = s * (parameters[0] + z @ parameters[1:])
        pull = -s / (1 + np.exp(np.clip(odds, -50, 50)))
        value = np.logaddexp(0, -odds).sum() + _RIDGE / 2 * (parameters[1:] ** 2).sum()
        slope = np.array([pull.sum(), *(z.T @ pull + _RIDGE * parameters[1:])])
        return float(value), slope

    bounds = [(None, None), *((0 if g > 0 else None, 0 if g < 0 else None) for g in signs)]
    found = minimize(loss, np.zeros(1 + x.shape[1]), jac=True, bounds=bounds, method="L-BFGS-B")
    return Logistic(float(found.x[0]), found.x[1:] / scale)


def held_out(x: Array, trained: Array, families: Sequence[str], signs: Array) -> Array:
    """Probability of each row, by a fit to the rows of all other families."""
    names, probability = np.array(families), np.zeros(len(x))
    for family in sorted(set(families)):
        inside = names == family
        probability[inside] = fit(x[~inside], trained[~inside], signs).probability(x[inside])
    return probability


def covariance(x: Array, trained: Array, groups: Sequence[int], signs: Array) -> Array:
    """Covariance of intercept and coefficients, over draws of groups with replacement."""
    drawn = []
    for rows in _draws(groups):
        one = fit(x[rows], trained[rows], signs)
        drawn.append([one.intercept, *one.coefficients])
    return np.asarray(np.cov(np.array(drawn).T))


def area_under_curve(score: Array, trained: Array) -> float:
    """How often a network that trained has the higher score than one that did not (ROC AUC).

    Examples:
        >>> area_under_curve(np.array([0.1, 0.5, 0.5]), np.array([0.0, 0.0, 1.0]))
        0.75
    """
    good, bad = score[trained == 1], score[trained == 0]
    wins = (good[:, None] > bad).mean() + 0.5 * (good[:, None] == bad).mean()
    return float(wins)


def calibration_error(probability: Array, trained: Array) -> float:
    """Expected calibration error: mean of |share that trained − mean probability| over ten bins.

    Examples:
        >>> calibration_error(np.array([0.2, 0.2]), np.array([0.0, 1.0]))
        0.3
    """
    place = np.minimum((probability * 10).astype(int), 9)
    gaps = [
        (place == b).mean() * abs(trained[place == b].mean() - probability[place == b].mean())
        for b in np.unique(place)
    ]
    return float(sum(gaps))


def interval(
    statistic: Callable[[NDArray[np.intp]], float], groups: Sequence[int]
) -> tuple[float, float]:
    """Where 9 of 10 values of a statistic of rows lie, over draws of groups with replacement."""
    values = [statistic(rows) for rows in _draws(groups)]
    low, high = np.nanquantile(values, [0.05, 0.95])
    return float(low), float(high)


def _draws(groups: Sequence[int]) -> Iterator[NDArray[np.intp]]:
    """Rows of as many groups as there are, drawn with replacement, again and again."""
    generator = np.random.default_rng(0)
    members = [np.flatnonzero(np.array(groups) == group) for group in sorted(set(groups))]
    for _ in range(_RESAMPLES):
        chosen = generator.integers(len(members), size=len(members))
        yield np.concatenate([members[i] for i in chosen])
