"""The source's sentences about the boundary, checked on trained networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from equipoise.report import wording
from equipoise_papers.experiments.verdict import Check
from equipoise_papers.yang2019.trainability.boundary.edge import Edge, of_each_other, of_line
from equipoise_papers.yang2019.trainability.boundary.ratios import Noise, more, no_more, seed_noise

_Edges = Sequence[Edge]


def noise_of(found: _Edges) -> Noise:
    """How much seeds differ, from columns whose boundary was seen."""
    return seed_noise([e.seeds for e in found if e.inside])


def not_beyond_the_line(found: _Edges, sooner: _Edges) -> Check:
    """Check that in no column networks train deeper than 16ξ by more than seeds differ."""
    claim = "networks deeper than 16ξ do not train, in any column"
    return _judged_by_both(claim, *map(_at_most_the_line, (found, sooner)))


def _at_most_the_line(found: _Edges) -> _Reading:
    known = [e for e in found if e.side_known]
    if not known or _nothing_trains(found):
        return _Reading("nothing trains, or no column tells", None)
    worst = max(known, key=lambda e: e.depth / e.predicted)
    share = worst.depth / worst.predicted
    width = noise_of(found).width(columns=1, comparisons=len(known))
    text = (
        f"the boundary is at most at {wording.number(share)} of 16ξ, at {worst.position:g}, over "
        f"{wording.count(len(known), 'column')}; by seeds alone a factor of {_factor(width)}"
    )
    unending = any(e.beyond for e in known)
    return _Reading(text, _limited(math.log(share), width, unending=unending))


# The source does not say what it calls trained: half-way from guessing to the best, or less.
QUARTER = 0.25


def at_the_line(found: _Edges, sooner: _Edges, agreement: str) -> Check:
    """Check that the boundary is at 16ξ, whatever is called trained.

    Args:
        found: Boundaries.
        sooner: The same, where a quarter of the way to the best accuracy is called trained.
        agreement: The source's word for it.
    """
    claim = (
        f"{agreement} of ξ and the maximum trainable depth: the boundary is at 16ξ, within a "
        "factor of 1.25"
    )
    half, quarter = (
        _Reading(f"the boundary over 16ξ: {ratio.times(1)}", ratio.is_one)
        for ratio in (of_line(found), of_line(sooner))
    )
    return _judged_by_both(claim, half, quarter)


def same_region(
    found: _Edges, reference: _Edges, sooner: _Edges, reference_sooner: _Edges
) -> Check:
    """Check that networks train where those of panel a do, column by column."""
    claim = "a trainable region nearly identical to that of panel a, within a factor of 1.25"
    half, quarter = (
        _Reading(f"boundary over that of panel a: {ratio.times(1)}", ratio.is_one)
        for ratio in (of_each_other(found, reference), of_each_other(sooner, reference_sooner))
    )
    return _judged_by_both(claim, half, quarter)


def nothing_beyond(depth: int, found: _Edges, sooner: _Edges) -> Check:
    """Check that in no column networks of more than about ``depth`` layers train."""
    claim = f"networks deeper than about {depth} layers do not train in any column"
    return _judged_by_both(claim, *(_within(depth, edges) for edges in (found, sooner)))


def _within(depth: int, found: _Edges) -> _Reading:
    deepest = max(found, key=lambda e: e.depth)
    untried = all(e.span[1] <= depth for e in found)
    if _nothing_trains(found) or untried:
        return _Reading("nothing trains" if not untried else "not tried", None)
    width = noise_of(found).width(columns=1, comparisons=len(found))
    text = (
        f"the boundary is at most {_depth(deepest)} layers, at {deepest.position:g}; tried up to "
        f"{deepest.span[1]}"
    )
    excess = math.log(deepest.depth / depth)
    return _Reading(text, _limited(excess, width, unending=deepest.beyond))


def deepest_at(position: float, found: _Edges) -> Check:
    """Check that nowhere networks train deeper than at a position by more than seeds differ."""
    claim = f"nowhere do networks train deeper than at {position:g}"
    there = next(e for e in found if e.position == position)
    others = [e for e in found if e.position != position]
    other = max(others, key=lambda e: e.depth)
    text = f"{_depth(there)} layers there; elsewhere {_depth(other)}, at {other.position:g}"
    excess = math.log(other.depth / there.depth)
    width = noise_of(found).width(columns=2, comparisons=len(others))
    holds = no_more(excess, width)
    # Of two unseen boundaries it is unknown which is deeper; of one, only its side is known.
    if there.beyond:
        holds = None if other.beyond else True
    elif other.beyond or there.below:
        holds = False if holds is False and not there.below else None
    return Check(claim, text, holds)


@dataclass(frozen=True, slots=True)
class Deeper:
    """The claim that networks train deeper at one position than at another.

    Args:
        claim: In words.
        deep: The positions of which one must let them train deeper.
        shallow: Than here.
    """

    claim: str
    deep: tuple[float, ...]
    shallow: float

    def check(self, found: _Edges, sooner: _Edges) -> Check | None:
        """Compare the ratio with the scatter of seeds, for both that may be called trained.

        Returns:
            ``None`` if both boundaries are outside of what was tried, either way.
        """
        half, quarter = self._reading(found), self._reading(sooner)
        if half is None and quarter is None:
            return None
        unseen = _Reading("neither boundary is within the depths tried", None)
        return _judged_by_both(self.claim, half or unseen, quarter or unseen)

    def _reading(self, found: _Edges) -> _Reading | None:
        at = {e.position: e for e in found}
        deep, shallow = max((at[p] for p in self.deep), key=lambda e: e.depth), at[self.shallow]
        if (deep.beyond and shallow.beyond) or (deep.below and shallow.below):
            return None
        ratio = math.log(deep.depth / shallow.depth)
        width = noise_of(found).width(columns=2, comparisons=len(self.deep))
        text = (
            f"{_depth(deep)} layers at {deep.position:g}, {_depth(shallow)} at {self.shallow:g}; "
            f"ratio {wording.number(math.exp(ratio))}, by seeds alone up to {_factor(width)}"
        )
        holds = more(ratio, width)
        # The ratio is then a lower bound.
        if holds is False and (deep.beyond or shallow.below):
            holds = None
        return _Reading(text, holds)


@dataclass(frozen=True, slots=True)
class _Reading:
    """What is found, and whether that is what is claimed."""

    text: str
    holds: bool | None


def _judged_by_both(claim: str, half: _Reading, quarter: _Reading) -> Check:
    """Two readings with two answers decide nothing."""
    holds = half.holds if half.holds is quarter.holds else None
    words = f"{half.text}; {quarter.text} if a quarter of the way to the best accuracy is called"
    return Check(claim, f"{words} trained", holds)


def transition_at(position: float, found: _Edges, sooner: _Edges) -> Check:
    """Check that the depth changes most next to a position, by more than seeds differ."""
    claim = f"a well defined phase transition near ε = {position:g}"
    return _judged_by_both(claim, *(_transition(position, edges) for edges in (found, sooner)))


def _transition(position: float, found: _Edges) -> _Reading:
    ordered = sorted(found, key=lambda e: e.position)
    steps = [
        (abs(math.log(after.depth / before.depth)), before, after)
        for before, after in pairwise(ordered)
    ]
    largest, before, after = max(steps, key=lambda step: step[0])
    text = (
        f"the largest step is from {_depth(before)} layers at {before.position:g} to "
        f"{_depth(after)} at {after.position:g}"
    )
    width = noise_of(found).width(columns=2, comparisons=len(steps))
    is_seen = more(largest, width)
    holds = is_seen and position in (before.position, after.position)
    hidden = any((a.beyond and b.beyond) or (a.below and b.below) for _, a, b in steps)
    # A step between two boundaries that were not seen may be larger.
    return _Reading(text, None if holds is False and hidden else holds)


def compared(
    claims: Sequence[Deeper], found: _Edges, sooner: _Edges
) -> tuple[tuple[Check, ...], tuple[str, ...]]:
    """Check the claims that can be checked, and name the others."""
    checks = {claim: claim.check(found, sooner) for claim in claims}
    unseen = tuple(
        f"{claim.claim}: at both places the boundary is outside the depths tried"
        for claim, check in checks.items()
        if check is None
    )
    return tuple(check for check in checks.values() if check is not None), unseen


def _limited(excess: float, width: float, *, unending: bool) -> bool | None:
    """Decide whether networks train no deeper; ``unending`` ones train at every depth tried."""
    if unending:
        return None if excess <= width else False
    return no_more(excess, width)


def _nothing_trains(found: _Edges) -> bool:
    return all(e.below for e in found)


def _depth(e: Edge) -> str:
    if e.beyond:
        return f"{e.span[1]} or more"
    if e.below:
        return f"{e.span[0]} or fewer"
    return wording.number(e.depth)


def _factor(width: float) -> str:
    return "an unknown amount" if math.isnan(width) else wording.number(math.exp(width), 3)
