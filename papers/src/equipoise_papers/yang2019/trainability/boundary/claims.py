"""The source's sentences about the boundary, checked on trained networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.report import wording
from equipoise_papers.experiments.verdict import Check
from equipoise_papers.yang2019.trainability.boundary.edge import Edge, of_each_other, of_line
from equipoise_papers.yang2019.trainability.boundary.ratios import Noise, more, no_more, seed_noise


def noise_of(found: Sequence[Edge]) -> Noise:
    """How much seeds differ, from columns whose boundary was seen."""
    return seed_noise([e.seeds for e in found if e.inside])


def not_beyond_the_line(found: Sequence[Edge]) -> Check:
    """Check that in no column networks train deeper than 16ξ by more than seeds differ."""
    claim = "networks deeper than 16ξ do not train, in any column"
    known = [e for e in found if e.side_known]
    if not known or _nothing_trains(found):
        return Check(claim, "nothing trains, or no column tells", None)
    worst = max(known, key=lambda e: e.depth / e.predicted)
    share = worst.depth / worst.predicted
    width = noise_of(found).width(columns=1, comparisons=len(known))
    text = (
        f"the boundary is at most at {wording.number(share)} of 16ξ, at {worst.position:g}, over "
        f"{wording.count(len(known), 'column')}; by seeds alone a factor of {_factor(width)}"
    )
    unending = any(e.beyond for e in known)
    return Check(claim, text, _limited(math.log(share), width, unending=unending))


# The source does not say what it calls trained: half-way from guessing to the best, or less.
QUARTER = 0.25


def at_the_line(found: Sequence[Edge], sooner: Sequence[Edge], agreement: str) -> Check:
    """Check that the boundary is at 16ξ, whatever is called trained.

    Args:
        found: Boundaries.
        sooner: The same, where a quarter of the way to the best accuracy is called trained.
        agreement: The source's word for it.
    """
    half, quarter = of_line(found), of_line(sooner)
    claim = (
        f"{agreement} of ξ and the maximum trainable depth: the boundary is at 16ξ, within a "
        "factor of 1.25"
    )
    text = (
        f"the boundary over 16ξ: {half.times(1)}; {quarter.times(1)} if a quarter of the way to "
        "the best accuracy is called trained"
    )
    # Two readings with two answers decide nothing.
    return Check(claim, text, half.is_one if half.is_one is quarter.is_one else None)


def same_region(found: Sequence[Edge], reference: Sequence[Edge]) -> Check:
    """Check that networks train where those of panel a do, column by column."""
    ratio = of_each_other(found, reference)
    claim = "a trainable region nearly identical to that of panel a, within a factor of 1.25"
    return Check(claim, f"boundary over that of panel a: {ratio.times(1)}", ratio.is_one)


def nothing_beyond(depth: int, found: Sequence[Edge]) -> Check:
    """Check that in no column networks of more than about ``depth`` layers train."""
    claim = f"networks deeper than about {depth} layers do not train in any column"
    deepest = max(found, key=lambda e: e.depth)
    untried = all(e.span[1] <= depth for e in found)
    if _nothing_trains(found) or untried:
        return Check(claim, "nothing trains" if not untried else "not tried", None)
    width = noise_of(found).width(columns=1, comparisons=len(found))
    text = (
        f"the boundary is at most {_depth(deepest)} layers, at {deepest.position:g}; tried up to "
        f"{deepest.span[1]}"
    )
    excess = math.log(deepest.depth / depth)
    return Check(claim, text, _limited(excess, width, unending=deepest.beyond))


def deepest_at(position: float, found: Sequence[Edge]) -> Check:
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
    """The claim that networks train deeper at one position than at another."""

    claim: str
    deep: float
    shallow: float

    def check(self, found: Sequence[Edge]) -> Check | None:
        """Compare the ratio with the scatter of seeds; ``None`` if both boundaries are unseen."""
        at = {e.position: e for e in found}
        deep, shallow = at[self.deep], at[self.shallow]
        if (deep.beyond and shallow.beyond) or (deep.below and shallow.below):
            return None
        ratio = math.log(deep.depth / shallow.depth)
        width = noise_of(found).width(columns=2)
        text = (
            f"{_depth(deep)} layers at {self.deep:g}, {_depth(shallow)} at {self.shallow:g}; "
            f"ratio {wording.number(math.exp(ratio))}, by seeds alone up to {_factor(width)}"
        )
        holds = more(ratio, width)
        # The ratio is then a lower bound.
        if holds is False and (deep.beyond or shallow.below):
            holds = None
        return Check(self.claim, text, holds)


def compared(
    claims: Sequence[Deeper], found: Sequence[Edge]
) -> tuple[tuple[Check, ...], tuple[str, ...]]:
    """Check the claims that can be checked, and name the others."""
    checks = {claim: claim.check(found) for claim in claims}
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


def _nothing_trains(found: Sequence[Edge]) -> bool:
    return all(e.below for e in found)


def _depth(e: Edge) -> str:
    if e.beyond:
        return f"{e.span[1]} or more"
    if e.below:
        return f"{e.span[0]} or fewer"
    return wording.number(e.depth)


def _factor(width: float) -> str:
    return "an unknown amount" if math.isnan(width) else wording.number(math.exp(width), 3)
