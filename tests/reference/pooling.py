"""Whole pooling heads by their definitions, one sample at a time, position by position.

NumPy in float64. Maps are ``[C, positions]``.
"""

from __future__ import annotations

import numpy as np

from reference import matrix_roots, run, sketches


def rows(maps, *, centred=False):
    """F ``[N, D]``, a row per position."""
    F = np.array([maps[:, n] for n in range(maps.shape[1])])
    return F - sum(F) / len(F) if centred else F


def second_moments(F):
    """The average of the outer products of the rows with themselves."""
    return sum(np.outer(f, f) for f in F) / len(F)


def reduced(maps, weight, mean, variance, scale, shift, eps=1e-5):
    """1×1 convolution, batch norm by running statistics, ReLU."""
    x = (weight @ maps - mean[:, None]) / np.sqrt(variance + eps)[:, None]
    return np.maximum(scale[:, None] * x + shift[:, None], 0)


def run_matrix(F, v0, eta, K):
    """Second moments of F_K."""
    return second_moments(run.factor(F, v0[:, None], eta, K))


def root_matrix(F, iterations=5, prenormalise="trace"):
    """Newton and Schulz."""
    return matrix_roots.newton_schulz(second_moments(F), iterations, prenormalise)


def power_matrix(F, exponent):
    """Schur and Padé."""
    return matrix_roots.power(second_moments(F), exponent)


def log_matrix(F, eps):
    """Inverse scaling and squaring."""
    return matrix_roots.logarithm(second_moments(F), eps)


def tensor_sketch(F, places, signs, size):
    """Average of the sketches of the rows."""
    return sum(sketches.tensor_sketch(f, places, signs, size) for f in F) / len(F)


def random_maclaurin(F, W):
    """Average of the maps of the rows."""
    return sum(sketches.random_maclaurin(f, W) for f in F) / len(F)


def triangle(matrix, off_diagonal=1.0):
    """Row by row, from the diagonal on."""
    D = len(matrix)
    return np.array(
        [
            matrix[i, j] if i == j else off_diagonal * matrix[i, j]
            for i in range(D)
            for j in range(i, D)
        ]
    )


def finished(vector, *, signed_root, unit_norm):
    """Signed root, then unit norm."""
    if signed_root:
        vector = np.sign(vector) * np.sqrt(np.abs(vector))
    return vector / np.sqrt(vector @ vector) if unit_norm else vector
