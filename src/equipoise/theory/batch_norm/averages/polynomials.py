r"""Two-sample averages as sums over orthonormal polynomials.

With coefficients :math:`x_k = E[X\psi_k]`,

.. math:: E[X(w_1)\,Y(w_2)] = \sum_k \rho_k x_k y_k .

The sum is cut where its rest is below rounding, or at the number of nodes. The rest is at most
:math:`\max_{k\ge K}|\rho_k|` times the norms of what X and Y have left beyond degree K.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from equipoise.numerics.quadrature import gegenbauer, panels
from equipoise.theory.batch_norm.averages.response import (
    PAIR_POWERS,
    SQUARE_POWERS,
    Averages,
    Response,
    powers,
)

Array = NDArray[np.float64]

# Beyond 12 standard deviations the density is below 1e-31; at large B the sphere is far wider.
_REACH = 12.0
_MOST_TERMS = 512
_NEGLIGIBLE = 1e-17


def smooth_averages(f: Response, batch_size: int, radii: Array, nodes: int) -> Averages:
    """Averages of an analytic response by Gauss quadrature with the given number of nodes."""
    w, weights = gegenbauer.gauss(batch_size, nodes)
    terms = min(_terms(batch_size), nodes)
    psi = gegenbauer.gauss_transform(batch_size, nodes, terms)
    both = np.stack(f(f.gamma * radii[:, None] * w + f.beta))  # [2, radii, nodes]
    mean = both[0] @ weights
    both[0] -= mean[:, None]
    first = both[0] @ (weights * w)
    squares = np.einsum("pm,orm->opr", powers(w, SQUARE_POWERS) * weights, both**2)
    weighted = (powers(w, PAIR_POWERS) * weights)[:, None] * both[:, None]  # [2, 4, radii, m]
    coefficients = np.moveaxis(weighted @ psi.T, -1, 0)  # [k, 2, 4, radii]
    method = f"Gauss–Gegenbauer quadrature, {nodes} nodes"
    return _combine(batch_size, mean, first, squares, coefficients, method)


def kinked_averages(
    f: Response,
    batch_size: int,
    radii: Array,
    rule: panels.UnitRule,
    splits: int,
    terms: int | None = None,
) -> Averages:
    """Averages of a piecewise analytic response, on panels that end at its kinks.

    Args:
        f: The response.
        batch_size: B; below about 16 the series converges slowly if f has kinks.
        radii: R, of shape ``[radii]``.
        rule: Rule for every panel.
        splits: Panels between consecutive kinks.
        terms: Length of the series; by default as long as ρ_k matters.
    """
    n = batch_size - 1
    reach = min(_REACH, np.sqrt(n))
    scale = f.gamma * radii[:, None]
    at = f.kinks[::-1]  # angles run against w: ascending, they visit the largest kink first
    inside = np.clip((at - f.beta) / scale, -reach, reach)  # [radii, kinks]
    ends = np.full((len(radii), 1), reach)
    w_edges = np.concatenate([ends, inside, -ends], 1)
    angles = np.arccos(np.clip(w_edges / np.sqrt(n), -1, 1))
    x_edges = scale * w_edges + f.beta
    if at.size:
        x_edges[:, 1:-1] = np.where(np.abs(inside) < reach, at, x_edges[:, 1:-1])
    angles, x_edges = _split(angles, x_edges, splits, scale * np.sqrt(n), f.beta)

    nodes = panels.place(rule, angles)
    edge, step, _ = nodes.on_circle(angles, np.cos(angles))
    step *= np.sqrt(n)
    w = np.sqrt(n) * edge + step
    values, slopes = f(np.take_along_axis(x_edges, nodes.edge, 1) + scale * step)
    weights = nodes.weights * _density(batch_size, w / np.sqrt(n))
    weights /= weights.sum(1, keepdims=True)
    both = np.where(weights > 0, np.stack([values, slopes]), 0.0)
    mean = (weights * both[0]).sum(-1)
    both[0] -= mean[:, None]
    first = (weights * w * both[0]).sum(-1)
    squares = np.einsum("prm,orm->opr", powers(w, SQUARE_POWERS) * weights, both**2)
    weighted = powers(w, PAIR_POWERS)[None] * (weights * both)[:, None]  # [2, 4, radii, m]
    terms = terms or _terms(batch_size)
    coefficients = np.empty((terms, *weighted.shape[:-1]))
    for k, psi in enumerate(gegenbauer.polynomials(batch_size, terms, w)):
        coefficients[k] = np.einsum("rm,oprm->opr", psi, weighted)
    method = f"spectral sum over panels, {w.shape[1]} nodes"
    return _combine(batch_size, mean, first, squares, coefficients, method)


def _terms(batch_size: int) -> int:
    """How many ρ_k are above rounding."""
    terms = 8
    while terms < _MOST_TERMS and gegenbauer.correlation_tail(batch_size, terms) > _NEGLIGIBLE:
        terms = min(_MOST_TERMS, terms + terms // 2)
    return terms


def _density(batch_size: int, cosine: Array) -> Array:
    """sin^(B-3) θ, relative to its peak, without underflow trouble at large B."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.exp((batch_size - 3) / 2 * np.log1p(-np.minimum(cosine**2, 1.0))))


def _split(
    angles: Array, x_edges: Array, splits: int, scale: Array, beta: float
) -> tuple[Array, Array]:
    """Cut every panel into equal ones; the arguments at old edges stay exact."""
    parts = np.arange(splits) / splits
    start, width = angles[:, :-1, None], np.diff(angles)[..., None]
    cut = (start + width * parts).reshape(len(angles), -1)
    x_cut = scale * np.cos(cut) + beta
    x_cut[:, ::splits] = x_edges[:, :-1]
    return np.concatenate([cut, angles[:, -1:]], 1), np.concatenate([x_cut, x_edges[:, -1:]], 1)


def _combine(
    batch_size: int, mean: Array, first: Array, squares: Array, coefficients: Array, method: str
) -> Averages:
    """Sum the series; ``coefficients`` has shape ``[terms, 2, 4, radii]``."""
    terms = len(coefficients)
    rho = gegenbauer.pair_correlations(batch_size, terms)
    pairs = np.einsum("k,koir,kojr->oijr", rho, coefficients, coefficients)
    norms = squares[:, 0]
    left = np.maximum(norms - (coefficients[:, :, 0] ** 2).sum(0), 0)
    tail = gegenbauer.correlation_tail(batch_size, terms)
    truncation = float((tail * left / np.maximum(norms, np.finfo(float).tiny)).max())
    return Averages(mean, first, squares, pairs, truncation, method)
