"""The papers' formulas in their own indices: slow, one value at a time, in float64."""

import itertools

import torch


def positions_of(x):
    """All index tuples of the positions behind ``[N, C]``."""
    return list(itertools.product(*(range(n) for n in x.shape[2:])))


def mean_and_variance(values):
    """Mean and biased variance of a list of floats."""
    mean = sum(values) / len(values)
    return mean, sum((v - mean) ** 2 for v in values) / len(values)


def batch_renorm(x, mu, sigma, *, r_max, d_max, eps):
    """Ioffe 2017, Algorithm 1, one channel after the other; ``mu`` and ``sigma`` are averages."""
    y = torch.empty_like(x)
    for k in range(x.shape[1]):
        mu_B, var_B = mean_and_variance(x[:, k].flatten().tolist())
        sigma_B = (eps + var_B) ** 0.5
        r = min(max(sigma_B / sigma[k], 1 / r_max), r_max)
        d = min(max((mu_B - mu[k]) / sigma[k], -d_max), d_max)
        y[:, k] = (x[:, k] - mu_B) / sigma_B * r + d
    return y


def normalise_cells(x, cells, eps):
    """Normalise each cell, a pair of samples and channels, by its own mean and variance."""
    y = torch.full_like(x, float("nan"))
    for samples, channels in cells:
        places = list(itertools.product(samples, channels, positions_of(x)))
        mean, variance = mean_and_variance([x[(i, c, *p)].item() for i, c, p in places])
        for i, c, p in places:
            y[(i, c, *p)] = (x[(i, c, *p)] - mean) / (variance + eps) ** 0.5
    return y


def inference_example_weighing(x, m_x, m_x2, groups, *, alpha, eps):
    """Summers and Dinneen 2020: moments as they stand in the authors' program."""
    y = torch.empty_like(x)
    width = x.shape[1] // groups
    for i, g in itertools.product(range(x.shape[0]), range(groups)):
        channels = range(g * width, (g + 1) * width)
        values = x[i, list(channels)]
        first = alpha * values.mean() + (1 - alpha) * m_x[list(channels)].mean()
        second = alpha * values.square().mean() + (1 - alpha) * m_x2[list(channels)].mean()
        for c in channels:
            y[i, c] = (x[i, c] - first) / (second - first**2 + eps) ** 0.5
    return y
