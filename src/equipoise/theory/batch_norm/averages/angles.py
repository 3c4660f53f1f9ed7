r"""Two-sample averages by integration over two angles, split at every kink.

.. math:: w_1 = \sqrt n\cos\theta, \qquad
          w_2 = \sqrt n\,(-\tfrac1n\cos\theta + \sqrt{1-n^{-2}}\,\sin\theta\cos\eta),

with weights :math:`\sin^{B-3}\theta` and :math:`\sin^{B-4}\eta` on [0, π]². The inner integral is
analytic in θ except where θ itself meets a kink and where a kink of the second sample touches
the ends of the inner range, at :math:`|\theta \pm \psi|` with :math:`\cos\psi = -1/n`: there it
behaves like a half-integer power, which the panels' substitution removes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from equipoise.numerics.quadrature import panels
from equipoise.theory.batch_norm.averages.response import (
    PAIR_POWERS,
    SQUARE_POWERS,
    Averages,
    Plan,
    Response,
    powers,
)

Array = NDArray[np.float64]


def angle_averages(f: Response, batch_size: int, radii: Array, rule: panels.UnitRule) -> Plan:
    """Averages of a piecewise analytic response at small batch size.

    Args:
        f: The response.
        batch_size: B, at least 4.
        radii: R, of shape ``[radii]``.
        rule: Rule for every panel, in both angles.
    """
    root, n = np.sqrt(batch_size - 1), batch_size - 1
    scale = f.gamma * radii[:, None]  # [radii, 1]
    kinks = f.kinks
    cosines = np.clip((kinks - f.beta) / (scale * root), -1, 1)  # [radii, kinks]
    kink_angles = np.arccos(cosines)

    angles, x_edges = _outer_edges(kink_angles, kinks, scale * root, f.beta, n)
    outer = panels.place(rule, angles)
    edge, step, sine = outer.on_circle(angles, np.cos(angles))  # [radii, m]
    cosine = edge + step
    w1 = root * cosine
    x1 = outer.of_edges(x_edges) + scale * root * step
    outer_weights = outer.weights * _power(sine, batch_size - 3)
    outer_weights /= outer_weights.sum(1, keepdims=True)

    # Inner range: w2/√n = centre + reach·cos η, cut where f(R·) has its kinks.
    centre = (-cosine / n)[..., None]  # [radii, m, 1]
    reach = (np.sqrt(1 - n**-2.0) * sine)[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        cuts = np.nan_to_num((cosines[:, None, ::-1] - centre) / reach)
    inner_scale = (scale * root)[..., None]
    ends = np.ones_like(centre)
    cut_cosines = np.concatenate([ends, np.clip(cuts, -1, 1), -ends], -1)
    x_cuts = inner_scale * (centre + reach * cut_cosines) + f.beta
    x_cuts[..., 1:-1] = np.where(np.abs(cuts) < 1, kinks[::-1], x_cuts[..., 1:-1])
    inner_angles = np.arccos(cut_cosines)
    inner = panels.place(rule, inner_angles)
    edge2, step2, sine2 = inner.on_circle(inner_angles, cut_cosines)  # [radii, m, s]
    step2 *= reach
    w2 = root * (centre + reach * edge2 + step2)
    x2 = inner.of_edges(x_cuts) + inner_scale * step2
    inner_weights = inner.weights * _power(sine2, batch_size - 4)
    total = inner_weights.sum(-1, keepdims=True)
    inner_weights /= np.where(total > 0, total, 1)

    def averages(values: Array, slopes: Array) -> Averages:
        both = np.array([values, slopes])
        f1, f2 = both[:, : x1.size].reshape(2, *x1.shape), both[:, x1.size :].reshape(2, *x2.shape)
        np.copyto(f1, 0.0, where=~(outer_weights > 0))
        np.copyto(f2, 0.0, where=~(inner_weights > 0))
        mean = (outer_weights * f1[0]).sum(1)
        f1[0] -= mean[:, None]
        f2[0] -= mean[:, None, None]
        first = (outer_weights * w1 * f1[0]).sum(1)
        # r: radii, m: outer nodes, s: inner nodes, o: order, i, j, p: powers
        squares = np.einsum("prm,orm->opr", powers(w1, SQUARE_POWERS) * outer_weights, f1**2)
        left = powers(w1, PAIR_POWERS)[None] * (outer_weights * f1)[:, None]  # [2, 4, r, m]
        weighted = inner_weights * f2  # [2, r, m, s]
        conditional = np.empty((2, PAIR_POWERS, *cosine.shape))
        for j in range(PAIR_POWERS):
            conditional[:, j] = weighted.sum(-1)
            if j + 1 < PAIR_POWERS:
                weighted *= w2
        pairs = np.einsum("oirm,ojrm->oijr", left, conditional)
        pairs = (pairs + pairs.swapaxes(1, 2)) / 2
        method = f"two-angle quadrature, {rule.left.size} nodes per panel"
        return Averages(mean, first, squares, pairs, 0.0, method)

    return Plan(np.concatenate([x1.ravel(), x2.ravel()]), averages)


def _power(x: Array, exponent: int) -> Array:
    """A whole power, by products: many times as fast as NumPy's."""
    found = np.ones_like(x)
    while exponent:
        if exponent % 2:
            found *= x
        x, exponent = x * x, exponent // 2
    return found


def _outer_edges(
    kink_angles: Array, kinks: Array, scale: Array, beta: float, n: int
) -> tuple[Array, Array]:
    """Every θ at which the integrand is not analytic, ascending, and φ's argument there."""
    psi = np.arccos(-1 / n)
    touching = np.concatenate(
        [
            psi + kink_angles,
            np.abs(psi - kink_angles),
            2 * np.pi - psi - kink_angles,
            kink_angles - psi,
        ],
        1,
    )
    touching = np.clip(touching, 0, np.pi)
    ends = np.broadcast_to([0.0, np.pi], (len(kink_angles), 2))
    angles = np.concatenate([kink_angles, touching, ends], 1)
    arguments = scale * np.cos(angles) + beta
    inside = (kink_angles > 0) & (kink_angles < np.pi)
    count = kinks.size
    arguments[:, :count] = np.where(inside, kinks, arguments[:, :count])
    order = np.argsort(angles, axis=1)
    angles, arguments = (np.take_along_axis(a, order, 1) for a in (angles, arguments))
    # Panels that are empty at every radius cost as much as full ones.
    kept = np.concatenate([[True], (np.diff(angles, axis=1) > 0).any(0)])
    return angles[:, kept], arguments[:, kept]
