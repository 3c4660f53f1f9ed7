r"""Two-sample averages as sums over orthonormal polynomials.

With coefficients :math:`x_k = E[X\psi_k]`,

.. math:: E[X(w_1)\,Y(w_2)] = \sum_k \rho_k x_k y_k .

The sum is cut where its rest is below rounding, or at the number of nodes. The rest is at most
:math:`\max_{k\ge K}|\rho_k|` times the norms of what X and Y have left beyond degree K.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from equipoise.numerics.quadrature import gegenbauer, panels
from equipoise.theory.activation.catalogue import Activation
from equipoise.theory.batch_norm.averages.reach import whole_range
from equipoise.theory.batch_norm.averages.response import (
    PAIR_POWERS,
    SQUARE_POWERS,
    Averages,
    Plan,
    Response,
    powers,
)

Array = NDArray[np.float64]

# Beyond 12 standard deviations the density is below 1e-31; at large B the sphere is far wider.
_FARTHEST = 12.0
_MOST_TERMS = 512
# Panels of rows, which kinks share, and the least E[f²] in units of the largest f².
_ROW_PANELS, _RARE = 14, 1e-12
# From here on densities are smooth in w up to the ends, and nodes are placed there.
LARGE_BATCH = 32
_NEGLIGIBLE = 1e-15


def smooth_averages(f: Response, batch_size: int, radii: Array, nodes: int) -> Plan:
    """Averages of an analytic response by Gauss quadrature with the given number of nodes."""
    w, weights = gegenbauer.gauss(batch_size, nodes)
    terms = gegenbauer.count_above(batch_size, _NEGLIGIBLE, nodes)
    psi = gegenbauer.gauss_transform(batch_size, nodes, terms)

    def averages(values: Array, slopes: Array) -> Averages:
        both = np.array([values, slopes]).reshape(2, len(radii), nodes)
        mean = both[0] @ weights
        both[0] -= mean[:, None]
        first = both[0] @ (weights * w)
        squares = (powers(w, SQUARE_POWERS) * weights) @ (both * both).swapaxes(1, 2)
        weighted = (powers(w, PAIR_POWERS) * weights)[:, None] * both[:, None]  # [2, 4, radii, m]
        coefficients = np.moveaxis(weighted @ psi.T, -1, 0)  # [k, 2, 4, radii]
        method = f"Gauss–Gegenbauer quadrature, {nodes} nodes"
        return _combine(batch_size, mean, first, squares, coefficients, method)

    return Plan((f.gamma * radii[:, None] * w + f.beta).ravel(), averages)


def kinked_averages(
    f: Response,
    batch_size: int,
    radii: Array,
    rule: panels.UnitRule,
    splits: int,
    terms: int | None = None,
) -> Plan:
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
    reach = farthest(f, batch_size, radii)
    scale = f.gamma * radii[:, None]
    at = f.kinks[::-1]  # angles run against w: ascending, they visit the largest kink first
    inside = np.clip((at - f.beta) / scale, -reach, reach)  # [radii, kinks]
    ends = np.full((len(radii), 1), reach)
    w_edges = np.concatenate([ends, inside, -ends], 1)
    x_edges = scale * w_edges + f.beta
    if at.size:
        x_edges[:, 1:-1] = np.where(np.abs(inside) < reach, at, x_edges[:, 1:-1])
    if batch_size >= LARGE_BATCH:
        # Angles that differ by little more than rounding have lost the widths of narrow panels.
        edges, x_edges = _split(-w_edges, x_edges, splits, lambda cut: f.beta - scale * cut)
        nodes = panels.place(rule, edges)
        w, step = -nodes.of_edges(edges) - nodes.offset, -nodes.offset
        density = _density(batch_size - 1, w / np.sqrt(n))
    else:
        angles = np.arccos(np.clip(w_edges / np.sqrt(n), -1, 1))
        wide = scale * np.sqrt(n)
        angles, x_edges = _split(angles, x_edges, splits, lambda cut: wide * np.cos(cut) + f.beta)
        nodes = panels.place(rule, angles)
        edge, step, _ = nodes.on_circle(angles, np.cos(angles))
        step *= np.sqrt(n)
        w = np.sqrt(n) * edge + step
        density = _density(batch_size, w / np.sqrt(n))
    weights = nodes.weights * density
    weights /= weights.sum(1, keepdims=True)

    def averages(values: Array, slopes: Array) -> Averages:
        both = np.array([values, slopes]).reshape(2, *w.shape)
        np.copyto(both, 0.0, where=~(weights > 0))
        mean = (weights * both[0]).sum(-1)
        both[0] -= mean[:, None]
        first = (weights * w * both[0]).sum(-1)
        squares = np.einsum("prm,orm->opr", powers(w, SQUARE_POWERS) * weights, both**2)
        weighted = np.empty((len(radii), 2, PAIR_POWERS, w.shape[1]))
        weighted[:] = (weights * both).swapaxes(0, 1)[:, :, None]
        weighted *= powers(w, PAIR_POWERS).swapaxes(0, 1)[:, None]
        count = terms or gegenbauer.count_above(batch_size, _NEGLIGIBLE, _MOST_TERMS)
        coefficients = _coefficients(batch_size, weighted, w, count)
        method = f"spectral sum over panels, {w.shape[1]} nodes"
        return _combine(batch_size, mean, first, squares, coefficients, method)

    return Plan((nodes.of_edges(x_edges) + scale * step).ravel(), averages)


def row_averages(
    phi: Activation, batch_sizes: Array, gamma: Array, beta: Array, rule: panels.UnitRule
) -> list[Averages | None]:
    """Averages of many settings of one activation at ε = 0, each as :func:`kinked_averages`.

    Args:
        phi: The activation, without fractional powers.
        batch_sizes: B, of shape ``[rows]``, at least 32.
        gamma: γ of each.
        beta: β of each.
        rule: Rule for every panel.

    Returns:
        One a row; None where f is flat for all but rare samples, or grows as densities fall.
    """
    B, scale, centre = (
        np.asarray(part, np.float64)[:, None] for part in (batch_sizes, gamma, beta)
    )
    n = B - 1
    reach = np.minimum(_FARTHEST, np.sqrt(n))
    at = np.array(sorted(kink.at for kink in phi.kinks))
    inside = np.clip((at - centre) / scale, -reach, reach)  # [rows, kinks]
    w_edges = np.concatenate([-reach, inside, reach], 1)
    x_edges = scale * w_edges + centre
    x_edges[:, 1:-1] = np.where(np.abs(inside) < reach, at, x_edges[:, 1:-1])
    splits = max(6, _ROW_PANELS // (at.size + 1))
    edges, x_edges = _split(w_edges, x_edges, splits, lambda cut: centre + scale * cut)
    kept = (np.diff(edges) > 0).any(0)  # panels that are empty in every row cost as much
    nodes = panels.place(rule, edges)
    used = np.repeat(kept, rule.left.size)
    w = (nodes.of_edges(edges) + nodes.offset)[:, used]
    x = (nodes.of_edges(x_edges) + scale * nodes.offset)[:, used]
    weights = nodes.weights[:, used] * _density(B - 1, w / np.sqrt(n))
    weights /= weights.sum(1, keepdims=True)
    values, slopes = phi(x)
    both = np.array([values, scale * slopes])
    mean = (weights * both[0]).sum(-1)
    both[0] -= mean[:, None]
    first = (weights * w * both[0]).sum(-1)
    largest = (both**2).max(-1)
    weighted = weights * both
    squares = np.empty((2, SQUARE_POWERS, len(w)))
    squared = weighted * both
    for p in range(SQUARE_POWERS):
        squares[:, p] = squared.sum(-1)
        squared *= w
    left = np.empty((len(w), 2, PAIR_POWERS, w.shape[1]))
    for i in range(PAIR_POWERS):
        left[:, :, i] = weighted.swapaxes(0, 1)
        weighted *= w
    terms = gegenbauer.count_above(int(batch_sizes.min()), _NEGLIGIBLE, _MOST_TERMS)
    coefficients = _coefficients(np.asarray(batch_sizes), left, w, terms)
    rho = gegenbauer.correlations_of(np.asarray(batch_sizes, np.float64), terms + 16)
    pairs = np.einsum("kr,koir,kojr->roij", rho[:terms], coefficients, coefficients, optimize=True)
    tail = np.abs(rho[terms:]).max(0)
    norms = squares[:, 0]
    rest = np.maximum(norms - (coefficients[:, :, 0] ** 2).sum(0), 0)
    truncation = tail * (rest / np.maximum(norms, np.finfo(float).tiny)).max(0)
    sound = (norms > _RARE * largest).all(0) & np.isfinite(norms).all(0)
    method = f"spectral sum over panels, {w.shape[1]} nodes"
    return [
        Averages(
            mean[[r]], first[[r]], squares[..., [r]], pairs[r, ..., None],
            float(truncation[r]), method,
        )
        if sound[r]
        else None
        for r in range(len(w))
    ]  # fmt: skip


def farthest(f: Response, batch_size: int, radii: Array) -> float:
    """The largest w that matters: farther out where f is flat for all others."""
    least = float(radii.min())
    u = whole_range(f if least == 1 else replace(f, gamma=f.gamma * least), batch_size, 0.0).end
    whole = float(np.sqrt(batch_size - 1))
    return min(whole, max(_FARTHEST, whole * float(np.tanh(u))))


def _density(batch_size: int | Array, cosine: Array) -> Array:
    """sin^(B-3) θ, relative to its peak, without underflow trouble at large B.

    That is the density of the angle; in w it is that of one sample less.
    """
    with np.errstate(divide="ignore"):
        return np.asarray(np.exp((batch_size - 3) / 2 * np.log1p(-np.minimum(cosine**2, 1.0))))


def _split(
    edges: Array, x_edges: Array, splits: int, argument: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """Cut every panel into equal ones; the arguments at old edges stay exact."""
    if splits == 1:
        return edges, x_edges
    parts = np.arange(splits) / splits
    start, width = edges[:, :-1, None], np.diff(edges)[..., None]
    cut = (start + width * parts).reshape(len(edges), -1)
    x_cut = argument(cut)
    x_cut[:, ::splits] = x_edges[:, :-1]
    return np.concatenate([cut, edges[:, -1:]], 1), np.concatenate([x_cut, x_edges[:, -1:]], 1)


def _coefficients(batch_size: int | Array, weighted: Array, w: Array, terms: int) -> Array:
    """Sums over nodes times every ψ_k: ``[rows, 2, 4, m]`` becomes ``[terms, 2, 4, rows]``."""
    psi = np.concatenate(list(gegenbauer.polynomials(batch_size, terms, w)))
    psi = psi.reshape(terms, *w.shape).swapaxes(0, 1)  # [rows, terms, m]
    sums = psi @ weighted.reshape(len(w), -1, w.shape[1]).swapaxes(1, 2)  # [rows, terms, 8]
    return np.asarray(sums.reshape(len(w), terms, *weighted.shape[1:3]).transpose(1, 2, 3, 0))


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
