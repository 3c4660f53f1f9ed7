"""Carry moments forward and gradients back through a traced graph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from equipoise.instrument.recording.graph import Given, Graph, Made, Node
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.propagation import losses
from equipoise.theory.propagation.attribution import (
    BRANCHES,
    Attribution,
    Edge,
    Vertex,
    attribute,
    kind_of,
)
from equipoise.theory.propagation.call import (
    OF_SHAPES,
    RULES,
    WEIGHTED,
    Call,
    Pullback,
    Pulled,
    Result,
    rule_for,
)
from equipoise.theory.propagation.exchangeable import Exchangeable
from equipoise.theory.propagation.layout import Atom, Layout, LayoutError
from equipoise.theory.propagation.rules import attention
from equipoise.theory.propagation.rules.joining import FEATUREWISE, each_part
from equipoise.theory.propagation.rules.pointwise import pointwise
from equipoise.theory.propagation.rules.shape import FOLLOWED
from equipoise.theory.propagation.steps import Step, first_steps
from equipoise.theory.propagation.values import (
    Gradient,
    Known,
    Moments,
    UnpredictedError,
    Value,
    arranged,
    features_last,
    mean_square,
    measured,
    second_moments,
)
from equipoise.theory.propagation.what_if.answer import Changes

for _family in (
    "attention",
    "convolution",
    "joining",
    "linear",
    "normalisers",
    "pooling",
    "positions",
    "sums",
):
    import_module(f"equipoise.theory.propagation.rules.{_family}")


# Recurrent layers that PyTorch computes in one operation.
_RECURRENT = {"mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn"}


@dataclass(frozen=True, slots=True)
class Site:
    r"""The output of one operation.

    Args:
        node: Number of the operation.
        operation: Its name.
        module: Name of the module that it ran in.
        second_moment: Predicted average of the squared elements; None if nothing is predicted.
        correlation: Predicted second moment of two samples over that of one.
        gradient: Predicted mean square of the derivative of the loss by an element.
        measured_second_moment: The same, of the traced pass.
        measured_gradient: The same; None where it was not measured.
        reason: Why nothing was predicted, why the way back ends here, or why there is no gradient
            after a change; empty otherwise.
        is_start: Whether the way back begins here, with the measured gradient.
        kind: What it is for a reader, such as ``normalisers``.
        elements: Numbers in the output.
        share: The part of the gradient that passes it on the way from the loss to the first
            weights, as :mod:`~equipoise.theory.propagation.attribution` defines it.
        log_gain: Logarithm of the factor that it puts on the scale-free gradient.
        error: Standard error of the logarithm of the predicted gradient.
        row_correlation: Predicted second moment of two rows over that of one; rows are samples
            and their positions.
    """

    node: int
    operation: str
    module: str
    second_moment: float | None
    correlation: float | None
    gradient: float | None
    measured_second_moment: float
    measured_gradient: float | None
    reason: str = ""
    is_start: bool = False
    kind: str = ""
    elements: int = 0
    share: float = 0.0
    log_gain: float = 0.0
    error: float = math.nan
    row_correlation: float | None = None

    @property
    def is_predicted(self) -> bool:
        """Whether theory reaches it on the way forward."""
        return self.second_moment is not None

    @property
    def scale_free_gradient(self) -> float | None:
        r""":math:`\|\partial\mathcal L/\partial x\|^2 \cdot E x^2`, predicted."""
        return _scale_free(self.gradient, self.second_moment, self.elements)

    @property
    def measured_scale_free_gradient(self) -> float | None:
        """The same, measured."""
        return _scale_free(self.measured_gradient, self.measured_second_moment, self.elements)


def _scale_free(gradient: float | None, moment: float | None, elements: int) -> float | None:
    return None if gradient is None or moment is None else gradient * moment * elements


@dataclass(frozen=True, slots=True)
class Weight:
    """The gradient of one matrix of weights.

    Args:
        name: Of the parameter.
        gradient: Predicted mean square of its elements.
        measured_gradient: The same, of the traced pass; None where it was not measured.
        step: What a step of the parameter does to the layer's output; None if not asked for.
    """

    name: str
    gradient: float
    measured_gradient: float | None = None
    step: Step | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """What the operations of one kind add to the growth of gradients over the model.

    Args:
        kind: Such as ``normalisers``; ``branches`` are additions and concatenations, and the use
            of one tensor by several operations.
        operations: How many there are.
        met: How many of them the gradient passes, on average over the ways that it takes.
        log_gain: Logarithm of the factor on the scale-free gradient, all of them together.
    """

    kind: str
    operations: int
    met: float
    log_gain: float

    @property
    def each(self) -> float:
        """The factor of one of them."""
        return math.exp(min(self.log_gain / self.met, 700)) if self.met else 1.0


@dataclass(frozen=True, slots=True)
class Propagation:
    """What is predicted for a traced pass.

    Args:
        sites: One for each operation that random weights lie before, in order.
        weights: One for each matrix of weights.
        attribution: What each kind of operation adds, the largest first.
        graph: What was traced, for :meth:`what_if`; it holds all tensors of the pass.
    """

    sites: tuple[Site, ...]
    weights: tuple[Weight, ...]
    attribution: tuple[Share, ...] = ()
    graph: Graph | None = field(default=None, repr=False, compare=False)

    def what_if(
        self,
        *,
        batch_size: int | None = None,
        activation: ActivationLike | None = None,
        norm: str | None = None,
        groups: int | None = None,
        gamma: float | None = None,
        beta: float | None = None,
        eps: float | None = None,
        residual_scale: float | None = None,
        depth: float | None = None,
        block: str | None = None,
        width: float | None = None,
        gain: float | Mapping[str, float] | None = None,
    ) -> Propagation:
        r"""Predict the model as if it were another one, without running it.

        The traced graph is edited and theory goes through it again. Several changes at once are
        combined. What was measured is not repeated: measured columns are empty, and where the
        loss takes other logits, its gradient is computed on draws of their predicted law.

        Args:
            batch_size: Another number of samples of the same kind.
            activation: Instead of every activation that weights come after: a name such as
                ``"gelu"`` or ``"leaky_relu(0.2)"``, or any elementwise function. Sigmoids that
                something is multiplied with are gates, and stay.
            norm: Instead of every norm: ``"batch"``, ``"group"``, ``"instance"``, ``"layer"``
                (one group on images), ``"rms"`` or ``"none"``. Scale, shift and ε stay.
            groups: Of ``norm="group"``; 32 by default, or fewer if the channels need it.
            gamma: Scale of every norm.
            beta: Shift of every norm.
            eps: What every norm adds to the variance.
            residual_scale: Factor of every residual branch where it is added to its stream.
            depth: How many times as often the repeated block is repeated; a fraction leaves
                blocks out. Blocks are the longest stretch of equal operations.
            block: Name of the module in which to look for them.
            width: How many times as many features all layers have between the batch and the
                loss. Weights have variance over their number, heads of attention keep theirs.
            gain: Factor of all matrices of weights, or ``{pattern: factor}`` for those whose
                names, or modules' names, match.

        Raises:
            ValueError: If the model has nothing of the kind, or the value makes no sense.

        Examples:
            >>> import torch
            >>> from equipoise.instrument.recording.tracer import trace
            >>> layers = [torch.nn.Linear(64, 64, bias=False), torch.nn.ReLU()]
            >>> loss = lambda model, x: model(x).square().mean()
            >>> found = propagate(trace(torch.nn.Sequential(*layers), torch.randn(16, 64), loss))
            >>> doubled = found.what_if(gain=2**0.5)
            >>> round(doubled.sites[0].second_moment / found.sites[0].second_moment, 2)
            2.0
        """
        if self.graph is None:
            raise ValueError("what_if needs the traced graph, which is not stored in files.")
        changes = Changes(
            batch_size=batch_size,
            activation=activation,
            norm=norm,
            groups=groups,
            gamma=gamma,
            beta=beta,
            eps=eps,
            residual_scale=residual_scale,
            depth=depth,
            block=block,
            width=width,
            gain=gain,
        )
        return propagate(changes.made_to(self.graph))


def propagate(graph: Graph, *, steps: bool = False) -> Propagation:
    """Predict second moments and gradients at every operation of a traced pass.

    Where no rule applies, the way forward goes on from the measured moments of that operation,
    and the way back from the measured gradient.

    Args:
        graph: The traced pass.
        steps: Whether to predict what a step of each weight does to its layer's output.
    """
    forward = _Forward(graph)
    for node in graph.nodes:
        forward.step(node)
    back = _backward(graph, forward)
    attribution = attribute(_vertices(forward, back), back.edges)
    sites = []
    for node in graph.nodes:
        value = forward.values[node.number][0]
        reason = forward.reasons.get(node.number, "")
        if isinstance(value, Moments) or reason:
            site = _site(node, value, reason, back, attribution, measured=not graph.edited)
            why = forward.notes.get(node.number, "") or back.reasons.get(node.number, "")
            sites.append(replace(site, reason=site.reason or why))
    moved = first_steps(graph, forward.values, back.gradients) if steps else {}
    weights = [
        Weight(name, size, graph.weights.get(name), moved.get(name))
        for name, size in back.weights.items()
    ]
    shares = _shares(sites, attribution.branches)
    return Propagation(tuple(sites), tuple(weights), shares, graph)


def _vertices(forward: _Forward, back: _Back) -> list[Vertex]:
    """All tensors with a predicted gradient, in order."""
    found = []
    for number, values in forward.values.items():
        for value in values:
            gradient = back.gradients.get(id(value))
            if isinstance(value, Moments) and gradient is not None:
                size = _size(value, gradient.pairs.mean_diagonal)
                found.append(Vertex(id(value), number, size, id(value) in back.starts))
    return found


def _size(value: Moments, gradient: float) -> float:
    return gradient * value.second_moment * value.layout.elements


def _shares(sites: Sequence[Site], branches: float) -> tuple[Share, ...]:
    """Sums over operations of one kind."""
    kinds: dict[str, list[Site]] = {}
    for site in sites:
        kinds.setdefault(site.kind, []).append(site)
    found = []
    for kind, own in kinds.items():
        gain = sum(s.share * s.log_gain for s in own) + (branches if kind == BRANCHES else 0.0)
        found.append(Share(kind, len(own), sum(s.share for s in own), gain))
    if branches and BRANCHES not in kinds:
        found.append(Share(BRANCHES, 0, 0.0, branches))
    return tuple(sorted(found, key=lambda share: -abs(share.log_gain)))


class _Forward:
    """The values of all nodes, and the ways back."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values: dict[int, list[Value]] = {}
        self.pullbacks: dict[int, list[Pullback | None]] = {}
        self.reasons: dict[int, str] = {}
        self.notes: dict[int, str] = {}
        self._given: dict[int, Known] = {}
        data = [
            leaf.value
            for node in graph.nodes
            for leaf in node.inputs
            if isinstance(leaf, Given) and leaf.kind == "data" and leaf.value.ndim
        ]
        self._samples = len(data[0]) if data else 0

    def step(self, node: Node) -> None:
        """Find what is known of the outputs of a node."""
        arguments, keywords = pytree.tree_map_only(
            (Made, Given), self._value, (node.arguments, node.keywords)
        )
        leaves = [v for v in pytree.tree_leaves((arguments, keywords)) if _is_value(v)]
        call = Call(node, arguments, keywords)
        random = not all(isinstance(leaf, Known) for leaf in leaves)
        try:
            result = self._result(call, leaves, random=random)
        except Exception as error:  # whatever an operation is, the others are predicted
            self.reasons[node.number] = _reason(node, error, "the rule for")
            result = self._cut(node, leaves)
        outputs, pullbacks = zip(*result, strict=True)
        self.values[node.number] = [_cut_off(node, output) for output in outputs]
        self.pullbacks[node.number] = [self._way_back(node, pullback) for pullback in pullbacks]

    def _way_back(self, node: Node, pullback: Pullback | None) -> Pullback | None:
        """The way back that autograd takes."""
        if node.function and pullback is not None:
            self.notes[node.number] = f"custom backward of {node.function}"
            return None
        return pullback if node.records_gradients else _no_gradient

    def _result(self, call: Call, leaves: Sequence[Value], *, random: bool) -> Result:
        node = call.node
        known = [leaf for leaf in leaves if isinstance(leaf, Known)]
        if not random:
            return self._of_known(call, known)
        if node.in_part:
            raise UnpredictedError("a tensor that was written in part, in place")
        if node.name in OF_SHAPES:
            return _all_known(node, None)
        scores = attention.parts_of(leaves)
        if scores is not None:
            return self._of_scores(call, scores)
        if attention.is_product_of_moments(call):
            return _with(node, attention.scores(call))
        rule = rule_for(node)
        moments = [leaf for leaf in leaves if isinstance(leaf, Moments)]
        alone = len(moments) == 1 and moments[0].parts
        if rule is not None:
            return each_part(call, rule) if alone and node.name in FEATUREWISE else rule(call)
        if node.is_pointwise:
            if len(moments) == 1 and not any(
                leaf.value.ndim and leaf.value.numel() > 1 for leaf in known
            ):
                return each_part(call, pointwise) if alone else pointwise(call)
            raise UnpredictedError(f"{node.name} of several tensors")
        if node.name in _RECURRENT:
            raise UnpredictedError("a recurrent layer, whose weights meet what they made before")
        raise UnpredictedError(f"no rule for {node.name}")

    def _of_scores(self, call: Call, scores: attention.Scores) -> Result:
        """Between the two products of attention."""
        if call.node.name == "bmm":
            values = call.arguments[1]
            if not isinstance(values, Moments) or call.arguments[0] is not scores:
                raise UnpredictedError("attention weights that multiply no values")
            return attention.attend(scores, values)
        return _with(call.node, attention.changed(call, scores))

    def _of_known(self, call: Call, known: Sequence[Known]) -> Result:
        """Values stay values, until weights are multiplied with data."""
        node = call.node
        data = any(leaf.data for leaf in known)
        names = {leaf.parameter for leaf in known if leaf.parameter}
        if data and names and node.name in WEIGHTED:
            return RULES[node.name](call)
        call = call.with_values()
        node = call.node
        if node.name in FOLLOWED:
            try:
                return RULES[node.name](call)
            except LayoutError:
                return _all_known(node, Known(node.outputs[0], data=data))
        shape = tuple(node.outputs[0].shape)
        layout = next(
            (leaf.layout for leaf in known if leaf.layout and leaf.layout.shape == shape), None
        )
        if node.name == "embedding" and known[1].layout is not None:
            layout = Layout((*known[1].layout.axes, (Atom.new("open", shape[-1]),)))
        if layout is None and data:
            layout = self._data(node).layout
        parameter = " and ".join(sorted(names)) if names and not data else None
        return _all_known(node, Known(node.outputs[0], layout, parameter, data))

    def _cut(self, node: Node, leaves: Sequence[Value]) -> Result:
        """Go on from measured moments, if the axes are those of an input."""
        for output in node.outputs[:1]:
            for leaf in leaves:
                if isinstance(leaf, Moments) and leaf.layout.shape == tuple(output.shape):
                    try:
                        found = measured(output, leaf.layout)
                    except (UnpredictedError, LayoutError):
                        break
                    others: list[tuple[Value, Pullback | None]] = [
                        (Known(other), None) for other in node.outputs[1:]
                    ]
                    return Result(found, None, others)
        data = any(not isinstance(leaf, Known) or leaf.data for leaf in leaves)
        return _all_known(node, self._data(node) if data else None)

    def _data(self, node: Node) -> Known:
        """The values of an output as if they were the batch's."""
        shape = tuple(node.outputs[0].shape)
        whole = bool(shape) and shape[0] == self._samples
        layout = Layout.of_batch(shape, self.graph.samples) if whole else None
        return Known(node.outputs[0], layout, data=True)

    def _value(self, source: Made | Given) -> Value:
        if isinstance(source, Made):
            return self.values[source.node][source.index]
        found = self._given.get(id(source.value))
        if found is None:
            data = source.kind == "data" and source.value.ndim > 0
            layout = None
            if data and len(source.value) == self._samples:
                layout = Layout.of_batch(source.value.shape, self.graph.samples)
            name = source.name if source.kind == "parameter" else None
            found = Known(source.value, layout, name, data)
            self._given[id(source.value)] = found
        return found


