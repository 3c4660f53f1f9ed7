"""The probability of training, and the depth that could train, in words."""

from __future__ import annotations

import math

from equipoise.diagnosis.trainability.record import LIKELY, Depth, Trainability
from equipoise.records import wording

_PROBABLE = 0.65


def forecast(found: Trainability) -> str:
    """Whether it will train, with the probability; sure if the interval leaves no other way."""
    p = found.probability
    chance = wording.chance(p, found.low, found.high)
    if 1 - _PROBABLE < p < _PROBABLE or found.is_open:
        return f"May train or not ({chance})"
    is_sure = (p > LIKELY and found.low > 0.5) or (p < 1 - LIKELY and found.high < 0.5)
    sure = "" if is_sure else "probably "
    will = "train" if p >= 0.5 else "not train"
    return f"Will {sure}{will} ({chance})"


def depth_in_words(depth: Depth) -> str:
    """How many equal blocks it has, and how many could train."""
    return f"it has {depth.blocks:,} equal blocks, and {limit_in_words(depth)}"


def limit_in_words(depth: Depth) -> str:
    """How many blocks could train."""
    if math.isinf(depth.value):
        least = f"more than {depth.searched:,}" if depth.searched > depth.blocks else "more"
        return f"{least} could train"
    if depth.value < 1:
        return "not even one would train"
    low, high = (
        wording.depth(end) if math.isfinite(end) else f"more than {depth.searched:,}"
        for end in (depth.low, depth.high)
    )
    return f"about {wording.depth(depth.value)} could train (between {low} and {high})"
