"""Checks of the boundary that the source does not make."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import partial

import numpy as np
from scipy.special import fdtri

from equipoise.report import wording
from equipoise_papers.experiments.verdict import Check, ours
from equipoise_papers.yang2019.trainability import panels
from equipoise_papers.yang2019.trainability.boundary.claims import noise_of
from equipoise_papers.yang2019.trainability.boundary.edge import (
    PAPER_FACTOR,
    Edge,
    best_constant,
    disagreement,
    edge,
    fitted_factor,
    learns,
    of_each_other,
    of_line,
    paper_line,
    scaled_line,
)
from equipoise_papers.yang2019.trainability.boundary.ratios import (
    CONFIDENCE,
    Array,
    Places,
    resampled,
)
from equipoise_papers.yang2019.trainability.panels import Results

# From barely better than guessing to nearly the best accuracy.
_SHARES = (0.1, 0.75)
# Columns scatter visibly more than seeds if their variance is larger by this factor.
_VISIBLE = 4.0


def remarks(results: Results, parameter: str, rate: float | None) -> tuple[Check, ...]:
    """Check a panel's boundary for what the source does not say.

    Args:
        results: Networks of the panel alone.
        parameter: Name of the parameter that differs from column to column.
        rate: Learning rate at which networks are judged; ``None`` for the best of each stack.
    """
    columns = panels.columns(results, parameter, rate=rate)
    found = [edge(column) for column in columns]
    tested = panels.columns(results, parameter, rate=rate, batch_statistics=True)
    ends = [[edge(column, share) for column in columns] for share in _SHARES]
    checks = (
        _fitted(found, ends),
        _scatter(found),
        _course(found),
        _tested(found, [edge(column) for column in tested]),
        _rates(results),
    )
    return tuple(ours(check) for check in checks)


def _fitted(found: Sequence[Edge], ends: Sequence[Sequence[Edge]]) -> Check:
    """Report the factor, and how it depends on the definition of “trained”."""
    text = " to ".join(_one(end) for end in ends)
    shares = " to ".join(f"{share:.0%}".replace("%", " %") for share in _SHARES)
    return Check(
        "the boundary is at f·ξ with an f that depends on what is called trained",
        f"f = {of_line(found).times(PAPER_FACTOR)}; {text} as “trained” means from {shares} of "
        "the way from guessing to the column's best",
        None,
    )


def _one(found: Sequence[Edge]) -> str:
    return f"{wording.number(fitted_factor(found))} ({of_line(found).columns} columns)"


def _scatter(found: Sequence[Edge]) -> Check:
    """Check that ξ explains the columns as well as seeds allow, by an F ratio of variances."""
    claim = "columns scatter around f·ξ no more than seeds do"
    logs = [math.log(e.depth / e.predicted) for e in found if e.inside and e.line_inside]
    noise = noise_of(found)
    if len(logs) < 2 or not noise.freedom or not noise.deviation:
        return Check(claim, "too few columns or seeds tell", None)
    ratio = statistics.variance(logs) * noise.seeds / noise.deviation**2
    low, high = (
        ratio / float(fdtri(len(logs) - 1, noise.freedom, (1 + sign * CONFIDENCE) / 2))
        for sign in (1, -1)
    )
    text = (
        f"by {_percent(statistics.stdev(logs))} from column to column, by "
        f"{_percent(noise.deviation / math.sqrt(noise.seeds))} from seeds; variances' ratio "
        f"{wording.number(ratio)} ({wording.number(low)} to {wording.number(high)} at 95 %)"
    )
    return Check(claim, text, False if low > 1 else True if high < _VISIBLE else None)


def _course(found: Sequence[Edge]) -> Check:
    """Check that the line predicts better than one fitted depth for all columns."""
    low, high = resampled(len(found), partial(advantages, found))
    constant = best_constant(found)
    areas = [
        disagreement(found, line)
        for line in (scaled_line(fitted_factor(found)), paper_line, lambda e: constant)
    ]
    fitted, paper, flat = (_percent(area) for area in areas)
    text = (
        f"area of disagreement, as a share of the panel: {fitted} with the fitted f, {paper} with "
        f"16ξ, {flat} with the best single depth, {wording.number(constant)}; the last less the "
        f"first {_percent(areas[2] - areas[0])} ({_percent(low)} to {_percent(high)} at 95 %, "
        "columns redrawn)"
    )
    holds = True if low > 0 else False if high < 0 else None
    return Check("f·ξ tells the boundary better than one depth for all", text, holds)


def advantages(found: Sequence[Edge], places: Places) -> Array:
    """By how much f·ξ disagrees less than one depth, in each row of columns; nan without an f.

    Both are fitted to the row. The same as :func:`disagreement` less another one, at once for all.
    """
    depth, predicted = (np.array([getattr(e, of) for e in found]) for of in ("depth", "predicted"))
    low, high = np.log([e.span for e in found]).T
    seen = np.array([e.line_inside and e.inside for e in found])
    logs = np.log(np.divide(depth, predicted, out=np.ones(len(found)), where=seen))
    with np.errstate(invalid="ignore"):  # nan of rows of which no boundary was seen
        factor = np.exp(logs[places].sum(1) / seen[places].sum(1))
    lines = np.median(depth[places], 1)[:, None], factor[:, None] * predicted[places]
    shares = [
        (np.clip(np.log(line), low[places], high[places]) - low[places]) / (high - low)[places]
        for line in (*lines, depth[places])
    ]
    flat, fitted = (abs(share - shares[2]).mean(1) for share in shares[:2])
    return np.asarray(flat - fitted)


def _tested(found: Sequence[Edge], tested: Sequence[Edge]) -> Check:
    """Check that noise in the running statistics of small batches does not set the boundary."""
    ratio = of_each_other(tested, found)
    claim = (
        "tested with the statistics of test batches, boundaries are the same, within a factor of "
        "1.25"
    )
    return Check(claim, f"their ratio, column by column: {ratio.times(1)}", ratio.is_one)


def _rates(results: Results) -> Check:
    """Check that no best learning rate of networks that learn is at an edge of the grid."""
    trained = panels.stacks(results).values()
    least = [one for one in trained if one.best_rate == min(one.rates)]
    largest = [one for one in trained if one.best_rate == max(one.rates)]
    learning = sum(
        learns(statistics.fmean(one.accuracies(one.best_rate)), one.chance)
        for one in (*least, *largest)
    )
    text = (
        f"of {wording.count(len(trained), 'stack')}, {len(least)} are best at the least rate and "
        f"{len(largest)} at the largest; {learning} of these learn at all"
    )
    claim = "where networks learn, no best learning rate is at an edge of the grid"
    return Check(claim, text, not learning)


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.0f} %".replace("-", "−")