def _is_value(leaf: Any) -> bool:
    return isinstance(leaf, Known | Moments | attention.Scores)


def _with(node: Node, value: Any) -> Result:
    """A value, whose way back is that of what comes later."""
    others: list[tuple[Value, Pullback | None]] = [(Known(o), None) for o in node.outputs[1:]]
    return Result(value, _no_gradient, others)


def _cut_off(node: Node, value: Value) -> Value:
    """The value; its gradients do not join those of its root where autograd lets none pass."""
    passes = node.records_gradients and not node.function and node.name != "detach"
    return value if passes or not isinstance(value, Moments) else replace(value, root=None)


def _no_gradient(_: Gradient) -> Pulled:
    """The way back through what autograd does not record."""
    return Pulled()


def _all_known(node: Node, first: Known | None) -> Result:
    outputs: list[tuple[Value, Pullback | None]] = [(Known(o), None) for o in node.outputs]
    if first is not None:
        outputs[0] = first, None
    return Result(outputs[0][0], None, outputs[1:])


@dataclass(slots=True)
class _Back:
    """The way back.

    Args:
        gradients: By the identity of a value.
        weights: Mean squared gradients of weights, by name.
        starts: Values whose gradient is that of the loss, measured or drawn.
        edges: Where the gradient of a value comes from.
        unknown: Why the gradient of a value is neither predicted nor measured.
        reasons: Why the gradient at an operation was not pulled through it, by number.
    """

    gradients: dict[int, Gradient] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    starts: set[int] = field(default_factory=set)
    edges: dict[int, list[Edge]] = field(default_factory=dict)
    unknown: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)


