"""Predict every operation of a traced pass, and ask what if."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from equipoise.instrument.recording.graph import Graph, Made, Node
from equipoise.instrument.threads import one_thread
from equipoise.numerics.options import named_options
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.propagation.attribution import (
    BRANCHES,
    SLIGHT,
    Attribution,
    Vertex,
    attribute,
    kind_of,
)
from equipoise.theory.propagation.backward import Back, backward, size_of
from equipoise.theory.propagation.call import rule_for
from equipoise.theory.propagation.forward import Forward
from equipoise.theory.propagation.rules.pointwise import pointwise
from equipoise.theory.propagation.sites import Share, Site, Step, Weight, of_model
from equipoise.theory.propagation.steps import first_steps
from equipoise.theory.propagation.tensors import Readings, mean_square
from equipoise.theory.propagation.uses import gradient_of, uses_of, value_of
from equipoise.theory.propagation.values.covariances import most_positions
from equipoise.theory.propagation.values.moments import Moments, Value
from equipoise.theory.propagation.what_if.answer import Changes

# What theory about takes for a pair of positions of one operation, there and back.
_SECONDS_PER_PAIR = 2.5e-7
# Norms over positions multiply such matrices.
_SECONDS_PER_TRIPLE = 6e-10
# Maps of so many positions are followed whatever it takes.
_FEWEST_POSITIONS = 64
# ln of a weight's gradient, predicted over measured: beyond it, its uses are not independent.
_ALIKE = 0.5
# Why nothing is predicted once the allowance is spent.
NO_TIME = "no time left for it"


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

    def __reduce__(self) -> Any:
        """Copies and files go without the traced graph."""
        return Propagation, (self.sites, self.weights, self.attribution)

    def __str__(self) -> str:
        """How much is predicted, and what makes gradients grow.

        Examples:
            >>> print(Propagation((), (), (Share("normalisers", 4, 3.5, 1.5),)))
            0 of 0 operations predicted
            gradient times activation, towards the input:
              normalisers            ×1.535 each, 3.5 of 4 on the way
        """
        inside = of_model(self.sites)
        predicted = sum(site.is_predicted for site in inside)
        lines = [f"{predicted:,} of {len(inside):,} operations predicted"]
        cut = next((site for site in inside if not site.is_predicted and site.reason), None)
        if cut is not None:
            place = f" in {cut.module!r}" if cut.module else ""
            lines[0] += f"; first cut at {cut.operation}{place}: {cut.reason}"
        strong = [share for share in self.attribution if abs(share.log_gain) >= SLIGHT]
        if strong:
            lines.append("gradient times activation, towards the input:")
        for share in strong:
            of = f"{share.met:.3g} of {share.operations:,} on the way"
            lines.append(f"  {share.kind:<22} ×{share.each:.4g} each, {of}")
        return "\n".join(lines)

    @named_options
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
            activation: Instead of every activation that weights come after, if PyTorch has a name
                for it (``clamp`` and functions written as arithmetic stay): a name such as
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


class _MapsTooLargeError(Exception):
    """Most of the time that was allowed went into maps of many positions."""


@one_thread()  # beside other processes, NumPy's threads wait longer than all of it takes
def propagate(
    graph: Graph,
    *,
    steps: bool = False,
    allowance: float | None = None,
    begun: Forward | None = None,
) -> Propagation:
    """Predict second moments and gradients at every operation of a traced pass.

    Where no rule applies, the way forward goes on from the measured moments of that operation,
    and the way back from the measured gradient.

    Args:
        graph: The traced pass.
        steps: Whether to predict what a step of each weight does to its layer's output.
        allowance: Seconds of processor time that it may about take; by default any. Maps of so
            many positions that they would take longer are not followed; where it takes longer all
            the same, as through thousands of recurrent steps, nothing is predicted from there on.
        begun: The way forward through this graph, as far as it is known. It is gone to its end,
            and can be continued through another graph.
    """
    if allowance is not None:
        graph = replace(graph, positions=_affordable(graph, allowance))
    followed = most_positions.set(graph.positions)
    try:
        # What outgrows floating point is told by its numbers, not by NumPy.
        with np.errstate(over="ignore", invalid="ignore"):
            forward = begun or Forward(graph)
            _go_forward(forward, allowance)
            # The way back is used up.
            ways = forward if begun is None else forward.copy()
            back = backward(graph, ways, keep=steps)
    except _MapsTooLargeError:
        fewer = _fewer_positions(graph)
        return propagate(replace(graph, positions=fewer), steps=steps, allowance=allowance)
    finally:
        most_positions.reset(followed)
    attribution = attribute(_vertices(forward, back), back.edges)
    sites, readings, used = [], Readings(), _used(graph)
    for node in graph.nodes:
        value = forward.values[node.number][0]
        reason = forward.reasons.get(node.number, "")
        if reason and node.number not in used:
            continue
        if isinstance(value, Moments) or reason:
            site = _site(
                node, value, reason, back, attribution, None if graph.edited else readings
            )
            why = forward.notes.get(node.number, "") or back.reasons.get(node.number, "")
            sites.append(replace(site, reason=site.reason or why))
    moved = first_steps(graph, forward.values, back.gradients) if steps else {}
    weights = _weights(graph, forward, back, moved)
    shares = _shares(sites, attribution.branches)
    return Propagation(tuple(sites), tuple(weights), shares, graph)


def _used(graph: Graph) -> set[int]:
    """Numbers of the operations that the loss depends on, or of all if what it is is not known.

    Others are averages of attention's weights that nobody asked for, and checks of arguments.
    """
    if graph.result is None:
        return {node.number for node in graph.nodes}
    used = {graph.result.node}
    for node in reversed(graph.nodes):
        if node.number in used:
            used.update(one.node for one in node.inputs if isinstance(one, Made))
    return used


def _go_forward(forward: Forward, allowance: float | None) -> None:
    graph, started = forward.graph, time.process_time()
    before, of_maps = started, 0.0
    for node in graph.nodes[len(forward.values) :]:
        forward.step(node)
        now = time.process_time()
        if _largest(forward.values[node.number]) > _FEWEST_POSITIONS:
            of_maps += now - before
        before, spent = now, now - started
        if allowance is None or spent <= allowance or forward.stopped:
            continue
        if of_maps > spent / 2 and _fewer_positions(graph) < graph.positions:
            raise _MapsTooLargeError
        forward.stopped = NO_TIME


def _largest(values: Iterable[Value]) -> int:
    """Positions of the largest map among them."""
    return max((value.positions for value in values if isinstance(value, Moments)), default=0)


def _fewer_positions(graph: Graph) -> int:
    """Positions to follow at most, where so many as now take too long.

    Only where convolutions lead to smaller maps: all tokens have the same number of positions, so
    that with fewer nothing would be left.
    """
    maps = [math.prod(n.outputs[0].shape[2:]) for n in graph.nodes if n.name == "convolution"]
    fewer = max(_FEWEST_POSITIONS, min(graph.positions, max(maps, default=0)) // 4)
    return fewer if any(1 < one <= fewer for one in maps) else graph.positions


def _affordable(graph: Graph, seconds: float) -> int:
    """Positions of the largest maps that can be followed in so much time."""
    shapes = {
        node.outputs[0].shape[2:]
        for node in graph.nodes
        if node.name == "convolution" or node.name.startswith("upsample")
    }
    prices: defaultdict[int, float] = defaultdict(float)
    for node in graph.nodes:
        shape = node.outputs[0].shape[2:]
        if shape in shapes:
            positions = math.prod(shape)
            prices[positions] += positions**2 * _SECONDS_PER_PAIR
            if node.name == "native_group_norm":
                prices[positions] += positions**3 * _SECONDS_PER_TRIPLE
    most, spent = min(_FEWEST_POSITIONS, graph.positions), 0.0
    for positions, price in sorted(prices.items()):
        spent += price
        if spent > seconds:
            return most
        most = min(max(most, positions), graph.positions)
    return graph.positions


def _vertices(forward: Forward, back: Back) -> list[Vertex]:
    """All tensors with a predicted gradient, in order."""
    found = []
    for number, values in forward.values.items():
        for value in values:
            gradient = back.sizes.get(id(value))
            if isinstance(value, Moments) and gradient is not None:
                size = size_of(value, gradient)
                found.append(Vertex(id(value), number, size, id(value) in back.starts))
    return found


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


def _weights(
    graph: Graph, forward: Forward, back: Back, moved: Mapping[str, Step]
) -> list[Weight]:
    """Matrices of weights all of whose gradient is predicted."""
    uses = uses_of(graph, forward.values)
    found = []
    for name, sizes in back.uses.items():
        own = uses.get(name, [])
        if {use.node for use in own} - set(sizes) or len({use.key for use in own}) != 1:
            continue
        matrix = own[0].matrix
        gradient = gradient_of(matrix, graph)
        measured = graph.weights.get(name)
        if isinstance(matrix, Made):
            has_values = gradient is not None and not gradient.is_meta
            measured = mean_square(gradient) if gradient is not None and has_values else None
        size = sum(use.share * sizes[use.node] for use in own)
        used_again = sum(use.share for use in own) > 1
        if used_again and measured and size and abs(math.log(size / measured)) > _ALIKE:
            continue  # gradients of several uses are alike, or cancel
        second_moment = mean_square(value_of(matrix, graph))
        found.append(Weight(name, size, second_moment, measured, moved.get(name)))
    return found


def _site(
    node: Node,
    value: Value,
    reason: str,
    back: Back,
    attribution: Attribution,
    readings: Readings | None,
) -> Site:
    """What is predicted of an operation, and read off its tensors if they hold what it gave."""
    output, grad = node.outputs[0].detach(), node.gradients[0] if readings else None
    moments = value if isinstance(value, Moments) and not reason else None
    if output.is_complex() and moments:  # of real numbers, a part of such a gradient is not theirs
        grad = None
    read = readings if output.is_floating_point() or output.is_complex() else None
    return Site(
        node.number,
        node.name,
        node.module,
        None if moments is None else moments.second_moment,
        None if moments is None else moments.sample_correlation,
        back.sizes.get(id(value)),
        read.mean_square(output) if read else math.nan,
        None if grad is None or readings is None else readings.mean_square(grad),
        reason or back.unknown.get(id(value), ""),
        is_start=id(value) in back.starts,
        kind=kind_of(node.name, _home(node)),
        elements=output.numel() if moments is None else moments.layout.elements,
        share=attribution.share.get(node.number, 0.0),
        log_gain=attribution.log_gain.get(node.number, 0.0),
        error=attribution.error.get(id(value), math.nan),
        doubt=attribution.doubt.get(id(value), 0.0),
        row_correlation=(
            moments.row_correlation
            if moments and (moments.gaussian or moments.positions <= _FEWEST_POSITIONS)
            else None
        ),
        measured_correlation=(
            read.sample_correlation(output, moments.layout) if moments and read else None
        ),
    )


def _home(node: Node) -> str:
    rule = rule_for(node)
    if rule is None and node.is_pointwise:
        rule = pointwise
    return getattr(rule, "__module__", None) or ""  # functions of a session have none
