"""Algorithm 1 and section 3.3 of [santurkar2018], one number at a time; slow on purpose.

Symbols are the paper's, with the index j that its lines 12 and 13 leave out: i counts samples
(and positions), j units (channels). Random numbers come from the caller.
"""

from __future__ import annotations

import numpy as np


def algorithm_1(a, uniform, normal, *, n_mu=0.5, n_sigma=1.25, r_mu=0.1, r_sigma=0.1):
    """Noisy BatchNorm of batch-normalised activations ``[i, j]``.

    ``uniform(low, high, place)`` and ``normal(mean, deviation, place)`` draw one number each;
    the place is (what, j) or (what, i, j).
    """
    samples, units = a.shape
    mu, sigma, y = np.zeros(units), np.zeros(units), np.zeros_like(a)
    for j in range(units):
        mu[j] = uniform(-n_mu, n_mu, ("mu", j))
        sigma[j] = uniform(1, n_sigma, ("sigma", j))
    for i in range(samples):
        for j in range(units):
            m = uniform(mu[j] - r_mu, mu[j] + r_mu, ("m", i, j))
            s = normal(sigma[j], r_sigma, ("s", i, j))
            y[i, j] = s * a[i, j] + m
    return y


def average_size(y, p):
    """Average ℓp size of a list of numbers."""
    if p == np.inf:
        return max(abs(v) for v in y)
    return (sum(abs(v) ** p for v in y) / len(y)) ** (1 / p)


def lp_normalise(y, p, *, eps=0.0, centered=False):
    """Each column of ``[i, j]`` by its mean and its average ℓp size."""
    out = np.zeros_like(y)
    for j in range(y.shape[1]):
        column = y[:, j].tolist()
        mu = sum(column) / len(column)
        d = average_size([v - mu for v in column] if centered else column, p)
        out[:, j] = [(v - mu) / (d + eps) for v in column]
    return out
