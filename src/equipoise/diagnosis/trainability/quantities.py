r"""What is known of a network before training, in few numbers, each with a reason to matter.

All but the last are 0 where nothing is wrong, and are cut off where more makes no difference.

- Explosion and vanishing: growth :math:`\log(S_1/S_L)` of the scale-free gradient
  :math:`S = \|\partial\mathcal L/\partial x\|^2\,E x^2` from the output back to the input. Two
  inputs whose difference is small are driven apart by that factor: where it is large, similar
  inputs have unlike outputs, and no gradient of one helps another. :math:`S_L` is that of the last
  layer with weights, or of the stream that it is added to. :math:`S_1` is the largest up
  to the first operation that every path from the batch passes: queries of a first layer of
  attention, beside which the stream goes on, have little gradient and tell nothing of the input.
- Collapse: :math:`-\log_{10}(1 - c)`, where c is the correlation between two samples at the
  output: the input is forgotten, and what is left of it is learned that much more slowly than what
  all samples have in common.
- Size: :math:`\log E y^2` of outputs y beyond 1: a loss that starts far above that of guessing.
  In both, a bias of the last layer that was set on purpose is left out.
- Imbalance: range of :math:`\log(\|\nabla W\|/\|W\|)` over the matrices of weights: no
  rate fits all layers.
- Silence: the share of matrices without any gradient.
- Fluctuation: the error of the predicted gradient at the input, which adds up what is random about
  a network of finite width: with depth over width for plain networks, hardly for residual ones.
- Samples: :math:`\log_2` of the batch size. Steps of few samples are noisy.
- Faintness: :math:`-\log_{10}` of the largest root mean square of any matrix's gradient, below
  :math:`10^{-6}`: how slowly Adam, with its :math:`\varepsilon = 10^{-8}`, and SGD at any usual
  rate move what all weights wait for. No ratio of gradients sees it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from equipoise.diagnosis.sources import PRODUCTS, kinds_behind, kinds_of, tensor
from equipoise.diagnosis.trainability.entrance import leading_to, passages
from equipoise.diagnosis.trainability.record import Quantities
from equipoise.instrument.recording.graph import Given, Graph, Made, Node
from equipoise.numerics.pieces import norm, slabs
from equipoise.numerics.precision import widest
from equipoise.theory.propagation.propagate import NO_TIME, Propagation
from equipoise.theory.propagation.sites import Site, Weight, of_model

Source = Literal["predicted", "measured"]

# Operations with weights, of which the last gives the output.
_LAYERS = ("linear layers", "convolutions")
# Where a quantity begins to matter, and where more of it makes no difference.
_MOST_GROWTH = 100.0
_COLLAPSED, _MOST_COLLAPSE = 1.0, 9.0
_LARGE, _MOST_SIZE = 1.0, 13.0
_UNEQUAL, _MOST_IMBALANCE = 2.0, 22.0
_UNSURE, _MOST_FLUCTUATION = 0.3, 5.3
_FAINT, _MOST_FAINTNESS = 6.0, 30.0
# Mean square of a bias, in units of 1/fan-in, from which it was set: PyTorch draws 1/3.
_SET = 9.0
# Of plain ReLU networks, variance of the logarithm of the gradient times width over depth.
_OF_DEPTH = 5.0
# Heads that are looked at, of which a recurrent model may have one for each step.
_MOST_HEADS = 16
# Part of a bias's mean square by which a prediction may be off.
_ROUNDING = 1e-6


def quantities(found: Propagation, batch_size: int, source: Source) -> Quantities:
    """Sum up a traced model.

    Args:
        found: What was predicted, and measured beside it.
        batch_size: Samples of a step.
        source: Which of the two.

    Raises:
        ValueError: If no operation of the model has a gradient, or none is predicted.
    """
    everything = of_model(found.sites)
    ends = _ends(found, everything)
    sites = _leading_to_the_output(found, everything, ends)
    if not sites:
        tables = _of_tables(found, batch_size)
        if tables is None:
            raise ValueError(
                "nothing is known of the model's gradients: it has no linear or convolutional "
                "layer that theory or the traced pass reaches."
            )
        return tables
    heads = [place for place in ends[:_MOST_HEADS] if _taken(everything[place]) > 0]
    others = (everything[place] for place in heads if place != _main(everything, ends))
    # Each head may forget its input, or begin with numbers that are too large.
    outputs = [_of_outputs(found, sites[-1], source)]
    outputs += [_of_outputs(found, site, source) for site in others if _is_known(site, source)]
    growths = [_growth(sites, _entrance(found, sites), source)]
    growths += _of_heads(found, everything, heads, source)
    weights = found.weights or _measured_alone(found)
    rates = _relative_gradients(weights, source)
    errors = [site.by_chance for site in sites if math.isfinite(site.error)]
    return Quantities(
        explosion=max(_beyond(growth, 0.0, _MOST_GROWTH) for growth in growths),
        vanishing=max(_beyond(-growth, 0.0, _MOST_GROWTH) for growth in growths),
        collapse=max(_beyond(_collapse(c), _COLLAPSED, _MOST_COLLAPSE) for _, c in outputs),
        size=max(_beyond(_log(q), _LARGE, _MOST_SIZE) for q, _ in outputs),
        imbalance=_beyond(_range(rates), _UNEQUAL, _MOST_IMBALANCE),
        silence=1 - len(rates) / max(1, len(weights)),
        fluctuation=_beyond(
            max(errors) if errors else _by_depth_over_width(found.graph, sites[-1].node),
            _UNSURE,
            _MOST_FLUCTUATION,
        ),
        samples=math.log2(batch_size),
        faintness=_beyond(_faintness(found, source), _FAINT, _MOST_FAINTNESS),
    )


def _of_tables(found: Propagation, batch_size: int) -> Quantities | None:
    """Of a model whose weights are rows of tables, as of embeddings that are multiplied.

    It has no depth over which gradients could grow.

    Returns:
        ``None`` of other models, and of those that multiply with weights.
    """
    graph = found.graph
    if graph is None or not graph.weights:
        return None
    nodes = {node.number: node for node in graph.nodes}
    if any(_widths(nodes).values()):
        return None
    if not any(node.name == "embedding" for node in graph.nodes):
        return None
    outputs = [node.outputs[0] for node in graph.nodes if node.module and node.outputs]
    learnt = [x.detach() for x in outputs if x.requires_grad and x.is_floating_point()]
    if not learnt:
        return None
    rates = _relative_gradients(_measured_alone(found), "measured")
    return Quantities(
        explosion=0.0,
        vanishing=0.0,
        collapse=0.0,
        size=_beyond(_log(float(learnt[-1].double().square().mean())), _LARGE, _MOST_SIZE),
        imbalance=_beyond(_range(rates) if rates else 0.0, _UNEQUAL, _MOST_IMBALANCE),
        silence=0.0,
        fluctuation=0.0,
        samples=math.log2(batch_size),
        faintness=_beyond(_faintness(found, "measured"), _FAINT, _MOST_FAINTNESS),
    )


def _by_depth_over_width(graph: Graph | None, end: int) -> float:
    """Standard deviation of the logarithm of the gradient at the input, where theory has none.

    Of plain ReLU networks it is the root of 5 times the sum of 1/width; of others it is less.
    """
    if graph is None:
        return math.inf
    widths = _widths({node.number: node for node in graph.nodes})
    squares: dict[int, float] = {}
    for node in graph.nodes[: end + 1]:
        before = (squares[one.node] for one in node.inputs if isinstance(one, Made))
        width = widths[node.number]
        squares[node.number] = max(before, default=0.0) + (_OF_DEPTH / width if width else 0.0)
    return math.sqrt(squares[end])


def _widths(nodes: Mapping[int, Node]) -> dict[int, int]:
    """Numbers that each output of a layer adds up; 0 of other operations."""
    behind = kinds_behind(nodes)

    def width(node: Node) -> int:
        for source in node.inputs[-2:] if node.name in PRODUCTS else ():
            matrix = tensor(source, nodes)
            if matrix.ndim > 1 and kinds_of(source, behind) == {"parameter"}:
                return matrix[0].numel() if node.name == "convolution" else matrix.shape[-2]
        return 0

    return {number: width(node) for number, node in nodes.items()}


def further(sites: Iterable[Site]) -> str:
    """The end of a sentence about what theory does not reach: whether more time would help."""
    help_ = ". A check-up with `budget=60` lets theory go further."
    return help_ if lack_time(sites) else "."


def lack_time(sites: Iterable[Site]) -> bool:
    """Whether theory would go further if it had more time."""
    reasons = {site.reason for site in sites}
    return any(one == NO_TIME or one.endswith("in this time") for one in reasons)


def up_to_the_output(found: Propagation) -> list[Site]:
    """The operations of the model up to the one with weights that gives the output.

    Of several outputs, as of two heads or of two calls for one loss, it is the one that takes most
    of the loss's gradient, and what does not lead to it is left out: derivatives by another are
    those of another part of the loss.
    """
    sites = of_model(found.sites)
    return _leading_to_the_output(found, sites, _ends(found, sites))


def _leading_to_the_output(
    found: Propagation, sites: Sequence[Site], ends: Sequence[int]
) -> list[Site]:
    if not ends:
        return []
    end = _main(sites, ends)
    if found.graph is None:
        return list(sites[: end + 1])
    if len(ends) == 1:
        place = _stream(found.graph, sites, end)
        return [*sites[:place], sites[place] if place == end else _begun_anew(sites[place])]
    own = leading_to(found.graph, sites[end].node)
    return [site for site in sites[: end + 1] if site.node in own]


def _stream(graph: Graph, sites: Sequence[Site], end: int) -> int:
    """The place of what a last layer is added to, if that is a stream: its own output is a branch.

    So end differential equations, whose steps are small beside their state, and residual networks
    without a head. A skip from the input alone is no stream: beside it the model is a chain.
    """
    behind = {sites[end].node}
    for node in graph.nodes[sites[end].node + 1 :]:
        if any(isinstance(one, Made) and one.node in behind for one in node.inputs):
            behind.add(node.number)
    last = max(place for place, site in enumerate(sites) if site.node in behind)
    passed = passages(graph, sites[last].node)
    if sites[end].node in passed or not any(site.node in passed for site in sites[:end]):
        return end
    joined = (place for place in range(end + 1, last + 1) if sites[place].node in passed)
    place = next(joined, end)
    is_known = sites[place].gradient is not None and sites[place].measured_gradient is not None
    return place if is_known else end


def _begun_anew(site: Site) -> Site:
    """With what was measured in the place of moments that theory does not reach."""
    if site.second_moment is not None:
        return site
    moment, correlation = site.measured_second_moment, site.measured_correlation
    return replace(site, second_moment=moment, correlation=correlation)


def _ends(found: Propagation, sites: Sequence[Site]) -> list[int]:
    """Places of the operations with weights that lead to no other, the last ones first."""
    places = [place for place, site in enumerate(sites) if site.kind in _LAYERS]
    if found.graph is None:
        return places[-1:]
    behind: set[int] = set()  # what leads to a later one
    ends = []
    for place in reversed(places):
        if sites[place].node not in behind:
            ends.append(place)
            behind |= leading_to(found.graph, sites[place].node, known=behind)
    return ends


def _main(sites: Sequence[Site], ends: Sequence[int]) -> int:
    """The place of the output that takes most of the loss's gradient."""
    return max(ends, key=lambda place: _taken(sites[place]))


