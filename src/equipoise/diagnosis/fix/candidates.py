"""Every remedy that could apply to a model, in the order in which they deserve a try."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from equipoise.diagnosis.fix.kinds.activations import CLASSES, activations_of
from equipoise.diagnosis.fix.kinds.eps import norms
from equipoise.diagnosis.fix.kinds.starts import starts
from equipoise.diagnosis.fix.remedy import Edit, Factor, Remedy
from equipoise.diagnosis.sources import SIZES
from equipoise.instrument.normalisers import (
    is_channels_first,
    is_normaliser,
    kind_of,
    shares_batch_statistics,
)
from equipoise.instrument.recording.graph import Given, Graph, Made, Node
from equipoise.theory.propagation.propagate import Propagation, propagate
from equipoise.theory.propagation.what_if.residuals import branches
from equipoise.theory.propagation.what_if.structure import Structure

# Starts of β and γ: over this range gradients' growth falls from batch norm's to almost none.
_SHIFTS = (1.0, 0.5, 2.0)
_SCALES = (0.2, 0.5)
# PyTorch's own ε, and what is far above it.
_EPS, _LARGE_EPS = 1e-5, 1e-3
# Starts beyond these are no usual choice: nets start β near 0, γ at 1 or, in branches, at 0.
_UNUSUAL_SHIFT, _UNUSUAL_SCALE = 1.5, 2.0
_ACTIVATIONS = ("gelu", "relu", "leaky_relu", "tanh")
# Factors of hidden weights: √3 and √6 make PyTorch's uniform weights Glorot's and He's.
_GAINS = (math.sqrt(6), math.sqrt(3), math.sqrt(2), 1 / math.sqrt(2), 0.5)
_NORMALISING = {
    *("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"),
    *("native_group_norm", "native_layer_norm"),
}
# Mean squares of outputs within this factor of 1 are balanced, without norms and behind them.
_BALANCED_WITHIN, _BALANCED_BEHIND_NORMS = 3.0, 1e3
_SWEEPS = 3
_MOST, _LEAST = 1e4, 1e-4
_VIRTUAL = (32, 16, 8)
# Steps of batch norm before batch renorm corrects, when running statistics have left their start.
# The paper's 5,000 would make it batch norm for the whole of a race.
_WARMUP = 20


def of_starts(model: nn.Module) -> Iterator[Remedy]:
    """Starts of β and γ, and ε."""
    scales = starts(model, "scale")
    if scales and all(not bool(scale.detach().any()) for scale in scales.values()):
        yield Remedy((Edit("scale", 1.0),))
        return
    if any(norm.eps > _LARGE_EPS for norm in norms(model)):  # type: ignore[operator]  # a float
        yield Remedy((Edit("eps", _EPS),))
    shifts = starts(model, "shift").values()
    if shifts:
        if _largest(shifts) > _UNUSUAL_SHIFT:
            yield Remedy((Edit("shift", 0.0),))
        yield from (Remedy((Edit("shift", value),)) for value in _SHIFTS)
    if scales:
        usual = all(1 / _UNUSUAL_SCALE < _largest([s]) < _UNUSUAL_SCALE for s in scales.values())
        first = () if usual else (1.0,)
        yield from (Remedy((Edit("scale", value),)) for value in (*first, *_SCALES))


def of_biases(model: nn.Module) -> Iterator[Remedy]:
    """Large biases of layers with weights, which keep units dead or saturated, set to zero."""
    names = [
        f"{name}.bias"
        for name, module in model.named_modules()
        if not is_normaliser(module)
        and isinstance(bias := getattr(module, "bias", None), Tensor)
        and _largest([bias]) > _UNUSUAL_SHIFT
    ]
    if names:
        what = f"start {len(names)} large biases at 0"
        factors = tuple(Factor(name.lstrip("."), 0.0) for name in names)
        yield Remedy((Edit("weights", None, what, factors),))


def _largest(tensors: Iterable[Tensor]) -> float:
    """The largest root of the mean square."""
    return max(float(tensor.detach().abs().square().mean().sqrt()) for tensor in tensors)


def of_norms(model: nn.Module, samples: int) -> Iterator[Remedy]:
    """Other norms in the place of those that the model has."""
    found = [module for module in model.modules() if is_normaliser(module)]
    if not found:
        return
    if not any(is_channels_first(module) for module in found):
        names = {kind.name for module in found if (kind := kind_of(module)) is not None}
        if "layer" in names:
            yield Remedy((Edit("norm", None, "rms"),))
        yield Remedy((Edit("norm", None, "none"),))
        return
    flat = any(isinstance(module, nn.BatchNorm1d) for module in found)
    channels = [_channels(module) for module in found]
    common, most = math.gcd(*channels), max(channels)
    wide = [groups for groups in (32, 8, 2) if groups < most and common % groups == 0]
    for groups in wide[:2]:
        yield Remedy((Edit("norm", groups, "group"),))
    yield Remedy((Edit("norm", None, "layer"),))
    if not flat:
        yield Remedy((Edit("norm", None, "instance"),))
    else:
        yield Remedy((Edit("norm", None, "rms"),))
    for groups in wide[2:]:
        yield Remedy((Edit("norm", groups, "group"),))
    if any(shares_batch_statistics(module) for module in found):
        yield Remedy((Edit("norm", _WARMUP, "batch_renorm"),))
        yield Remedy((Edit("norm", None, "frozen"),))
        for size in _VIRTUAL:
            if 2 * size <= samples:
                yield Remedy((Edit("norm", size, "ghost"),))
                break
    else:
        yield Remedy((Edit("norm", None, "batch"),))
    yield Remedy((Edit("norm", None, "none"),))


def of_preconditioning(model: nn.Module, *, beside: bool) -> Iterator[Remedy]:
    """BNP in the place of batch norm, and beside norms."""
    bnp = Edit("bnp", None, "beside")
    if beside:
        yield Remedy((bnp,))
    if any(shares_batch_statistics(module) for module in model.modules()):
        yield Remedy((Edit("norm", None, "none"), bnp))


def of_batch(model: nn.Module, samples: int) -> Iterator[Remedy]:
    """A larger batch, where samples share statistics."""
    if any(shares_batch_statistics(module) for module in model.modules()):
        yield Remedy((Edit("batch", 4 * samples),))


def of_activations(model: nn.Module, graph: Graph | None) -> Iterator[Remedy]:
    """Other activations; of a model that cannot be traced, for its modules alone."""
    present: set[str] = {
        name for name, kind in CLASSES.items() if any(type(m) is kind for m in model.modules())
    }
    edit = Edit("activation")
    if graph is not None:
        present, edit = activations_of(graph, model)
    for name in _ACTIVATIONS if present else ():
        if name not in present:
            yield Remedy((replace(edit, choice=name),))


def of_branches(propagation: Propagation) -> Iterator[Remedy]:
    r"""Residual branches that start smaller: their last layer is scaled by 0, or by 1/√L."""
    assert propagation.graph is not None
    found = _last_layers(propagation.graph)
    if not found:
        return
    names = [name for layer in found for name in layer]
    for value in (0.0, 1 / math.sqrt(len(found))):
        factors = tuple(Factor(name, value) for name in dict.fromkeys(names))
        what = f"start {len(found)} residual branches at {value:.3g} of their size"
        yield Remedy((Edit("weights", None, what, factors),))


def of_balance(found: Propagation, until: float = math.inf) -> Iterator[Remedy]:
    """Weights of balanced size, from a textbook's start, too, where sizes are far from 1.

    Every sweep predicts anew: after so much processor time of the process, one has to do.
    """
    assert found.graph is not None
    chain = not _is_normalised(found.graph)
    sizes = _sizes(found, _places(found.graph, heads=True))
    within = _BALANCED_WITHIN if chain else _BALANCED_BEHIND_NORMS
    start = _textbook(found.graph)
    if chain and any(factor == 0.0 for factor in start.values()):
        yield from _balanced(found.graph, start, until)
    if sizes and (max(sizes.values()) > within or min(sizes.values()) < 1 / within):
        yield from _balanced(found.graph, {}, until)


def of_gains(found: Propagation) -> Iterator[Remedy]:
    """Hidden weights times one factor."""
    assert found.graph is not None
    names = () if _is_normalised(found.graph) else _hidden_weights(found)
    for gain in _GAINS:
        factors = tuple(Factor(name, gain) for name in names)
        if factors:
            what = f"multiply hidden weights by {gain:.3g}"
            yield Remedy((Edit("weights", None, what, factors),))


def _textbook(graph: Graph) -> dict[str, float]:
    r"""Factors that give weights He's variance 2/fan-in, and their biases 0.

    Biases keep what all samples have in common: where weights are too small, or biases too large,
    balanced sizes alone would leave all outputs alike.
    """
    parameters, factors = graph.parameters, {}
    for name in dict.fromkeys(_places(graph, heads=True).values()):
        weight = parameters[name].detach()
        size = float(weight.double().square().mean())
        if 0 < size < math.inf:
            factors[name] = math.sqrt(2 / (weight[0].numel() * size))
            bias = name.removesuffix("weight") + "bias"
            if bias != name and bias in parameters and bool(parameters[bias].detach().any()):
                factors[bias] = 0.0
    return factors


def _balanced(graph: Graph, start: Mapping[str, float], until: float) -> Iterator[Remedy]:
    r"""Give every layer with weights outputs of predicted mean square 1, the head's at most that.

    From the given factors on, layers are scaled together, and predicted again: in a chain without
    norms each by :math:`\sqrt{q_{l-1}/q_l}`, with q the mean square of its outputs, behind norms
    by :math:`1/\sqrt{q_l}`. With positively homogeneous activations one sweep would do.
    """
    heads, places = Structure(graph).heads(), _places(graph, heads=True)
    parameters = graph.parameters
    factors = dict.fromkeys(places.values(), 1.0) | dict(start)
    chain = not _is_normalised(graph)
    for sweep in range(_SWEEPS):
        if sweep and time.process_time() > until:
            break
        values = {n: parameters[n].detach() * f for n, f in factors.items()}
        sizes = _sizes(propagate(graph.with_parameters(values)), places)
        before = 1.0
        for number, name in places.items():
            size = sizes.get(number, before)
            if not 0 < size < math.inf:
                break
            if number in heads:
                size = max(size, before)  # small outputs are a good start
            factors[name] = min(max(factors[name] * math.sqrt(before / size), _LEAST), _MOST)
            before = size if chain else 1.0
    changed = tuple(
        Factor(name, float(f"{factor:.6g}"))
        for name, factor in factors.items()
        if factor == 0.0 or abs(math.log(factor)) > 0.01
    )
    layers = sum(factor.value != 0.0 for factor in changed)
    if layers:
        what = f"balance {layers} layers: outputs of mean square 1"
        yield Remedy((Edit("weights", None, what + (", biases at 0" if start else ""), changed),))


def _sizes(found: Propagation, places: dict[int, str]) -> dict[int, float]:
    return {
        site.node: site.second_moment
        for site in found.sites
        if site.node in places and site.second_moment is not None
    }


def _places(graph: Graph, *, heads: bool = False) -> dict[int, str]:
    """The products of data with weights, and the name of each one's weight."""
    structure = Structure(graph)
    outside = set() if heads else structure.heads()
    found = {}
    for node in structure.weighted:
        names = _parameters(node, graph)
        if node.number not in outside and len(names) == 1:
            found[node.number] = names[0]
    return found


