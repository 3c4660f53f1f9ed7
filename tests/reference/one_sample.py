r"""Layer norm, group norm and networks without normalisation as literal integrals over one number.

Everything runs in long double. Functions are those of :mod:`reference.two_angles`: they say where
they are not smooth and how quickly they turn, so that panels end there. A fixed point is solved by
Newton's method, with the derivative of the map by the law's own score, not by slopes of φ:

.. math:: \partial_s E[\phi(sz + \beta)^2] = E[\phi^2 (z^2 - 1)] / s .
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from reference.two_angles import Function, _cuts, _rule

Real = np.longdouble
_PI = 4 * np.arctan(Real(1))
# Beyond this many standard deviations the normal density is below e^-800.
_REACH = 40.0


def _panels(f: Function, low: float, high: float, longest: float, count: int):
    """Edges, each node's nearer edge and its signed distance, and weights, for φ's argument."""
    inside = _cuts(f, low, high, min(longest, f.longest))
    edges = np.concatenate([[low], inside[(inside > low) & (inside < high)], [high]]).astype(Real)
    left, right, weights = _rule("power" if f.power else "analytic", count, Real)
    width, near = np.diff(edges)[:, None], left <= right
    edge = np.where(near, edges[:-1, None], edges[1:, None])
    offset = width * np.where(near, left, -right)
    return edge.ravel(), offset.ravel(), (width * weights).ravel()


def normal(f: Function, mean, std, count: int):
    """E[φ²], E[φ′²] and E[φ²(z² − 1)] over N(mean, std²)."""
    mean, std = Real(mean), Real(std)
    low, high = float(mean - _REACH * std), float(mean + _REACH * std)
    edge, offset, weights = _panels(f, low, high, float(std), count)
    z = ((edge - mean) + offset) / std
    weights = weights * np.exp(-z * z / 2) / (np.sqrt(2 * _PI) * std)
    at = (edge - Real(f.origin)) + offset
    values, slopes = f.value(at), f.slope(at)
    square = values * values
    return weights @ square, weights @ (slopes * slopes), weights @ (square * (z * z - 1))


def sphere(f: Function, m: int, scale, beta, count: int):
    """E[φ²], E[φ′²] and E[w²φ′²] at φ(scale·w + β), w a coordinate of a centred sphere in R^m."""
    n = m - 1
    root, scale, beta = np.sqrt(Real(n)), Real(scale), Real(beta)
    reach = min(1.0, _REACH / math.sqrt(n))
    wide = float(scale * root) * reach
    cuts = _cuts(f, float(beta) - wide, float(beta) + wide, min(float(scale), f.longest))
    sines = (cuts.astype(Real) - beta) / (scale * root)
    kept = abs(sines) < reach
    ends = np.array([-reach, reach], dtype=Real)
    sines = np.concatenate([ends[:1], sines[kept], ends[1:]])
    arguments = np.concatenate(
        [beta + scale * root * ends[:1], cuts[kept].astype(Real), beta + scale * root * ends[1:]]
    )
    angles = np.arcsin(sines)
    left, right, weights = _rule("power" if f.power else "half", count, Real)
    width, near = np.diff(angles)[:, None], left <= right
    edge = np.where(near, angles[:-1, None], angles[1:, None])
    x = np.where(near, arguments[:-1, None], arguments[1:, None])
    offset = width * np.where(near, left, -right)
    step = 2 * np.sin(offset / 2) * np.cos(edge + offset / 2)  # sin(e + o) − sin e
    w = (root * (np.sin(edge) + step)).ravel()
    at = ((x - Real(f.origin)) + scale * root * step).ravel()
    cosine = np.maximum(np.cos(edge + offset), Real(1e-4000)).ravel()
    weights = (width * weights).ravel() * np.exp((m - 3) * np.log(cosine))
    weights = weights / weights.sum()
    values, slopes = f.value(at), f.slope(at)
    energy = weights * slopes * slopes
    return weights @ (values * values), energy.sum(), energy @ (w * w)


def _newton(step, q):
    """Solve q = F(q) for a function that gives F and F′."""
    for _ in range(100):
        value, slope = step(q)
        moved = np.clip((value - q) / (1 - slope), -0.3 * q, 0.3 * q)
        q = q + moved
        if abs(moved) < 1e-18 * q:
            break
    return q


def layer_norm(f: Function, eps, gamma, beta, variance, shared, start, count: int):
    """q and the rate."""
    eps, gamma, variance, shared = map(Real, (eps, gamma, variance, shared))

    def passed(q):
        square, slope, score = normal(f, beta, gamma * np.sqrt(q / (q + eps)), count)
        rate = variance * gamma**2 * slope / (q + eps)
        return variance * square + shared, variance * score * eps / (2 * q * (q + eps)), rate

    q = passed(Real(1))[0] if eps == 0 else _newton(lambda q: passed(q)[:2], Real(start))
    return q, passed(q)[2]


def vanilla(f: Function, variance, shared, start, count: int):
    """q, χ_q and χ_1."""
    variance, shared = Real(variance), Real(shared)

    def passed(q):
        square, slope, score = normal(f, 0, np.sqrt(q), count)
        return variance * square + shared, variance * score / (2 * q), variance * slope

    q = _newton(lambda q: passed(q)[:2], Real(start))
    return (q, *passed(q)[1:])


def group_norm(f: Function, m: int, eps, gamma, beta, variance, shared, start, count: int):
    """q and the rate."""
    n = m - 1
    eps, gamma, variance, shared = map(Real, (eps, gamma, variance, shared))
    if eps == 0:
        square, slope, along = sphere(f, m, gamma, beta, count)
        q = variance * square + shared
        return q, variance * gamma**2 * (n * slope - along) / ((m - 3) * q)
    # d = log(x/n), placed for the start: its density times 1/s² is below e^-60 at the ends.
    v, spread = math.log(start * n / m / float(eps)), math.sqrt(2 / n)
    low = max(-120 / n - 12 * spread, -140.0) if n < 60 else -14 * spread
    high = 13 * spread + (1.5 if n < 12 else 0.3)
    met = [abs(k - beta) / (float(gamma) * math.sqrt(n)) for k in f.kinks]
    met = [math.log(r * r / (1 - r * r)) - v for r in met if 0 < r < 1]
    inside = sorted(d for d in met if low < d < high)
    ends, edges = [low, *inside, high], []
    for a, b in itertools.pairwise(ends):
        edges += np.linspace(a, b, max(2, int((b - a) / min(1.0, 3 * spread)) + 2))[:-1].tolist()
    edges = np.array([*edges, high], dtype=Real)
    left, _, weights = _rule("half", max(24, count // 2), Real)
    width = np.diff(edges)[:, None]
    at = (edges[:-1, None] + width * left).ravel() + np.log(Real(start))
    measure = (width * weights).ravel()
    radii = 1 / np.sqrt(1 + m * eps / n * np.exp(-at))
    square, slope, along = np.array(
        [sphere(f, m, gamma * radius, beta, count) for radius in radii], dtype=Real
    ).T
    tau = 1 - (1 - radii**2) ** 2
    energy = gamma**2 * (n * slope - tau * along)

    def law(q):
        d = at - np.log(q)
        weight = measure * np.exp(Real(n) / 2 * (d - np.expm1(d)))
        return d, weight / weight.sum()

    def passed(q):
        d, weight = law(q)
        moved = weight * (Real(n) / 2 * np.expm1(d)) / q
        return variance * (weight @ square) + shared, variance * (moved @ square)

    q = _newton(passed, Real(start))
    d, weight = law(q)
    variances = q * n / Real(m) * np.exp(d) + eps
    return q, variance / m * ((weight / variances) @ energy)