def _taken(site: Site) -> float:
    """How much of the loss's gradient an output takes."""
    gradient = site.gradient if site.measured_gradient is None else site.measured_gradient
    return 0.0 if gradient is None else gradient * site.elements


def _entrance(found: Propagation, sites: Sequence[Site]) -> int:
    """How many sites there are up to the first that every path from the batch passes."""
    if found.graph is None:
        return 1
    passed = passages(found.graph, sites[-1].node)
    return next((place for place, site in enumerate(sites, 1) if site.node in passed), 1)


def _growth(sites: Sequence[Site], entrance: int, source: Source) -> float:
    """How many times larger the scale-free gradient is at the entrance than at the last site."""
    logs = [_log(_of(site, "scale_free_gradient", source)) for site in sites]
    if not math.isfinite(logs[-1]):
        return -math.inf
    known = [log for log in logs[:entrance] if math.isfinite(log)]
    first = max(known) if known else next(filter(math.isfinite, logs))
    return first - logs[-1]


def _of_heads(
    found: Propagation, sites: Sequence[Site], ends: Sequence[int], source: Source
) -> list[float]:
    """How gradients grow along what leads to one output alone, where there are several.

    Before their paths part, a head's gradient is hidden behind those of the others. Of heads that
    theory does not reach, it says nothing.
    """
    if found.graph is None or len(ends) < 2:
        return []
    behind = {place: leading_to(found.graph, sites[place].node) for place in ends}
    grown = []
    for place in ends:
        shared = set[int]().union(*(nodes for other, nodes in behind.items() if other != place))
        own = [site for site in sites[: place + 1] if site.node in behind[place] - shared]
        if sum(site.kind in _LAYERS for site in own) > 1 and _is_known(own[-1], source):
            grown.append(_growth(own, 1, source))
    return grown