def _is_normalised(graph: Graph) -> bool:
    """Whether any operation takes the size of weights away.

    Beside norms, a later layer may depend on the size of what weights made.
    """
    if any(node.name in _NORMALISING for node in graph.nodes):
        return True
    structure, sizes = Structure(graph), 0
    for node in graph.nodes:
        if node.name in SIZES and any(
            structure.has_data(one) and structure.has_parameters(one) for one in node.inputs
        ):
            sizes |= 1 << node.number
    return any(structure.before[node.number] & sizes for node in structure.weighted)


def _hidden_weights(found: Propagation) -> tuple[str, ...]:
    assert found.graph is not None
    return tuple(dict.fromkeys(_places(found.graph).values()))


def _parameters(node: Node, graph: Graph) -> list[str]:
    """Names of the matrices that an operation multiplies with, through transpositions."""
    names, left = [], list(node.inputs)
    while left:
        source = left.pop()
        if isinstance(source, Given):
            if source.kind == "parameter" and source.value.ndim > 1:
                names.append(source.name)
        elif graph.nodes[source.node].name in ("t", "transpose", "permute", "view"):
            inner = graph.nodes[source.node].inputs
            if all(isinstance(one, Given) for one in inner):
                left += inner
    return names


def _last_layers(graph: Graph) -> list[tuple[str, ...]]:
    """Of each residual branch, the parameters of the affine layer that ends it."""
    structure = Structure(graph)
    found = []
    for node in graph.nodes:
        pair = branches(node, structure)
        if pair is None:
            continue
        names = _ending(graph, pair[1])
        if names and names not in found:
            found.append(names)
    return found


# What stands between the last layer of a branch and the sum, and keeps multiples.
_THROUGH = {"view", "_unsafe_view", "transpose", "permute", "t", "clone", "dropout", "mul", "div"}


def _ending(graph: Graph, source: Given | Made) -> tuple[str, ...]:
    while isinstance(source, Made):
        node = graph.nodes[source.node]
        names = tuple(
            one.name
            for one in _given(graph, node.inputs)
            if one.kind == "parameter" and one.value.is_floating_point()
        )
        if names:
            return names
        if node.name not in _THROUGH:
            return ()
        made = [one for one in node.inputs if isinstance(one, Made)]
        if len(made) != 1:
            return ()
        source = made[0]
    return ()


def _given(graph: Graph, sources: Sequence[Given | Made]) -> Iterator[Given]:
    """Tensors of the model among inputs, also transposed ones."""
    for source in sources:
        if isinstance(source, Given):
            yield source
        elif graph.nodes[source.node].name in ("t", "transpose"):
            yield from (one for one in graph.nodes[source.node].inputs if isinstance(one, Given))


def _channels(module: nn.Module) -> int:
    for name in ("num_features", "num_channels"):
        if isinstance(getattr(module, name, None), int):
            return int(getattr(module, name))
    return 0
