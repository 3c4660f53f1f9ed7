"""Carry what is known of tensors forward through a traced graph."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import count
from typing import Any, TypeGuard

from equipoise.instrument import trees
from equipoise.instrument.recording.graph import Given, Graph, Made, Node
from equipoise.numerics.pieces import correlation
from equipoise.theory.propagation import draws, losses
from equipoise.theory.propagation.axes import RECURRENT, Axes, like_the_first
from equipoise.theory.propagation.call import (
    OF_SHAPES,
    RULES,
    WEIGHTED,
    Call,
    Pullback,
    Pulled,
    Result,
    no_gradient,
    of_the_width,
    reason_of,
    rule_for,
    unfinished,
)
from equipoise.theory.propagation.layout import LayoutError, UnpredictedError
from equipoise.theory.propagation.rules import gathered, spectra
from equipoise.theory.propagation.rules.arithmetic.dependence import depend_on_a_third
from equipoise.theory.propagation.rules.attention import steps as attention
from equipoise.theory.propagation.rules.drawn import of_several
from equipoise.theory.propagation.rules.joining import FEATUREWISE, Done, each_part
from equipoise.theory.propagation.rules.pointwise import pointwise
from equipoise.theory.propagation.rules.shape import FOLLOWED
from equipoise.theory.propagation.values.covariances import measured, require_few
from equipoise.theory.propagation.values.gradients import Gradient
from equipoise.theory.propagation.values.known import Known, Unfinished
from equipoise.theory.propagation.values.moments import Moments, Value, new_latents

for _family in (
    "arithmetic.products",
    "arithmetic.sums",
    "convolution",
    "drawn",
    "gathered",
    "joining",
    "linear",
    "normalisers",
    "pooling",
    "positions.averages",
    "positions.parts",
    "positions.resampling",
):
    import_module(f"equipoise.theory.propagation.rules.{_family}")


_JOINING = {"add", "sub", "mul"}
# Beside it, second moments of sums are off by less than a twentieth.
_CORRELATED = 0.05


class Forward:
    """The values of all nodes, and the ways back.

    Once ``stopped`` says why, nothing more is predicted.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values: dict[int, list[Value]] = {}
        self.pullbacks: dict[int, list[Pullback | None]] = {}
        self.reasons: dict[int, str] = {}
        self.notes: dict[int, str] = {}
        self.stopped = ""
        # Products with weights whose transpose comes next.
        self.turned: set[int] = set()
        self._given: dict[int, Known] = {}
        self._done: Done = {}
        self._attention = attention.Steps()
        of_a_graph = gathered.rows_of_a_graph(graph)
        are_places = 0 < of_a_graph <= gathered.MOST_PLACES and graph.samples == 1
        self._are_unlike = of_a_graph > 0 and not are_places
        self._axes = Axes(graph, are_places=are_places)
        self._behind_weights = {node.number for node in losses.behind_weights(graph)}

    def copy(self) -> Forward:
        """The same values and ways back; :func:`.backward.backward` uses the latter up."""
        return self._begun(self.graph, len(self.graph.nodes))

    def continued(self, graph: Graph, operations: int) -> Forward:
        """The way through a deeper graph, as far as it begins with the same operations.

        Args:
            graph: The other graph.
            operations: How many are the same; in the other graph weights come after all of them.
        """
        # Behind the last weights, the way back is another one.
        return self._begun(graph, min([operations, *self._behind_weights]))

    def _begun(self, graph: Graph, operations: int) -> Forward:
        other, numbers = Forward(graph), range(operations)
        other.values = {n: self.values[n] for n in numbers}
        other.pullbacks = {n: [*self.pullbacks[n]] for n in numbers}
        other.reasons = {n: reason for n, reason in self.reasons.items() if n in numbers}
        other.notes = {n: note for n, note in self.notes.items() if n in numbers}
        # Parameters may be called otherwise; what is of samples has the same axes everywhere.
        other._given = {i: given for i, given in self._given.items() if given.parameter is None}
        other._done = dict(self._done)
        other._attention = self._attention.copy()
        other._axes.add_rows_of(self._axes)
        return other

    def step(self, node: Node) -> None:
        """Find what is known of the outputs of a node."""
        arguments, keywords = trees.replaced(
            (Made, Given), self.value, (node.arguments, node.keywords)
        )
        leaves = [v for v in trees.leaves((arguments, keywords)) if _is_value(v)]
        call = Call(node, arguments, keywords)
        random = not all(isinstance(leaf, Known) for leaf in leaves)
        new_latents.set(count(node.number << 20))
        draws.of_the_loss.set(node.number in self._behind_weights)
        try:
            result = self._result(call, leaves, random=random)
            if random and isinstance(result.output, Moments):
                require_few(result.output.positions)
                _check_size(result.output, node)
        except Exception as error:  # whatever an operation is, the others are predicted
            self.reasons[node.number] = reason_of(node, error, "the rule for")
            result = self._cut(call, leaves)
        outputs, pullbacks = zip(*result, strict=True)
        self.values[node.number] = [_cut_off(node, output) for output in outputs]
        self.pullbacks[node.number] = [self._way_back(node, pullback) for pullback in pullbacks]

    def _way_back(self, node: Node, pullback: Pullback | None) -> Pullback | None:
        """The way back that autograd takes."""
        if pullback is of_the_width and node.number in self._behind_weights:
            return None
        if node.function and pullback is not None:
            self.notes[node.number] = f"custom backward of {node.function}"
            return None
        return pullback if node.records_gradients else no_gradient

    def _result(self, call: Call, leaves: Sequence[Value], *, random: bool) -> Result:
        node = call.node
        if self.stopped and (random or node.name in WEIGHTED):
            raise UnpredictedError(self.stopped)
        known = [leaf for leaf in leaves if isinstance(leaf, Known)]
        if not random:
            return self._of_known(call, known)
        if node.in_part:
            raise UnpredictedError("a tensor that was written in part, in place")
        if node.name in OF_SHAPES or not any(output.numel() for output in node.outputs):
            return _all_known(node, Known(node.outputs[0], like_the_first(call)))
        if node.name == "index_put":
            self._require_empty_rows(call)
        if (found := self._attention.result(call, leaves)) is not None:
            return found
        number = next((leaf for leaf in leaves if isinstance(leaf, spectra.Complex)), None)
        if number is not None:
            carried = spectra.carried(call, number)
            return carried if isinstance(carried, Result) else unfinished(node, carried)
        if node.name in spectra.BEGINNINGS:
            return unfinished(node, spectra.begun(call))
        rule = rule_for(node)
        moments = [leaf for leaf in leaves if isinstance(leaf, Moments)]
        if node.name in _JOINING and self._alike(node, moments):
            raise UnpredictedError("a sum or product of two tensors that the same weights made")
        if node.name in WEIGHTED:
            self._require_not_turned(call, moments, known)
        alone = len(moments) == 1 and moments[0].parts
        if rule is not None:
            by_parts = alone and node.name in FEATUREWISE
            result = each_part(call, rule, self._done) if by_parts else rule(call)
            if node.name == "sum":
                result = self._attention.of_sum(call, result)
            if self._are_unlike and node.name in ("index", "index_select"):
                return replace(result, pullback=_of_unlike_rows)
            return result
        if node.is_pointwise:
            if len(moments) == 1 and not any(
                leaf.value.ndim and leaf.value.numel() > 1 for leaf in known
            ):
                return each_part(call, pointwise, self._done) if alone else pointwise(call)
            return of_several(call)
        if node.name in RECURRENT:
            raise UnpredictedError("a recurrent layer, whose weights meet what they made before")
        raise UnpredictedError(f"no rule for {node.name}")

    def _require_empty_rows(self, call: Call) -> None:
        """Raise where rows take the place of others that are not zero."""
        into, numbers = call.node.arguments[0], call.argument("indices")
        known = [one.value for one in numbers if isinstance(one, Known)]
        if call.argument("accumulate") or not isinstance(into, Made) or len(known) != 1:
            return
        value = self.graph.nodes[into.node].outputs[into.index]
        if value.is_meta or value[known[0]].any():
            raise UnpredictedError("rows that take the place of others that are not zero")

    def _alike(self, node: Node, moments: Sequence[Moments]) -> bool:
        """Whether two tensors have in common what weights that made both give them.

        Their correlation is measured: fresh inputs have none, as those of steps in time.
        """
        names = [{maker.weights for maker in moment.made_by} for moment in moments]
        if len(names) != 2 or not names[0] & names[1]:
            return False
        if depend_on_a_third(*moments) or moments[0].latent == moments[1].latent:
            return False  # the rule knows that
        if not self.graph.edited:
            made = [self.graph.nodes[s.node].outputs[s.index] for s in node.inputs if _is_made(s)]
            node.alike = abs(correlation(*made)) > max(_CORRELATED, 3 * _by_chance(*moments))
        return node.alike

    def _require_not_turned(
        self, call: Call, moments: Sequence[Moments], known: Sequence[Known]
    ) -> None:
        """Raise for W before its own transpose: the two are not independent."""
        for weight in known:
            if not weight.parameter or weight.value.ndim < 2:
                continue
            own = call.made_by(weight)
            makers = {m for x in moments for m in x.made_by if m.weights == own.weights}
            turned = {maker.node for maker in makers if maker.turned != own.turned}
            if turned:
                self.turned |= turned
                raise UnpredictedError(
                    "a product with the weights that made its input, transposed"
                )

    def _of_known(self, call: Call, known: Sequence[Known]) -> Result:
        """Values stay values, until weights are multiplied with data."""
        node = call.node
        data = any(leaf.data for leaf in known) or self._axes.draws_samples(node)
        names = {leaf.parameter for leaf in known if leaf.parameter}
        if data and names and node.name in WEIGHTED:
            return RULES[node.name](call)
        call = call.with_values()
        node = call.node
        if node.name in FOLLOWED:
            try:
                return RULES[node.name](call)
            except LayoutError:
                return _all_known(node, Known(node.outputs[0], data=data, others=_latents(known)))
        layout = self._axes.of_known(call, known, data=data)
        parameter = " and ".join(sorted(names)) if names and not data else None
        first = Known(node.outputs[0], layout, parameter, data, _latents(known))
        others = []
        for output in node.outputs[1:]:  # such as the parts of a split
            alike = output.shape == first.value.shape or not data
            own = layout if alike else self._axes.of_output(call, output)
            others.append((replace(first, value=output, layout=own), None))
        return Result(first, None, others)

    def _cut(self, call: Call, leaves: Sequence[Value]) -> Result:
        """Go on from measured moments, if the axes are those of an input."""
        node = call.node
        products = len([leaf for leaf in leaves if isinstance(leaf, Moments)]) > 1
        products = products and node.name in WEIGHTED  # of other axes, even if as long
        for output in () if self.stopped or products else node.outputs[:1]:
            for leaf in leaves:
                if isinstance(leaf, Moments) and leaf.layout.shape == tuple(output.shape):
                    try:
                        found = measured(output, leaf.layout)
                    except (UnpredictedError, LayoutError):
                        break
                    others: list[tuple[Value, Pullback | None]] = [
                        (Known(other), None) for other in node.outputs[1:]
                    ]
                    parts = [value for value in leaves if isinstance(value, Moments)]
                    return Result(found.made_of(*parts), None, others)
        if all(isinstance(leaf, Known) and not leaf.data for leaf in leaves):
            return _all_known(node, None)
        layout = self._axes.of_output(call, call.output)  # as if it were the batch's
        return _all_known(node, Known(call.output, layout, data=True, others=_latents(leaves)))

    def value(self, source: Made | Given) -> Value:
        """What is known of an input."""
        if isinstance(source, Made):
            return self.values[source.node][source.index]
        found = self._given.get(id(source.value))
        if found is None:
            data = source.kind == "data" and source.value.ndim > 0
            layout = self._axes.of_input(source.value) if data else None
            name = source.name if source.kind == "parameter" else None
            found = Known(source.value, layout, name, data)
            self._given[id(source.value)] = found
        return found


