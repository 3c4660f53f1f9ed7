r"""The fixed point of κ at ε > 0, and every number there.

Solves :math:`F(\kappa) = \sigma_w^2E[(f_1 - f_2)^2]/2 = \kappa`. Averages over circles do
not depend on κ or ε: a scan over all κ needs them once, Newton's method near the solution needs
none, and problems of one response and batch size share them wherever their c = Bε/κ is alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.batch_norm.averages.reach import ALMOST_NO_C, range_of
from equipoise.theory.batch_norm.averages.response import Response
from equipoise.theory.batch_norm.disc import circles as of
from equipoise.theory.batch_norm.disc.law import DiscLaw, numbers
from equipoise.theory.batch_norm.disc.place import place
from equipoise.theory.batch_norm.disc.scan import (
    CHUNK,
    SMALLEST,
    Group,
    Scan,
    largest_roots,
    log_ratio,
)
from equipoise.theory.batch_norm.fixed_point.solution import Numbers, Solution
from equipoise.theory.batch_norm.setting import ConvergenceError, Setting, overflow

Array = NDArray[np.float64]

# The logarithm by which κ has to exceed what c moves weights at, for nodes without c to be tried.
_SURELY = 2.0
# Newton's method: the longest step of log κ, and how far it may lead from where nodes were placed.
_ROOM, _MOST_STEPS, _MOST_PLACES = 0.15, 80, 40
_SQUARE = 1e-18
# Problems whose log c lie within this share their nodes.
_LIKE_C = 0.2
_SHIFT = 1e-5
_METHOD = "quadrature over a disc, {} circles"


def solve_without_eps(setting: Setting, f: Response) -> Solution | None:
    """Every number at ε = 0, where κ is explicit; None where κ is 0.

    Raises:
        ValueError: If f overflows.
    """
    coarse, fine = place(f, setting.batch_size, 0.0)
    rough, kappa = (
        setting.weight_variance * float(law.map(np.zeros(1))[0][0]) for law in (coarse, fine)
    )
    if not np.isfinite(kappa):
        raise overflow(setting)
    if not min(rough, kappa) > 0:
        return None
    return _solutions(Group([setting], f), coarse, fine, np.array([[rough], [kappa]]))[0]


def solve_on_disc(settings: Sequence[Setting], f: Response) -> list[Solution | None]:
    """Every number of settings at ε > 0 that share response and batch size; None where κ → 0.

    Raises:
        ConvergenceError: If κ does not settle.
        ValueError: If f overflows.
    """
    solutions: list[Solution | None] = [None] * len(settings)
    found = _where_c_moves_no_weight(Group(settings, f))
    for i, solution in found.items():
        solutions[i] = solution
    others = [i for i in range(len(settings)) if i not in found]
    scan = Scan.of([settings[i] for i in others], f) if others else None
    if scan is None:
        return solutions
    roots = zip(others, largest_roots(scan.group.settings, f, scan), strict=True)
    left = {i: guess for i, guess in roots if guess is not None}
    for _ in range(_MOST_PLACES):
        for members in _of_like_c(settings, left):
            group = Group([settings[i] for i in members], f)
            logs = np.array([left[i] for i in members])
            coarse, fine = place(f, group.batch_size, group.middle(logs), scan.circles)
            solved, moved = _settled(group, coarse, fine, logs)
            left |= {members[i]: log_kappa for i, log_kappa in moved.items()}
            for i, solution in solved.items():
                del left[members[i]]
                solutions[members[i]] = solution
        if not left:
            return solutions
    raise ConvergenceError(
        f"the fixed point of kappa did not settle at eps = {settings[min(left)].eps} for "
        f"{f.activation.name}: it moved {_MOST_PLACES} times. Try a slightly different eps."
    )


def _where_c_moves_no_weight(group: Group) -> dict[int, Solution | None]:
    """Solutions at so large a κ that c = Bε/κ hardly moves weights, even of the rarest samples.

    Where s = c sinh² u ≤ 1 everywhere, log F changes by half of what log κ does at most: F(κ)/κ
    falls, also at all larger κ, so that a solution there is the only one and the largest.
    """
    within = range_of(group.f, group.batch_size, ALMOST_NO_C)
    log_variance = np.log(group.variance)
    lowest = np.log(group.batch_size * group.eps) + 2 * math.log(math.sinh(within.end))
    likely = np.flatnonzero(within.peak + log_variance > lowest + _SURELY)
    if not (within.whole and likely.size and SMALLEST < within.size < 1 / SMALLEST):
        return {}
    coarse, fine = place(group.f, group.batch_size, ALMOST_NO_C)
    largest = log_variance + math.log(
        max(float(fine.map(np.array([ALMOST_NO_C]))[0][0]), SMALLEST)
    )
    likely = likely[(largest > lowest)[likely]]
    if not likely.size:
        return {}
    solved, _ = _settled(group.some(likely), coarse, fine, largest[likely])
    return {int(likely[i]): solution for i, solution in solved.items()}


def _of_like_c(settings: Sequence[Setting], log_kappas: dict[int, float]) -> list[list[int]]:
    """Parts of which every c = Bε/κ is alike."""
    logs = {i: float(np.log(settings[i].eps)) - at for i, at in log_kappas.items()}
    parts: list[list[int]] = []
    for i in sorted(logs, key=logs.__getitem__):
        if not parts or logs[i] - logs[parts[-1][0]] > _LIKE_C:
            parts.append([])
        parts[-1].append(i)
    return parts


def _settled(
    group: Group, coarse: DiscLaw, fine: DiscLaw, log_kappa: Array
) -> tuple[dict[int, Solution | None], dict[int, float]]:
    """Solve on these nodes; where κ leaves them, give the log κ at which to place others.

    Not settled counts as solved where F(κ)/κ is known no better.
    """
    solved: dict[int, Solution | None] = {}
    elsewhere: dict[int, float] = {}
    step = max(1, CHUNK // fine.u.size)
    for start in range(0, len(log_kappa), step):
        chosen = np.arange(start, min(start + step, len(log_kappa)))
        part, logs = group.some(chosen), log_kappa[chosen]
        moved, settled = _newton(part, fine, logs)
        if not np.isfinite(moved).all():
            raise overflow(part.settings[int(np.flatnonzero(~np.isfinite(moved))[0])])
        noise, stuck = np.zeros(len(logs)), np.zeros(len(logs), dtype=bool)
        if not settled.all():
            noise = _noise(part, coarse, fine, logs)
            stuck = ~settled & (np.abs(log_ratio(part, fine, logs)[0]) <= noise)
        logs = np.where(stuck, logs, moved)
        done = np.flatnonzero(settled | stuck)
        for i in np.flatnonzero(~(settled | stuck)).tolist():
            elsewhere[start + i] = float(logs[i])
        if done.size:
            ready, kappa = part.some(done), np.exp(logs[done])
            rough = np.exp(_newton(ready, coarse, logs[done])[0])
            unsure = np.where(stuck, noise, 0.0)[done]
            solutions = _solutions(ready, coarse, fine, np.array([rough, kappa]), unsure)
            solved |= zip((start + done).tolist(), solutions, strict=True)
    return solved, elsewhere


def _solutions(
    group: Group, coarse: DiscLaw, fine: DiscLaw, kappas: Array, unsure: Array | None = None
) -> list[Solution | None]:
    """Every number, with errors.

    Args:
        group: Settings.
        coarse: Nodes.
        fine: Independent ones.
        kappas: κ by either, of shape ``[2, settings]``.
        unsure: How far log F(κ) is not known, where Newton's method does not settle.
    """
    rough, kappa = kappas
    every = np.array([rough, kappa, *([kappa * (1 + _SHIFT)] if group.eps.any() else [])])
    sums = [
        law.sums(group.c(some).ravel()) for law, some in ((coarse, every[:1]), (fine, every[1:]))
    ]
    variance, shared = (np.tile(part, len(every)) for part in (group.variance, group.shared))
    joined = np.concatenate(sums, 1)
    found = numbers(
        group.batch_size, joined, every.ravel(), variance, shared, group.f.at_zero
    ).reshape(-1, *every.shape)
    other, exact, moved = found[:, 0], found[:, 1], found[:, -1]
    sensitivity = np.abs(moved - exact) / _SHIFT  # 0 at ε = 0
    mean_slope = sums[1][of.SLOPE, : kappa.size]
    values, slopes = fine.left_out(kappa / group.variance, mean_slope)
    solutions: list[Solution | None] = []
    for i, setting in enumerate(group.settings):
        if not min(rough[i], kappa[i]) > 0:
            solutions.append(None)
            continue
        at = Numbers(exact[:, i], sensitivity[:, i])
        errors = at.distance(Numbers(other[:, i]))
        errors[3:6] += slopes[i] * at.rate
        if unsure is not None and unsure[i]:
            errors += at.sensitivity * unsure[i] * at.amplification(setting)
        solutions.append(
            at.with_errors(
                errors,
                setting,
                _METHOD.format(fine.u.size),
                truncation=float(values[i]) / 4,
                slopes=float(mean_slope[i]),
            )
        )
    return solutions


def _noise(group: Group, coarse: DiscLaw, fine: DiscLaw, log_kappa: Array) -> Array:
    """How far log F(κ) is known: what two rules differ by, and the rounding of values."""
    rough, exact = (log_ratio(group, law, log_kappa)[0] for law in (coarse, fine))
    return np.asarray(2 * np.abs(exact - rough) + 1e-15)


def _newton(group: Group, law: DiscLaw, start: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Solve log F(κ) = log κ on fixed nodes; whether it stayed where they are good."""
    log_kappa, good = start.copy(), np.ones(start.size, dtype=bool)
    moving = np.arange(start.size)
    for _ in range(_MOST_STEPS):
        some = group if moving.size == start.size else group.some(moving)
        ratio, slope = log_ratio(some, law, log_kappa[moving])
        step = np.minimum(np.maximum(ratio / np.maximum(1 - slope, 1e-12), -_ROOM), _ROOM)
        log_kappa[moving] += step
        good[moving] = law.serves(some.c(np.exp(log_kappa[moving])), 2 * _ROOM)
        # The next step would be about the square of this one over 1 − F′.
        settled = (np.abs(step) < 4e-16) | (step * step < _SQUARE * (1 - slope))
        moving = moving[good[moving] & ~settled]
        if not moving.size:
            break
    return log_kappa, good
