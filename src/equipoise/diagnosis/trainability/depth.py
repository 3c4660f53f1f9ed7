"""How many of a network's repeated blocks could train."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from equipoise.diagnosis.trainability.record import Depth
from equipoise.theory.propagation.forward import Forward
from equipoise.theory.propagation.propagate import Propagation, propagate
from equipoise.theory.propagation.what_if.blocks import prevailing_blocks, with_blocks

# How many times the number of blocks is doubled or halved.
_DOUBLINGS = 4
# Operations beyond which theory would take too long.
_MOST_OPERATIONS = 1600
# Standard errors of the interval that holds 9 of 10 cases.
_TWO_SIDED = 1.645

LogOdds = Callable[[Propagation], float]


def trainable_blocks(
    found: Propagation,
    log_odds: Callable[[float], LogOdds],
    *,
    took: float = 0.0,
    allowance: float = math.inf,
) -> Depth | None:
    """Depth at which a network of such blocks trains as probably as not.

    The network is predicted with half, a quarter, … or twice, four times as many blocks, until it
    would or would not train; log-odds are interpolated over the logarithm of the depth.

    Args:
        found: The network as it is.
        log_odds: Of training, that many standard errors above the expected.
        took: Seconds that predicting the network as it is took.
        allowance: Seconds for networks with more blocks; those that would take longer are left
            out. With fewer blocks all together take less than the network as it is.

    Returns:
        ``None`` unless equal blocks make up at least half of the network, or if it cannot be
        edited: of a residual network in stages, a depth of one stage would say nothing. And
        ``None`` if it would train and no deeper one could be predicted.
    """
    graph = found.graph
    repeated = None if graph is None else prevailing_blocks(graph)
    if graph is None or repeated is None:
        return None
    blocks, operations = repeated.count, len(graph.nodes)
    known, left = {blocks: found}, allowance
    forward: Forward | None = None  # through the deepest network as yet

    def looked_at(depth: int) -> Propagation | None:
        """The network with another depth; None where that takes too long."""
        nonlocal left, took, forward
        if depth not in known:
            share = depth / blocks
            if depth > blocks and (share * operations > _MOST_OPERATIONS or share * took > left):
                return None
            begin = time.process_time()
            other = with_blocks(graph, repeated, depth)
            if depth > blocks:
                alike = repeated.end + (max(known) - blocks) * repeated.period
                forward = forward.continued(other, alike) if forward else Forward(other)
            known[depth] = propagate(other, begun=forward if depth > blocks else None)
            taken = time.process_time() - begin
            took, left = max(took, taken / share), left - taken
        return known[depth]

    def limit(spread: float) -> float:
        odds = log_odds(spread)
        depth, value = blocks, odds(found)
        grows = value > 0
        for _ in range(_DOUBLINGS):
            following = 2 * depth if grows else max(1, depth // 2)
            other = None if following == depth else looked_at(following)
            if other is None:
                break
            reached = odds(other)
            if (reached > 0) != grows:
                part = value / (value - reached)
                return float(depth * (following / depth) ** part)
            depth, value = following, reached
        return math.inf if grows else 0.0

    try:
        value, low, high = (limit(spread) for spread in (0.0, -_TWO_SIDED, _TWO_SIDED))
    except ValueError:  # what stands behind the blocks takes from one that would be left out
        return None
    searched = max(known)
    if math.isinf(low) and searched == blocks:
        return None
    return Depth(blocks, value, low, high, searched)