def _backward(graph: Graph, forward: _Forward) -> _Back:
    """Pull gradients back, from the measured ones where there is no way to a value."""
    back = _Back()
    found = back.gradients
    scale = float(graph.samples) ** -2 if losses.is_mean(graph) else 1.0
    cut = _consumed_without_a_way_back(graph, forward)
    drawn = _drawn(graph, forward, cut)
    failures: dict[int, str] = {}
    for node in reversed(graph.nodes):
        pairs = zip(forward.values[node.number], forward.pullbacks[node.number], strict=True)
        for index, (value, pullback) in enumerate(pairs):
            if not isinstance(value, Moments):
                continue
            if id(value) in cut:
                # What other ways brought is not all of it.
                share, measured_one = found.pop(id(value), None), node.gradients[index]
                fresh = drawn.get(Made(node.number, index), [])
                begin = _start(value, measured_one, fresh, share, scale)
                if begin is not None:
                    found[id(value)] = begin
                    back.starts.add(id(value))
                elif measured_one is not None and measured_one.is_meta:
                    reason = failures.get(id(value), "a gradient of the loss before the change")
                    back.unknown.setdefault(id(value), reason)
                else:
                    cut.update(id(v) for v in _moments_of(node, forward))
            if id(value) in back.unknown:  # if only in part
                for v in _moments_of(node, forward):
                    back.unknown.setdefault(id(v), back.unknown[id(value)])
                found.pop(id(value), None)
            gradient = found.get(id(value))
            if gradient is None or pullback is None:
                continue
            try:
                pulled = pullback(gradient)
            except Exception as error:  # as forward, the others are predicted
                reason = _reason(node, error, "the way back of")
                back.reasons[node.number] = reason
                for v in _moments_of(node, forward):
                    cut.add(id(v))
                    failures[id(v)] = reason
                continue
            for name, size in pulled.weights:
                back.weights[name] = back.weights.get(name, 0.0) + size
            for receiver, share in pulled.inputs:
                before = found.get(id(receiver))
                found[id(receiver)] = share if before is None else before + share
                size = _size(receiver, share.pairs.mean_diagonal)
                width = receiver.layout.count("feature") if pulled.weights else None
                edge = Edge(id(value), size, width)
                back.edges.setdefault(id(receiver), []).append(edge)
    return back


