"""Literal transcriptions of RUN's Theorem 1: closed forms, printed integrals and proof, method."""

from __future__ import annotations

import mpmath
import numpy as np


def two_directions(s1, s2, K):
    """E p and E p pᵀ for D = 2: p_1 = 1/(1 + r² tan²θ), r = (σ_2/σ_1)^K, θ uniform."""
    r = (s2 / s1) ** K
    square, mixed = (2 + r) / 2, r / 2
    pairs = np.array([[square, mixed], [mixed, r * (1 + 2 * r) / 2]]) / (1 + r) ** 2
    return np.array([1, r]) / (1 + r), pairs


def three_directions(sigma, K, digits=40):
    """E p for D = 3 by Carlson's R_D, to any number of digits."""
    with mpmath.workdps(digits):
        y = [mpmath.mpf(float(s)) ** (2 * K) for s in sigma]
        root = mpmath.sqrt(mpmath.fprod(y))
        others = [[y[i] for i in range(3) if i != k] for k in range(3)]
        return [
            mpmath.elliprd(1 / a, 1 / b, 1 / y[k]) / (3 * root) for k, (a, b) in enumerate(others)
        ]


def double_pairs(s1, s2, K, digits=40):
    """E p of one of two directions with σ_1 and of one of two with σ_2."""
    with mpmath.workdps(digits):
        x = (mpmath.mpf(s2) / mpmath.mpf(s1)) ** (2 * K)
        first = (1 / (1 - x) + x * mpmath.log(x) / (1 - x) ** 2) / 2
        return first, mpmath.mpf(1) / 2 - first


def printed_integrals(sigma, K, step=0.02):
    """E p and E p pᵀ by t = exp(π/2 sinh x) after dividing y by y_1, entry by entry."""
    y = (np.asarray(sigma) / max(sigma)) ** (2 * K)
    x = np.arange(-4.2, 4.2, step)
    t = np.exp(np.pi / 2 * np.sinh(x))
    weights = step * t * np.pi / 2 * np.cosh(x)
    a = y[:, None] / (1 + 2 * t * y[:, None])  # [D, nodes]
    product = 1 / np.sqrt(np.prod(1 + 2 * t * y[:, None], 0))
    shares, pairs = np.zeros(len(y)), np.zeros((len(y), len(y)))
    for i in range(len(y)):
        shares[i] = weights @ (a[i] * product)
        for k in range(len(y)):
            pairs[i, k] = (1 + 2 * (i == k)) * (weights @ (t * a[i] * a[k] * product))
    return shares, pairs


def run(F, v0, K, *, epsilon, eta):
    """B_K and F_KᵀF_K of one sample, as the method is written."""
    B = F.T @ F
    v = v0
    for _ in range(K):
        v = B @ v
    P = np.outer(v, v) / (v @ v)
    F_K = F - eta * F @ P
    return B - epsilon * B @ P, F_K.T @ F_K


def inequality_14(y, b, s, t):
    """Both sides for starts whose squared coordinates are the rows of b."""
    left = (b[..., s] * y[s] - b[..., t] * y[t]) / (b @ y)
    return left, y[t] / y[0] * (b[..., s] - b[..., t]) / b.sum(-1)
