"""What trained networks say about the predicted boundary, sentence by sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.experiments.yang2019 import trained_panels
from equipoise.experiments.yang2019.boundary import (
    PAPER_FACTOR,
    Edge,
    best_constant,
    disagreement,
    edge,
    fitted_factor,
    level,
    paper_line,
    scaled_line,
    seed_noise,
)
from equipoise.experiments.yang2019.trained_panels import PAPER_RATE, Results
from equipoise.records.experiments import Check
from equipoise.report import wording

# The source does not say what it calls trained; its lines follow the last trace of training.
_LENIENT = 0.25
_ERRORS = 2.0


def edges(results: Results, parameter: str) -> tuple[Edge, ...]:
    """The boundary of each column, at the best learning rates."""
    return tuple(edge(column) for column in trained_panels.columns(results, parameter))


def line_checks(results: Results, parameter: str) -> tuple[Check, ...]:
    """Whether the boundary is the line 16ξ, and whether it has ξ's course at all."""
    columns = trained_panels.columns(results, parameter)
    found = [edge(column) for column in columns]
    lenient = [edge(column, _LENIENT) for column in columns]
    rate = f"; the source's own rate {_at_the_papers_rate(results, parameter)}"
    return (
        _factor("trained from half-way to guessing on", found, rate),
        _factor("trained from a quarter of the way on", lenient),
        _course(found),
        _tested(results, parameter, found),
    )


@dataclass(frozen=True, slots=True)
class Deeper:
    """The claim that networks train deeper at one position than at another."""

    claim: str
    deep: float
    shallow: float

    def check(self, found: Sequence[Edge]) -> Check | None:
        """Hold it against what seeds alone would do; ``None`` if both boundaries are unseen."""
        at = {e.position: e for e in found}
        deep, shallow = at[self.deep], at[self.shallow]
        if deep.depth == shallow.depth and not deep.inside:
            return None
        ratio = math.log(deep.depth / shallow.depth)
        width = seed_noise(found).error
        text = (
            f"{_depth(deep)} layers at {self.deep:g}, {_depth(shallow)} at {self.shallow:g}; "
            f"ratio {wording.number(math.exp(ratio))}, by seeds alone up to "
            f"{wording.number(math.exp(width))}"
        )
        return Check(self.claim, text, ratio > width)


def compared(
    claims: Sequence[Deeper], found: Sequence[Edge]
) -> tuple[tuple[Check, ...], tuple[str, ...]]:
    """Check what was seen, and name what was not."""
    checks = {claim: claim.check(found) for claim in claims}
    unseen = tuple(
        f"{claim.claim}: at both places the boundary is beyond the depths tried"
        for claim, check in checks.items()
        if check is None
    )
    return tuple(check for check in checks.values() if check is not None), unseen


def deepest_at(position: float, found: Sequence[Edge]) -> Check:
    """Whether networks train nowhere deeper than at a position, by more than seeds differ."""
    there = next(e for e in found if e.position == position)
    deepest = max(found, key=lambda e: e.depth)
    excess = math.log(deepest.depth / there.depth)
    text = f"{_depth(there)} layers there; at most {_depth(deepest)}, at {deepest.position:g}"
    claim = f"nowhere do networks train deeper than at {position:g}"
    return Check(claim, text, excess == 0 or excess <= seed_noise(found).error)


def nothing_beyond(depth: int, found: Sequence[Edge]) -> Check:
    """Whether no column's networks of more than about so many layers train."""
    deepest = max(found, key=lambda e: e.depth)
    return Check(
        f"networks deeper than about {depth} layers do not train in any column",
        f"the boundary is at most {_depth(deepest)} layers, at {deepest.position:g}; tried up to "
        f"{deepest.span[1]}",
        deepest.depth <= depth,
    )


def _factor(definition: str, found: Sequence[Edge], more: str = "") -> Check:
    f = fitted_factor(found)
    claim = f"the boundary is at f·ξ with f = 16 (within {_ERRORS:g} errors), {definition}"
    text = f"f = {wording.spread(f)} ({f.method}; {_unseen(found)}){more}"
    return Check(claim, text, abs(f.value - PAPER_FACTOR) <= _ERRORS * f.error)


def _course(found: Sequence[Edge]) -> Check:
    fitted = disagreement(found, scaled_line(fitted_factor(found).value))
    constant = best_constant(found)
    flat = disagreement(found, lambda e: constant)
    text = (
        f"area of disagreement, as a share of the panel: {_percent(fitted)} with the fitted "
        f"factor, {_percent(disagreement(found, paper_line))} with 16ξ, {_percent(flat)} with "
        f"the best single depth, {wording.number(constant)}"
    )
    return Check("f·ξ tells the boundary better than one depth for all", text, fitted < flat)


def _tested(results: Results, parameter: str, found: Sequence[Edge]) -> Check:
    """Running statistics of small batches are noisy; they must not make the boundary."""
    f = fitted_factor(found)
    columns = trained_panels.columns(results, parameter, batch_statistics=True)
    other = fitted_factor([edge(column) for column in columns])
    apart = abs(f.value - other.value) <= _ERRORS * math.hypot(f.error, other.error)
    claim = "not in the paper: testing with statistics of test batches gives the same factor"
    return Check(claim, f"f = {wording.spread(other)}", apart)


def _at_the_papers_rate(results: Results, parameter: str) -> str:
    """How deep networks train at the source's own learning rate, on as many images."""
    best = trained_panels.columns(results, parameter)
    slow = trained_panels.columns(results, parameter, rate=PAPER_RATE)
    trained = [
        depth
        for there, here in zip(best, slow, strict=True)
        for depth, mean in zip(here.depths, here.means, strict=True)
        if mean >= level(there)
    ]
    return f"trains up to {max(trained)} layers" if trained else "trains none"


def _unseen(found: Sequence[Edge]) -> str:
    missing = [e for e in found if not (e.inside and e.line_inside)]
    if not missing:
        return "all columns"
    return "not at " + ", ".join(f"{e.position:g}" for e in missing)


def _depth(e: Edge) -> str:
    if e.depth >= e.span[1]:
        return f"{e.span[1]} or more"
    if e.depth <= e.span[0]:
        return f"{e.span[0]} or fewer"
    return wording.number(e.depth)


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.0f} %"
