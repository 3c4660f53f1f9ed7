r"""Which operations make gradients grow.

Compare gradients of tensors of different size by :math:`S = \|\partial\mathcal L/\partial x\|^2
\cdot E x^2`, which no change of scale between two layers alters. Walk from the input to the loss:
from a tensor x to one of the operations that take it, with the part of x's gradient that comes
from there as probability. Each step of a walk changes :math:`\log S` in two ways,

.. math:: \log S_x - \log S_y
          = \log\frac{S_{x \leftarrow y}}{S_y} + \log\frac{S_x}{S_{x \leftarrow y}},

the gain of the operation that gives y, and that of x being used more than once. As the sum over a
walk is the same for all of them, averages over walks add up to the growth over the whole model.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

BRANCHES, NORMALISERS = "branches", "normalisers"
# Kinds of operations that change gradients by less than this, in the logarithm, are not told.
SLIGHT = 0.05
# Relative errors of gradients, in the logarithm: of every layer with weights (independent), over
# its width (of one sign), and of the whole. 98 % of the operations of the architectures of
# benchmarks/propagation.py are within twice the sum.
_A_LAYER, _OVER_WIDTH, _WHOLE = 0.06, 2.0, 0.03
# Of weights that are used again: share of what walks in other orders may add, and of every use.
_IN_ORDER, _A_USE = 0.25, 0.4

_RULES = "equipoise.theory.propagation.rules."
# What an operation is for a reader, by its name, else by the module or folder of its rule.
_BY_NAME = {
    "add": BRANCHES,
    "sub": BRANCHES,
    "mul": "products",
    "div": "products",
}
_BY_RULE = {
    "attention": "attention",
    "convolution": "convolutions",
    "gathered": "resampling",
    "joining": BRANCHES,
    "linear": "linear layers",
    "normalisers": NORMALISERS,
    "pointwise": "elementwise functions",
    "pooling": "pooling",
    "positions": "resampling",
    "shape": "reshapes",
    "windows": "pooling",
}


def kind_of(operation: str, module: str) -> str:
    """What an operation is called in a report.

    Args:
        operation: Its name.
        module: The module of its rule, or of the operation if it has none.

    Examples:
        >>> kind_of("native_batch_norm", "equipoise.theory.propagation.rules.normalisers")
        'normalisers'
    """
    rules, _, family = module.partition(_RULES)
    if rules or not family:
        return "others"
    return _BY_NAME.get(operation) or _BY_RULE.get(family.partition(".")[0], "others")


@dataclass(frozen=True, slots=True)
class Vertex:
    """One tensor of the graph.

    Args:
        key: Its identity.
        node: The operation that gives it.
        size: S, as above.
        is_end: Whether the way back starts here, from a measured gradient.
    """

    key: int
    node: int
    size: float
    is_end: bool


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor, an operation that takes it, and the gradient that comes from there.

    Args:
        giver: Identity of the operation's output.
        size: S of the part of the gradient that comes from it.
        width: Features that the operation's weights mix; None if it has none.
        weights: Names of the operation's weights.
        doubt: What the traced pass says that the logarithm of this gradient lacks.
    """

    giver: int
    size: float
    width: int | None = None
    weights: tuple[str, ...] = ()
    doubt: float = 0.0


@dataclass(slots=True)
class Attribution:
    """Averages over walks.

    Args:
        share: Of each operation, the chance that a walk meets it.
        log_gain: Of each operation that is met, its mean gain.
        branches: Gain of tensors being used more than once, over the whole walk.
        error: Of each tensor, the error of the logarithm of its predicted gradient.
        doubt: The part of it that the traced pass shows, with its sign.
    """

    share: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    log_gain: dict[int, float] = field(default_factory=dict)
    branches: float = 0.0
    error: dict[int, float] = field(default_factory=dict)
    doubt: dict[int, float] = field(default_factory=dict)


def attribute(vertices: Sequence[Vertex], edges: Mapping[int, Iterable[Edge]]) -> Attribution:
    """Average over walks from the first tensors to where the way back starts.

    Args:
        vertices: In the order of execution; those that no operation of theory gives come first
            in a walk, in proportion to S.
        edges: By the identity of the tensor that is taken.

    Examples:
        Half of a gradient passes an operation that doubles it, half an addition:

        >>> sizes = [1.5, 0.5, 1.0]
        >>> vertices = [Vertex(i, i, size, is_end=i == 2) for i, size in enumerate(sizes)]
        >>> edges = {0: [Edge(1, 1.0), Edge(2, 0.5)], 1: [Edge(2, 0.5)]}
        >>> found = attribute(vertices, edges)
        >>> round(found.share[1], 3), round(math.exp(found.log_gain[1]), 3)
        (0.667, 2.0)
        >>> total = found.branches + sum(found.share[i] * found.log_gain[i] for i in (1, 2))
        >>> round(math.exp(total), 3)
        1.5
    """
    known = {vertex.key: vertex for vertex in vertices if vertex.size > 0}
    onward = {
        key: [edge for edge in edges.get(key, ()) if edge.size > 0 and edge.giver in known]
        for key, vertex in known.items()
        if not vertex.is_end
    }
    chance = _first(known, onward)
    error, doubt = _errors(known, onward)
    result = Attribution(error=error, doubt=doubt)
    gains: dict[int, float] = defaultdict(float)
    for key, vertex in known.items():
        own = onward.get(key, [])
        total = sum(edge.size for edge in own)
        for edge in own:
            passing = chance.get(key, 0.0) * edge.size / total
            giver = known[edge.giver]
            chance[edge.giver] = chance.get(edge.giver, 0.0) + passing
            result.share[giver.node] += passing
            gains[giver.node] += passing * math.log(edge.size / giver.size)
            result.branches += passing * math.log(vertex.size / edge.size)
    result.log_gain = {
        node: gain / result.share[node] for node, gain in gains.items() if result.share[node]
    }
    return result


