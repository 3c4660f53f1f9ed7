"""Literal transcriptions of the paper on one unit: its three Hessians, and its inequalities."""

from __future__ import annotations

import torch


def bn(y, gamma=1.0, beta=0.0, eps=0.0):
    """γ(y - μ)/σ + β, written out: PyTorch's own refuses ε = 0 in training."""
    mean = y.mean()
    return gamma * (y - mean) / ((y - mean).square().mean() + eps).sqrt() + beta


def _parts(y, g):
    yh, m = bn(y), len(y)
    one, eye = torch.ones(m, m, dtype=y.dtype), torch.eye(m, dtype=y.dtype)
    deviation = y.std(correction=0)
    return yh, m, deviation, one, eye, g @ yh, torch.full_like(g, g.mean().item())


def hessian_34_37(y, g, H, gamma):
    yh, m, s, M, eye, gy, mu = _parts(y, g)
    yy, yg = torch.outer(yh, yh), torch.outer(yh, g)
    first = m * H - M @ H - eye * gy / gamma - yy @ H - yg / gamma
    second = H @ M - M @ H @ M / m - M * gy / (m * gamma) - yy @ H @ M / m - yg @ M / (m * gamma)
    third = H @ yy - M @ H @ yy / m - yy * gy / (m * gamma) - yy @ H @ yy / m
    third = third - yg @ yy / (m * gamma)
    last = torch.outer(g - mu - yh * gy / m, yh)
    return gamma**2 / (m * s**2) * (first - second - third) - gamma / (m * s**2) * last


def hessian_38_40(y, g, H, gamma):
    yh, m, s, M, eye, gy, mu = _parts(y, g)
    yy = torch.outer(yh, yh)
    bracket = m * H - M @ H - yy @ H - H @ M + M @ H @ M / m
    bracket = bracket + yy @ H @ M / m - H @ yy + M @ H @ yy / m + yy @ H @ yy / m
    rest = torch.outer(g, yh) - torch.outer(mu, yh) - 3 / m * yy * gy
    rest = rest + (gy * eye + torch.outer(yh, g)) @ (eye - M / m)
    return gamma**2 / (m * s**2) * bracket - gamma / (m * s**2) * rest


def hessian_41_42(y, g, H, gamma):
    yh, m, s, M, eye, gy, mu = _parts(y, g)
    yy, centred = torch.outer(yh, yh), g - mu
    P = eye - yy / m - M / m
    rest = torch.outer(centred, yh) + torch.outer(yh, centred) - 3 / m * gy * yy
    rest = rest + gy * (eye - M / m)
    return gamma**2 / s**2 * (P @ H @ P - rest / (m * gamma))


def theorem_4_1(y, g, gamma):
    """Right side, for a given reading of g."""
    yh, m = bn(y), len(y)
    return gamma**2 / y.var(correction=0) * (g @ g - g.sum() ** 2 / m - (g @ yh) ** 2 / m)


def theorem_4_2(first, y, g, g_y, H, gamma):
    """Right side of the first display with ``first`` = g_y, and of the second with g."""
    kappa = (g @ bn(y)) * (g_y @ g_y) / (len(y) * gamma)
    return gamma**2 / y.var(correction=0) * (first @ H @ first - kappa)


def theorem_4_4(y, g, radius):
    """Right sides at γ = 1: the theorem's, the same with g for g², and that of (17)."""
    yh, m, variance = bn(y), len(y), y.var(correction=0)
    g_j, mean, along = radius**2 * (g @ g), g.mean(), (g @ yh) ** 2
    return {
        "4.4": (g_j**2 - m * mean**2 - radius**2 * along) / variance,
        "4.4, unsquared": (g_j - m * mean**2 - radius**2 * along) / variance,
        "17": radius**2 * (g @ g - g.sum() ** 2 / m - along / m**0.5) / variance,
    }
