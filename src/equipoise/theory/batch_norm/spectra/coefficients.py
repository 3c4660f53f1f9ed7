r"""Coefficients :math:`a_k = E[f(w)\psi_k(w)]` by quadrature on panels split at the kinks.

In the angle :math:`\theta = \arccos(w/\sqrt n)` a polynomial of degree k turns k times, so panels
shrink as the degree grows; their number then makes thousands of coefficients as good as the first.

Symbols: B: batch size, n = B - 1, w: normalised sample, ψ_k: orthonormal polynomials of w,
f(w) = φ(γw + β).
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise.numerics.quadrature import gegenbauer, panels
from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.setting import Setting

Array = NDArray[np.float64]
Level: TypeAlias = tuple[Array, Array]

# Beyond 12 standard deviations the density is below 1e-31; at large B the sphere is far wider.
_REACH = 12.0
# Panels on which ψ_k turns by at most this angle are resolved by their nodes.
_TURN = 8.0
_LEAST_SPLITS = 24
_RULES = (panels.analytic(20), panels.analytic(28))
_POWER_RULES = (panels.any_powers(140), panels.any_powers(200))
# Levels beyond the second cut panels in four; steep functions need that.
_LEVELS, _GOAL = 5, 1e-12


@np.errstate(over="ignore", invalid="ignore")
def refined_coefficients(setting: Setting, terms: int) -> tuple[Level, Level]:
    """Refine until two levels agree; return the coarser and the finer.

    Args:
        setting: The activation, γ, β and the batch size.
        terms: How many coefficients.

    Returns:
        Two pairs of the coefficients, of shape ``[terms]``, and of E[f²] and E[(n − w²) f′²].
        Overflows are left to the caller.
    """
    fine = _expand(setting, terms, 0)
    for level in range(1, _LEVELS):
        coarse, fine = fine, _expand(setting, terms, level)
        change = float(np.abs(fine[0] - coarse[0]).max())
        if not change > _GOAL * math.sqrt(fine[1][0]):
            break
    return coarse, fine


def _expand(setting: Setting, terms: int, level: int) -> Level:
    """Coefficients, E[f²] and E[(n − w²) f′²]."""
    f = Response(setting.activation, setting.gamma, setting.beta)
    n = setting.batch_size - 1
    cosine, argument, weights = _nodes(f, n, terms, level)
    values, slopes = f(argument)
    values, slopes = (np.where(weights > 0, part, 0.0) for part in (values, slopes))
    weighted = weights * values
    polynomials = gegenbauer.polynomials(setting.batch_size, terms, math.sqrt(n) * cosine)
    coefficients = np.array([weighted @ psi for psi in polynomials])
    energy = weights @ (n * (1 - cosine**2) * slopes**2)
    return coefficients, np.array([weighted @ values, energy])


def _nodes(f: Response, n: int, terms: int, level: int) -> tuple[Array, Array, Array]:
    """Nodes cos θ = w/√n on panels of θ, f's arguments γw + β there, and the law's weights."""
    angles, arguments, singular = _edges(f, n, terms, level)
    pairs = [np.stack([part[:-1], part[1:]], 1) for part in (angles, arguments)]
    on_power = singular[:-1] | singular[1:]
    parts = []
    for rule, chosen in (
        (_RULES[min(level, 1)], ~on_power),
        (_POWER_RULES[min(level, 1)], on_power),
    ):
        if chosen.any():
            edges, x_edges = (pair[chosen] for pair in pairs)
            nodes = panels.place(rule, edges)
            cos_edge, step, sine = nodes.on_circle(edges, np.cos(edges))
            x = np.take_along_axis(x_edges, nodes.edge, 1) + f.gamma * math.sqrt(n) * step
            weights = nodes.weights * _density(n, cos_edge + step, sine)
            parts.append([part.ravel() for part in (cos_edge + step, x, weights)])
    cosines, x, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
    return cosines, x, weights / weights.sum()


def _edges(f: Response, n: int, terms: int, level: int) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Ascending edges in θ, f's arguments there, and whether each is a fractional power."""
    scale, widest = f.gamma * math.sqrt(n), _widest(n)
    at = (f.kinks - f.beta) / scale
    kinks = sorted(f.activation.kinks, key=lambda kink: kink.at)
    powers = np.array([kink.power for kink in kinks], dtype=bool)
    inside = np.abs(at) < widest
    found, powers = np.arccos(at[inside]), powers[inside]
    ends = np.arccos([widest, -widest])
    splits = max(_LEAST_SPLITS, math.ceil(float(np.ptp(ends)) * terms / _TURN)) * 4 ** max(
        0, level - 1
    )
    uniform, width = np.linspace(ends[0], ends[1], splits + 1, retstep=True)
    # A panel that ends close to a fractional power, but not on it, would need its rule too.
    uniform = uniform[(np.abs(uniform[:, None] - found[powers]) > width / 2).all(1)]
    angles = np.concatenate([found, uniform, ends])
    arguments = np.concatenate(
        [f.kinks[inside], *(scale * np.cos(part) + f.beta for part in (uniform, ends))]
    )
    singular = np.zeros(len(angles), dtype=bool)
    singular[: len(found)] = powers
    angles, first = np.unique(angles, return_index=True)
    return angles, arguments[first], singular[first]


def _widest(n: int) -> float:
    return min(_REACH / math.sqrt(n), 1.0)


def _density(n: int, cosine: Array, sine: Array) -> Array:
    """sin^(B-3) θ. A power n loses n·ε_mach, the logarithm loses digits near the poles instead."""
    if _widest(n) == 1:
        return np.asarray(sine ** (n - 2))
    return np.asarray(np.exp((n - 2) / 2 * np.log1p(-(cosine**2))))