def _first(known: dict[int, Vertex], onward: Mapping[int, Sequence[Edge]]) -> dict[int, float]:
    """Where walks begin: at tensors that no operation of theory gives."""
    giving = {edge.giver for own in onward.values() for edge in own}
    sizes = {key: known[key].size for key, own in onward.items() if own and key not in giving}
    total = sum(sizes.values())
    return {key: size / total for key, size in sizes.items()}


def _errors(
    known: dict[int, Vertex], onward: Mapping[int, Sequence[Edge]]
) -> tuple[dict[int, float], dict[int, float]]:
    """Errors of gradients, and the doubts among them, which add up on the way back."""
    layers: dict[int, float] = {}
    widths: dict[int, float] = {}
    doubts: dict[int, float] = {}
    again = _used_again(known, onward)
    for key in reversed(known):
        own = onward.get(key, [])
        total = sum(edge.size for edge in own)
        layers[key] = widths[key] = doubts[key] = 0.0
        for edge in own:
            part = edge.size / total
            has_weights = edge.width is not None
            layers[key] += part * (layers[edge.giver] + has_weights)
            widths[key] += part * (widths[edge.giver] + (1 / edge.width if edge.width else 0.0))
            doubts[key] += part * (doubts[edge.giver] + edge.doubt)
    errors = {
        key: math.hypot(
            _A_LAYER * math.sqrt(layers[key]),
            _OVER_WIDTH * widths[key],
            _WHOLE,
            again.get(key, 0.0),
            doubts[key],
        )
        for key in known
    }
    return errors, doubts


def _used_again(
    known: dict[int, Vertex], onward: Mapping[int, Sequence[Edge]]
) -> dict[int, float]:
    r"""Errors where walks use the same weights several times.

    Walks that take the same k of n uses in another order, or another k of them, bring the same
    gradient if the inputs of all uses are alike: they add up before squares, :math:`\binom nk`
    times as much as if they were independent. Averaged over walks, with k of the binomial law that
    has their mean, its logarithm tells how much may be missing. Of a plain chain k = n, and
    nothing is added. Besides, inputs of a use are made by those before, as long as a walk does not
    take all of them.
    """
    counts = Counter(name for own in onward.values() for edge in own for name in edge.weights)
    shared = {name for name, count in counts.items() if count > 1}
    if not shared:
        return {}
    uses: dict[int, dict[str, frozenset[int]]] = {}
    passes: dict[int, dict[str, float]] = {}
    found: dict[int, float] = {}
    for key in reversed(known):
        own = onward.get(key, [])
        total = sum(edge.size for edge in own)
        reached: dict[str, set[int]] = defaultdict(set)
        mean: dict[str, float] = defaultdict(float)
        for edge in own:
            part = edge.size / total
            for name, numbers in uses.get(edge.giver, {}).items():
                reached[name] |= numbers
                mean[name] += part * passes[edge.giver][name]
            for name in shared.intersection(edge.weights):
                reached[name].add(known[edge.giver].node)
                mean[name] += part
        uses[key] = {name: frozenset(numbers) for name, numbers in reached.items()}
        passes[key] = dict(mean)
        orders = max((_orders(len(reached[n]), mean[n]) for n in reached), default=0.0)
        left = max((mean[n] * max(1 - mean[n] / counts[n], 0.0) for n in mean), default=0.0)
        found[key] = math.hypot(_IN_ORDER * orders, _A_USE * math.sqrt(left))
    return found


def _orders(uses: int, passes: float) -> float:
    """Logarithm of the average of binomial coefficients."""
    # Here, because stored reports are rendered without it.
    from scipy.special import gammaln, logsumexp, xlogy

    chance = min(passes / uses, 1.0)
    k = np.arange(uses + 1)
    logs = 2 * (gammaln(uses + 1) - gammaln(k + 1) - gammaln(uses - k + 1))
    return float(logsumexp(logs + xlogy(k, chance) + xlogy(uses - k, 1 - chance)))