def _of_outputs(
    found: Propagation, end: Site, source: Source
) -> tuple[float | None, float | None]:
    """Second moment and correlation of the outputs, without their own bias.

    It is the same for all samples, is the first to be learnt, and hides no input: that of a head
    drawn as PyTorch's default, whose signal is small, no less than one that was set to the
    logarithm of a prior or the mean of the targets.
    """
    second_moment = _of(end, "second_moment", source)
    correlation = _of(end, "correlation", source)
    if found.graph is None or second_moment is None or correlation is None:
        return second_moment, correlation
    nodes = {node.number: node for node in found.graph.nodes}
    node = nodes[end.node]
    bias = _bias_of_samples(node, nodes, found.graph.batch)
    if bias is None or (source == "measured" and node.outputs[0].is_meta):
        return second_moment, correlation
    if source == "predicted":
        size = float(bias.double().square().mean())
        rest = second_moment - size
        if rest <= _ROUNDING * size:  # no digit of it is left
            return second_moment, correlation
        return rest, (correlation * second_moment - size) / rest
    rows = node.outputs[0].detach().flatten(1)
    shift = bias.repeat_interleave(rows.shape[1] // len(bias))
    summed, count = torch.zeros_like(shift, dtype=widest(rows.device)), len(rows)
    squares = summed.clone()
    for slab in slabs(rows, 1):
        moved = slab - shift
        summed += moved.sum(0)
        squares += moved.square().sum(0)
    total = float(squares.sum())
    if count < 2 or not total > 0:
        return second_moment, correlation
    shared = norm(summed) ** 2 - total
    return total / rows.numel(), shared / (total * (count - 1))


def _bias_of_samples(node: Node, nodes: Mapping[int, Node], samples: int) -> Tensor | None:
    """The bias of a layer whose outputs are one row for each sample.

    Where there are more rows, as of tokens, only a bias counts that was set: far larger than one
    drawn for the layer's width.
    """
    places = {"addmm": (0, 2), "convolution": (2, 1)}.get(node.name)
    output = node.outputs[0]
    if places is None or output.ndim != (2 if node.name == "addmm" else 4):
        return None
    bias, weight = (node.arguments[place] for place in places)
    if not isinstance(bias, Given) or bias.kind != "parameter" or bias.value.is_complex():
        return None
    matrix = weight.value if isinstance(weight, Given) else nodes[weight.node].outputs[0]
    fan_in = matrix.numel() / max(1, bias.value.numel())
    values = bias.value.detach()
    is_set = float(values.double().square().mean()) * fan_in > _SET
    return values if (is_set or len(output) == samples) and bool(values.any()) else None


def _collapse(c: float | None) -> float:
    if c is None or not math.isfinite(c):
        return 0.0
    return -math.log10(1 - c) if c < 1 else math.inf


def _measured_alone(found: Propagation) -> list[Weight]:
    """The matrices, where theory reaches the gradient of none."""
    if found.graph is None:
        return []
    matrices = {name: p for name, p in found.graph.parameters.items() if p.ndim > 1}
    return [
        Weight(name, math.nan, norm(p) ** 2 / max(1, p.numel()), gradient)
        for name, gradient in found.graph.weights.items()
        if (p := matrices.get(name)) is not None
    ]


def _faintness(found: Propagation, source: Source) -> float:
    """Decades of the largest gradient below 1; none where no gradient is known."""
    if source == "predicted":
        known = [w.gradient for w in found.weights]
    else:  # also of matrices that theory does not reach
        known = [w.measured_gradient or 0.0 for w in (_measured_alone(found) or found.weights)]
    sizes = [size for size in known if 0 < size < math.inf]
    return -0.5 * math.log10(max(sizes)) if sizes else 0.0


def _relative_gradients(weights: Iterable[Weight], source: Source) -> list[float]:
    sizes = [
        (w.gradient if source == "predicted" else w.measured_gradient, w.second_moment)
        for w in weights
    ]
    return [
        0.5 * (math.log(gradient) - math.log(weight))
        for gradient, weight in sizes
        if gradient is not None and 0 < gradient < math.inf and weight > 0
    ]


def _of(site: Site, name: str, source: Source) -> float | None:
    value: float | None = getattr(site, name if source == "predicted" else f"measured_{name}")
    return value


def _is_known(site: Site, source: Source) -> bool:
    """Whether there are moments and a gradient of what may be one of several outputs."""
    return source == "measured" or site.is_predicted


def _log(value: float | None) -> float:
    if value is None or math.isnan(value):
        return math.inf
    return math.log(value) if value > 0 else -math.inf


def _range(values: Sequence[float]) -> float:
    return max(values) - min(values) if values else math.inf


def _beyond(value: float, start: float, end: float) -> float:
    return min(max(start, value), end) - start
