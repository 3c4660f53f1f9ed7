"""Choose how averages are computed, and how finely, from the smoothness of f and the batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from equipoise.numerics.quadrature import panels
from equipoise.theory.batch_norm.averages.angles import angle_averages
from equipoise.theory.batch_norm.averages.homogeneous import at_radii
from equipoise.theory.batch_norm.averages.polynomials import kinked_averages, smooth_averages
from equipoise.theory.batch_norm.averages.response import Averages, Plan, Response, carried_out

Array = NDArray[np.float64]

_GAUSS_NODES = (64, 128, 256)
GAUSS_LEVELS = len(_GAUSS_NODES)
# A smooth function that 256 Gauss nodes cannot resolve is steep; panels can be narrowed.
_STEEP_SPLITS = (32, 128, 512, 1024)
_ANGLE_RULES = tuple(panels.half_powers(count) for count in (24, 32, 48, 64, 96))
_PANEL_RULES = tuple(panels.analytic(count) for count in (16, 24, 32, 48, 64))
_POWER_RULES = (
    *(panels.positive_powers(count) for count in (28, 40, 56)),
    # Slopes that grow without bound at the kink need more.
    *(panels.any_powers(count) for count in (100, 140, 200)),
)


def levels(f: Response) -> int:
    """Number of refinement levels."""
    if f.has_powers:
        return len(_POWER_RULES)
    if not f.kinks.size:
        return len(_GAUSS_NODES) + len(_STEEP_SPLITS)
    return min(len(_ANGLE_RULES), len(_PANEL_RULES))


def _prefers_angles(batch_size: int, radii: Array) -> bool:
    """At small batches ρ_k decays slowly; the sum then costs more than a second angle.

    The terms are summed one by one for all radii together, so many radii favour the sum.
    """
    return batch_size < (20 if len(radii) == 1 else 16)


@np.errstate(over="ignore", invalid="ignore")  # the solver refuses overflows by name
def averages(f: Response, batch_size: int, radii: Array, level: int) -> Averages:
    """Compute the averages at a refinement level, 0 being the coarsest."""
    shape = f.activation.homogeneity
    if shape and f.is_homogeneous and len(radii) > 1:
        return at_radii(averages(f, batch_size, np.ones(1), level), shape.alpha, radii)
    return carried_out(f, [_plan(f, batch_size, radii, level)])[0]


@np.errstate(over="ignore", invalid="ignore")
def first_levels(f: Response, batch_size: int) -> tuple[Averages, Averages]:
    """The two coarsest levels at R = 1."""
    coarse, fine = carried_out(f, [_plan(f, batch_size, np.ones(1), level) for level in (0, 1)])
    return coarse, fine


def _plan(f: Response, batch_size: int, radii: Array, level: int) -> Plan:
    if not f.kinks.size and level < len(_GAUSS_NODES):
        return smooth_averages(f, batch_size, radii, _GAUSS_NODES[level])
    if not f.kinks.size:
        splits = _STEEP_SPLITS[level - len(_GAUSS_NODES)]
        return kinked_averages(f, batch_size, radii, panels.analytic(16), splits)
    if _prefers_angles(batch_size, radii):
        rules = _POWER_RULES if f.has_powers else _ANGLE_RULES
        return angle_averages(f, batch_size, radii, rules[level])
    rules = _POWER_RULES if f.has_powers else _PANEL_RULES
    return kinked_averages(f, batch_size, radii, rules[level], splits=6)


@np.errstate(over="ignore", invalid="ignore")
def one_sample_averages(f: Response, batch_size: int, radii: Array, level: int) -> Averages:
    """Averages over one sample: only ``mean``, ``first`` and ``squares`` are valid.

    They are one-dimensional integrals at every batch size, so no second angle is needed.
    """
    if not f.kinks.size:
        return carried_out(f, [_plan(f, batch_size, radii, level)])[0]
    rules = _POWER_RULES if f.has_powers else _PANEL_RULES
    plan = kinked_averages(f, batch_size, radii, rules[level], splits=6, terms=2)
    return carried_out(f, [plan])[0]


def breaks(f: Response, batch_size: int) -> Array:
    """Radii in (0, 1) at which a kink, or a pair of kinks, leaves the reachable region."""
    found = gammas_of_breaks(f, batch_size) / f.gamma
    return np.asarray(found[found < 1])


def gammas_of_breaks(f: Response, batch_size: int) -> Array:
    """Every γ at which a kink, or a pair, meets the end of what samples span at this β."""
    B, at = batch_size, f.kinks - f.beta
    a, b = at[:, None], at
    # Z = B(B−2) − B(w₁² + w₂²) + (w₁ − w₂)² = 0 at (a, b)/γ.
    pairs = np.sqrt((B * (a**2 + b**2) - (a - b) ** 2) / (B * (B - 2)))
    found = np.unique(np.append(np.abs(at) / np.sqrt(B - 1), pairs))
    return np.asarray(found[found > 0])


def betas_of_breaks(f: Response, batch_size: int) -> Array:
    """Every β at which a kink, or a pair, meets the end of what samples span at this γ."""
    B, at = batch_size, f.kinks
    middle, apart = (at[:, None] + at) / 2, at[:, None] - at
    # The same Z, with w₁² + w₂² from the middle of both kinks and their distance.
    squares = (B - 2) * (B * f.gamma**2 - apart**2 / 2) / (2 * B)
    pairs = np.where(squares > 0, np.sqrt(np.maximum(squares, 0)), np.nan)
    wide = f.gamma * np.sqrt(B - 1)
    every = at - wide, at + wide, middle - pairs, middle + pairs
    found = np.concatenate([part.ravel() for part in every])
    return np.unique(found[np.isfinite(found)])