def _reason(node: Node, error: Exception, what: str) -> str:
    """What a rule says, or how it failed."""
    if isinstance(error, UnpredictedError | LayoutError):
        return str(error)
    return f"{what} {node.name} failed: {type(error).__name__}: {error}"


def _moments_of(node: Node, forward: _Forward) -> list[Moments]:
    """The moments among the inputs of a node."""
    values = [forward.values[s.node][s.index] for s in node.inputs if isinstance(s, Made)]
    return [value for value in values if isinstance(value, Moments)]


def _consumed_without_a_way_back(graph: Graph, forward: _Forward) -> set[int]:
    """Values that reach the loss through an operation without a rule."""
    found: set[int] = set()
    for node in graph.nodes:
        if any(pullback is not None for pullback in forward.pullbacks[node.number]):
            continue
        if node.name in OF_SHAPES:
            continue
        for source in _read_by(node, forward):
            value = forward.values[source.node][source.index]
            if isinstance(value, Moments):
                found.add(id(value))
    return found


def _read_by(node: Node, forward: _Forward) -> set[Made]:
    """What an operation reads.

    That which an autograd function ends with reads the inputs of the function, and what takes
    scores reads queries and keys.
    """
    found: set[Made] = set()
    left = [node]
    for reader in left:
        for source in reader.inputs:
            if isinstance(source, Made) and source not in found:
                found.add(source)
                maker, value = forward.graph.nodes[source.node], forward.values[source.node]
                inside = node.function and not maker.records_gradients
                if inside or isinstance(value[source.index], attention.Scores):
                    left.append(maker)
    return found


