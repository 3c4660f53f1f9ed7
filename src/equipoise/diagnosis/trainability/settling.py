r"""Steps that go by until weights drawn too small have grown beside their steps.

Adam moves every weight by about its rate η, whatever the gradient is, and a network that is drawn
with a standard deviation of 10⁻⁴ has each of its steps write over what was drawn. A norm behind
every layer hides that at the start, as its outputs are the same for weights of any size. With

.. math:: D = \frac{\|\Delta y\|}{\delta\,\|y\|}, \qquad
          \Delta W = -\delta\,\sigma_W\,\mathrm{sign}(\nabla W),

where y are differences between samples at the output, :math:`\sigma_W` the root mean square of
each matrix and δ small, a step by the part δ of all weights changes what tells samples apart by
the part δD. A chain of L layers of n numbers has about :math:`D = L\sqrt n`, as its steps add up;
a residual stream of branches that are small has 2, whatever its depth. Steps of signs that agree
no more than by chance let weights grow to :math:`\eta\sqrt k` after k of them, when
:math:`\delta = 1/\sqrt k`: changes fall below twice of what they change, where steps begin to lead
downhill, after

.. math:: k = D^2/4

steps, whatever η and σ are. Rates at which weights that small are not written over are of no use:
at :math:`\eta n` a step, logits of n numbers would not have come away from guessing in time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from torch import Tensor

from equipoise.diagnosis.sources import SIZES
from equipoise.diagnosis.trainability.quantities import up_to_the_output
from equipoise.instrument.recording.graph import Graph
from equipoise.numerics.pieces import norm
from equipoise.theory.propagation.attribution import NORMALISERS
from equipoise.theory.propagation.propagate import Propagation

# Part of the weights by which a step is tried.
_PART = 0.01
# Weights are small from this part of what hands on a signal as it is, 1/root(n): textbooks draw
# 1 to 2, PyTorch 0.6, and 0.02 in a transformer of 64 features is 0.16.
_SMALL = 0.1
# What logits have to move by in 800 steps, over these steps, at a rate of this over n.
_USEFUL = 5 / 800
# They part samples again, whatever weights are: chains of 8 layers train as from larger weights.
_PARTING = {"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "batch_norm"}
# Chains of 3 to 12 layers of 32 or 64 numbers with layer or RMS norm, ReLU, GELU or tanh, drawn
# with 10⁻³ to 10⁻⁵, on digits with Adam at the best of four to six rates: those with D²/4 below
# 150 train in 200 of its steps, those with about 250 in 400, of those beyond 600 none, in 400 or
# 800. GPTs of 2 and 8 blocks, where it is 1, train as they do from larger weights.
_SETTLED, _SLOPE = 200.0, 5.0


def settling(found: Propagation, stepped: Callable[[float], Graph]) -> float:
    """What is taken from the log-odds for steps until small weights have grown.

    Args:
        found: The traced pass.
        stepped: Traces the same pass after each matrix was moved by a part of its root mean
            square, against the sign of its gradient.
    """
    graph = found.graph
    sites = up_to_the_output(found)
    made_by = {site.operation for site in sites}
    has_norms = made_by & SIZES or any(site.kind == NORMALISERS for site in sites)
    if graph is None or not has_norms or made_by & _PARTING:
        return 0.0
    learnt = [
        value
        for name, value in graph.parameters.items()
        if value.ndim > 1 and graph.weights.get(name) and bool(value.any())
    ]
    if not learnt or statistics.median(map(_gain, learnt)) > _SMALL:
        return 0.0
    change = sensitivity(found, stepped)
    least = statistics.median(_USEFUL / (_fan_in(one) * _size(one)) for one in learnt)
    if not change > 0:
        return 0.0
    beyond = change**2 / 4 / _SETTLED, change * least
    return _SLOPE * max(0.0, min(map(math.log, beyond)))


def sensitivity(found: Propagation, stepped: Callable[[float], Graph]) -> float:
    """D: the part by which differences between outputs change, per part of all weights.

    Args:
        found: The traced pass.
        stepped: As for :func:`settling`.

    Returns:
        0 where outputs are no rows of several numbers, or are all equal.
    """
    end = up_to_the_output(found)[-1].node
    graphs = (found.graph, stepped(_PART))
    before, after = (one.nodes[end].outputs[0].detach().double() for one in graphs if one)
    if before.shape != after.shape or before.ndim < 2:
        return 0.0
    apart, moved = (one - one.mean(0) for one in (_rows(before), _rows(after - before)))
    change = norm(moved) / (_PART * norm(apart)) if bool(apart.any()) else 0.0
    return change if math.isfinite(change) else 0.0


def _rows(outputs: Tensor) -> Tensor:
    """Of samples, or of tokens; maps of convolutions have their channels second."""
    is_of_maps = outputs.ndim == 4
    return (outputs.movedim(1, -1) if is_of_maps else outputs).flatten(0, -2)


def _fan_in(weight: Tensor) -> int:
    return weight[0].numel()


def _size(weight: Tensor) -> float:
    return norm(weight) / math.sqrt(weight.numel())


def _gain(weight: Tensor) -> float:
    return _size(weight) * math.sqrt(_fan_in(weight))
