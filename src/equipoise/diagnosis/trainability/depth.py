"""How many of a network's repeated blocks could train."""

from __future__ import annotations

import math
from collections.abc import Callable

from equipoise.diagnosis.trainability.record import Depth
from equipoise.theory.propagation.propagate import Propagation
from equipoise.theory.propagation.what_if.blocks import repetitions

# How many times the number of blocks is doubled or halved.
_DOUBLINGS = 4
# Operations beyond which theory would take too long.
_MOST_OPERATIONS = 1600
# Standard errors of the interval that holds 9 of 10 cases.
_TWO_SIDED = 1.645

LogOdds = Callable[[Propagation], float]


def trainable_blocks(found: Propagation, log_odds: Callable[[float], LogOdds]) -> Depth | None:
    """Depth at which a network of such blocks trains as probably as not.

    The network is predicted with half, a quarter, … or twice, four times as many blocks, until it
    would or would not train; log-odds are interpolated over the logarithm of the depth.

    Args:
        found: The network as it is.
        log_odds: Of training, that many standard errors above the expected.

    Returns:
        ``None`` unless equal blocks make up at least half of the network, or if it cannot be
        edited: of a residual network in stages, a depth of one stage would say nothing.
    """
    graph = found.graph
    blocks = 0 if graph is None else repetitions(graph)
    if graph is None or not blocks:
        return None
    known = {blocks: found}

    def limit(spread: float) -> float:
        odds = log_odds(spread)
        depth, value = blocks, odds(found)
        grows = value > 0
        for _ in range(_DOUBLINGS):
            following = 2 * depth if grows else max(1, depth // 2)
            if following == depth or following * len(graph.nodes) > _MOST_OPERATIONS * blocks:
                break
            if following not in known:
                known[following] = found.what_if(depth=following / blocks)
            reached = odds(known[following])
            if (reached > 0) != grows:
                part = value / (value - reached)
                return float(depth * (following / depth) ** part)
            depth, value = following, reached
        return math.inf if grows else 0.0

    try:
        value, low, high = (limit(spread) for spread in (0.0, -_TWO_SIDED, _TWO_SIDED))
    except ValueError:  # what stands behind the blocks takes from one that would be left out
        return None
    return Depth(blocks, value, low, high)