def _drawn(graph: Graph, forward: _Forward, cut: set[int]) -> dict[Made, list[Tensor]]:
    """Gradients at the end of theory where those measured do not hold any more."""
    inputs = {
        Made(node.number, index): value
        for node in graph.nodes
        for index, value in enumerate(forward.values[node.number])
        if isinstance(value, Moments)
        and id(value) in cut
        and (gradient := node.gradients[index]) is not None
        and gradient.is_meta
    }
    found: dict[Made, list[Tensor]] = {}
    if inputs:
        for draw in losses.gradients(graph, forward.values, inputs):
            for source, gradient in draw.items():
                found.setdefault(source, []).append(gradient)
    return found


def _start(
    value: Moments,
    measured: Tensor | None,
    drawn: Sequence[Tensor],
    share: Gradient | None,
    scale: float,
) -> Gradient | None:
    """The gradient at an end of theory; None if nothing says how large it is.

    Args:
        value: What the gradient is of.
        measured: All of the gradient, if any; without values if they do not hold any more.
        drawn: Instead, what comes straight from the loss, once for every draw.
        share: What other ways bring.
        scale: Of squares, for the size of the batch.
    """
    if measured is None or (measured.is_meta and not drawn):
        return None
    try:
        if not measured.is_meta:
            return _of_tensors([measured], value, scale)
        start = _of_tensors(drawn, value, scale)
    except (UnpredictedError, LayoutError):
        return None
    return start if share is None else share + start