def _by_chance(a: Moments, b: Moments) -> float:
    r"""Standard deviation of the correlation of two tensors with independent features.

    :math:`\sqrt{\sum_{rr'} K_a K_b / (C \operatorname{tr} K_a \operatorname{tr} K_b)}` over pairs
    of rows, at most :math:`1/\sqrt C`, where rows are all alike.
    """
    K, L = a.covariance, b.covariance
    features = min(value.layout.count("feature") for value in (a, b))
    most = 1 / math.sqrt(features)
    size = K.mean_diagonal * L.mean_diagonal * K.rows * L.rows
    if K.positions != L.positions or a.order != b.order or not size > 0:
        return most
    return min(most, math.sqrt(max(K.dot(L), 0.0) / size / features))


def _check_size(output: Moments, node: Node) -> None:
    """Refuse what a rule says of a tensor that was repeated along an axis besides."""
    if math.prod(output.layout.shape) != node.outputs[0].numel():
        shape = list(node.outputs[0].shape)
        raise UnpredictedError(f"operands of two shapes, which are repeated to {shape}")


def _latents(leaves: Sequence[Value]) -> frozenset[Hashable]:
    """All that they depend on."""
    return frozenset[Hashable]().union(*(leaf.latents for leaf in leaves))


def _is_made(source: Made | Given) -> TypeGuard[Made]:
    return isinstance(source, Made)


def _is_value(leaf: Any) -> bool:
    return isinstance(leaf, Known | Moments | Unfinished)


def _cut_off(node: Node, value: Value) -> Value:
    """The value; its gradients do not join those of its root where autograd lets none pass."""
    passes = node.records_gradients and not node.function and node.name != "detach"
    return value if passes or not isinstance(value, Moments) else replace(value, root=None)


def _of_unlike_rows(_: Gradient) -> Pulled:
    """The way back to rows of a graph, whose gradients are more alike than those of others."""
    raise UnpredictedError(gathered.MANY_ROWS)


def _all_known(node: Node, first: Known | None) -> Result:
    outputs: list[tuple[Value, Pullback | None]] = [(Known(o), None) for o in node.outputs]
    if first is not None:
        outputs[0] = first, None
    return Result(outputs[0][0], None, outputs[1:])
