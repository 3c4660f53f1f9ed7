"""Solve many settings at once.

At ε = 0 those of one activation share every array operation; at ε > 0 those of one response and
batch size share their nodes over the disc. Of what is left, long sweeps along γ, β, B or ε alone
are interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from equipoise.numerics.quadrature import panels
from equipoise.theory.activation.catalogue import Activation
from equipoise.theory.batch_norm.averages.polynomials import LARGE_BATCH, row_averages
from equipoise.theory.batch_norm.fixed_point.axes import AXES, Axis
from equipoise.theory.batch_norm.fixed_point.closed_form import is_closed
from equipoise.theory.batch_norm.fixed_point.homogeneous import serves
from equipoise.theory.batch_norm.fixed_point.interpolate import interpolate
from equipoise.theory.batch_norm.fixed_point.solution import Solution
from equipoise.theory.batch_norm.fixed_point.solve import (
    TINY_EPS,
    solution_of,
    solve,
    solve_together,
)
from equipoise.theory.batch_norm.setting import Setting

# Rows held at once at ε = 0, so that arrays stay in the cache, and at ε > 0; fewer than this gain
# nothing. Rules, coarse and fine: the second pair for what is steep.
_ROWS, _MOST, _FEWEST = 16, 1000, 4
_RULES = tuple((panels.analytic(count), panels.analytic(count + 6)) for count in (14, 32))


def solve_all(settings: Sequence[Setting]) -> list[Solution]:
    """Solve every setting, as :func:`solve` does one: within the errors of both.

    Raises:
        ValueError: As :func:`solve`, for any of them.
    """
    distinct = list(dict.fromkeys(settings))
    solutions = dict(zip(distinct, _solve_distinct(distinct), strict=True))
    return [solutions[setting] for setting in settings]


def _solve_distinct(settings: Sequence[Setting]) -> list[Solution]:
    solutions: dict[int, Solution] = {}
    groups: dict[Activation, list[int]] = {}
    for i, setting in enumerate(settings):
        if _suits(setting):
            groups.setdefault(setting.activation, []).append(i)
    for phi, members in groups.items():
        members.sort(key=lambda i: settings[i].batch_size)
        for start in range(0, len(members), _ROWS):
            some = members[start : start + _ROWS]
            if len(some) >= _FEWEST:
                solutions |= _rows(phi, settings, some)
    solutions |= _sharing_a_response(settings)
    for axis in AXES:
        solutions |= _along(axis, settings, solutions)
    return [
        solutions[i] if i in solutions else solve(setting) for i, setting in enumerate(settings)
    ]


def _sharing_a_response(settings: Sequence[Setting]) -> dict[int, Solution]:
    """Those at ε > 0 of which others differ in ε and variances alone."""
    groups: dict[Setting, list[int]] = {}
    for i, setting in enumerate(settings):
        if setting.eps >= TINY_EPS and not setting.activation.unsure and not serves(setting):
            shared = replace(setting, eps=0.0, weight_variance=1.0, bias_variance=0.0)
            groups.setdefault(shared, []).append(i)
    found: dict[int, Solution] = {}
    for group in groups.values():
        for start in range(0, len(group), _MOST):
            members = group[start : start + _MOST]
            if len(members) >= _FEWEST:
                # Where one is refused, the caller meets it again, by itself.
                with suppress(ValueError):
                    found |= zip(
                        members, solve_together([settings[i] for i in members]), strict=True
                    )
    return found


def _along(axis: Axis, settings: Sequence[Setting], solved: Container[int]) -> dict[int, Solution]:
    """Those that others differ from in one field alone."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, setting in enumerate(settings):
        if i in solved or setting.activation.unsure or is_closed(setting):
            continue
        if math.isfinite(axis.at(setting)):
            groups.setdefault(axis.others(setting), []).append(i)
    found: dict[int, Solution] = {}
    for members in groups.values():
        some = interpolate(axis, [settings[i] for i in members])
        found |= {members[place]: solution for place, solution in some.items()}
    return found


def _suits(setting: Setting) -> bool:
    phi = setting.activation
    return (
        setting.eps == 0
        and setting.batch_size >= LARGE_BATCH
        and not (phi.turns or phi.unsure or any(kink.power for kink in phi.kinks))
        and (phi.homogeneity is None or setting.beta != 0)
    )


def _rows(phi: Activation, settings: Sequence[Setting], some: list[int]) -> dict[int, Solution]:
    """Those of some settings on which two rules agree."""
    found: dict[int, Solution] = {}
    for rules in _RULES:
        left = [i for i in some if i not in found]
        if len(left) < _FEWEST:
            break
        B, gamma, beta = (
            np.array([getattr(settings[i], name) for i in left])
            for name in ("batch_size", "gamma", "beta")
        )
        with np.errstate(over="ignore", invalid="ignore"):
            coarse, fine = (row_averages(phi, B, gamma, beta, rule) for rule in rules)
        for i, rough, good in zip(left, coarse, fine, strict=True):
            solution = solution_of(settings[i], rough, good) if rough and good else None
            if solution:
                found[i] = solution
    return found