def _of_tensors(gradients: Sequence[Tensor], like: Moments, scale: float) -> Gradient:
    """Second moments of gradients of one tensor, averaged and multiplied by a number."""
    first, *others = (_of_tensor(gradient, like) for gradient in gradients)
    return Gradient(sum(others, first) * (scale / len(gradients)))


def _of_tensor(gradient: Tensor, like: Moments) -> Exchangeable:
    """Second moments of one gradient, in the positions of a value."""
    pairs = second_moments(features_last(gradient, like.layout), like.correlation.samples)
    order = [atom for atom in like.layout.with_role("position") if atom.size > 1]
    return arranged(pairs, order, like.order)


def _site(
    node: Node,
    value: Value,
    reason: str,
    back: _Back,
    attribution: Attribution,
    *,
    measured: bool,
) -> Site:
    output, grad = node.outputs[0].detach(), node.gradients[0] if measured else None
    moments = value if isinstance(value, Moments) and not reason else None
    gradient = back.gradients.get(id(value))
    has_size = measured and output.is_floating_point()
    return Site(
        node.number,
        node.name,
        node.module,
        None if moments is None else moments.second_moment,
        None if moments is None else moments.sample_correlation,
        None if gradient is None else gradient.pairs.mean_diagonal,
        mean_square(output) if has_size else math.nan,
        None if grad is None else mean_square(grad),
        reason or back.unknown.get(id(value), ""),
        is_start=id(value) in back.starts,
        kind=kind_of(node.name, _home(node)),
        elements=output.numel() if moments is None else moments.layout.elements,
        share=attribution.share.get(node.number, 0.0),
        log_gain=attribution.log_gain.get(node.number, 0.0),
        error=attribution.error.get(id(value), math.nan),
        row_correlation=None if moments is None else moments.row_correlation,
    )


def _home(node: Node) -> str:
    rule = rule_for(node)
    return getattr(rule, "__module__", None) or ""  # functions of a session have none
