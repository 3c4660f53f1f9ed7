"""The probability of training, and the depth that could train, in words."""

from __future__ import annotations

import math

from equipoise.diagnosis.trainability.record import Depth, Trainability
from equipoise.records import wording

_PROBABLE, _CERTAIN = 0.65, 0.9


def forecast(found: Trainability) -> str:
    """Whether it will train, with the probability."""
    p = found.probability
    chance = wording.chance(p, found.low, found.high)
    if 1 - _PROBABLE < p < _PROBABLE:
        return f"May train or not ({chance})"
    sure = "" if p > _CERTAIN or p < 1 - _CERTAIN else "probably "
    will = "train" if p >= 0.5 else "not train"
    return f"Will {sure}{will} ({chance})"


def depth_in_words(depth: Depth) -> str:
    """How many blocks could train."""
    blocks = f"it has {depth.blocks:,} equal blocks"
    if math.isinf(depth.value):
        return f"{blocks}, and many more could train"
    if depth.value < 1:
        return f"{blocks}, and not even one would train"
    ends = f"between {wording.depth(depth.low)} and {wording.depth(depth.high)}"
    return f"{blocks}, and about {wording.depth(depth.value)} could train ({ends})"
