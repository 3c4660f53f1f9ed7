"""Find a stack of residual blocks, and predict how gradients grow along its residual stream."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from equipoise.diagnosis.prediction.blocks import LINEAR, SHAPES, FoundBlock
from equipoise.diagnosis.prediction.predict import Network, affine, as_block, network_of, variances
from equipoise.diagnosis.record import Block
from equipoise.instrument.recording.operations import Operation, Value
from equipoise.records.estimate import Estimate
from equipoise.theory.batch_norm.setting import SMALLEST_BATCH
from equipoise.theory.networks.followed_batch import LARGEST_FOLLOWED, follow_batch

Array = NDArray[np.float64]

_DERIVED = "growth along a residual stream is derived by Equipoise, not by a paper"
_LEAST_BLOCKS = 2
# Additions, whatever the sign of the branch; its scale would matter.
_SUMS = {"add", "iadd", "radd", "sub", "isub", "rsub"}


@dataclass(frozen=True, slots=True, eq=False)
class ResidualStack:
    """Residual blocks x + W φ(BN(⋯)) directly after each other.

    Args:
        first: Index of the first block's first normaliser among all that were found.
        blocks: How many residual blocks.
        stages: Normalisers per block.
        leading: Whether a linear layer precedes the first normaliser of each branch.
        has_tail: Whether one more normaliser follows the last block.
        weight_variance: Mean over the linear layers that close a stage.
    """

    first: int
    blocks: int
    stages: int
    leading: bool
    has_tail: bool
    weight_variance: float

    @property
    def last(self) -> int:
        """Index after the last normaliser inside a block."""
        return self.first + self.blocks * self.stages


def find_stack(
    operations: Sequence[Operation], found: Sequence[FoundBlock]
) -> ResidualStack | None:
    """Find residual blocks that make up the whole model, but for a stem and a final norm."""
    graph = _Graph(operations)
    for first in (0, 1):
        shapes, at, stream = [], first, None
        while at < len(found) and (block := _block_at(graph, found, at, stream)) is not None:
            stages, leading, stream = block
            shapes.append((stages, leading))
            at += stages
        left = len(found) - at
        if len(shapes) < _LEAST_BLOCKS or len(set(shapes)) > 1 or left > 1:
            continue
        if left and graph.source(found[at]) != stream:
            continue
        inside = found[first:at]
        if not _alike(inside):
            return None
        stages, leading = shapes[0]
        closing = [variances(one.path.closing.module)[0] for one in inside if one.path.closing]
        mean = sum(closing) / len(closing)
        return ResidualStack(first, len(shapes), stages, leading, left == 1, mean)
    return None


@dataclass(frozen=True, slots=True, eq=False)
class StreamPrediction:
    """What theory predicts for a stack.

    Args:
        blocks: The records of all normalisers, with predictions.
        log_profiles: Logarithm of the squared gradients at the stack's normalisers and after the
            last of them, ``[repeats, layers + 1]``.
        network: The theory's network for its blocks.
    """

    blocks: list[Block]
    log_profiles: Array
    network: Network


def predict_stack(
    stack: ResidualStack, found: Sequence[FoundBlock], blocks: Sequence[Block], covariance: Array
) -> StreamPrediction:
    """Predict gradients at every normaliser of the stack.

    Args:
        stack: Where the residual blocks are.
        found: All normalisers.
        blocks: Their records so far.
        covariance: Second moments of the batch at the stack's first normaliser, ``[B, B]``,
            which a residual stream carries along.
    """
    opening = found[stack.first]
    assert opening.activation is not None
    network, uneven = network_of(opening, opening.activation)
    if stack.leading:
        covariance = covariance / variances(opening.feeding)[0]
    rows = len(covariance)
    spread = float(np.trace(covariance) - covariance.mean() * rows) / (rows - 1)
    network = Network(
        replace(network.setting, weight_variance=stack.weight_variance),
        replace(
            network.architecture,
            stages=stack.stages,
            leading=stack.leading,
            start_variance=spread,
        ),
    )
    logs = follow(network, stack, covariance)
    steps = logs[:, :-1] - logs[:, 1:]
    records = list(blocks)
    for offset in range(stack.last - stack.first):
        step = Estimate.of_mean(steps[:, offset], "recursion over infinitely wide layers")
        growth = math.exp(step.value)
        rate = Estimate(growth, growth * step.error, step.method)
        index = stack.first + offset
        records[index] = as_block(found[index], rate, None, None, uneven, (_DERIVED,))
    if stack.has_tail:
        reason = "it ends the residual stream: no further block follows"
        records[-1] = as_block(found[-1], None, None, reason, uneven)
    return StreamPrediction(records, logs, network)


def follow(network: Network, stack: ResidualStack, covariance: Array) -> Array:
    """Squared gradients along the stream, ``[repeats, layers + 1]``, as logarithms."""
    return follow_batch(
        covariance,
        network.setting,
        stack.blocks * stack.stages,
        architecture=network.architecture,
        ends_in_norm=stack.has_tail,
    ).log_gradients


class _Graph:
    """Which operation made a value, and which additions use it."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        # A reshape that changes nothing returns the very tensor it was given.
        self._made = {op.output: op for op in operations if op.output not in op.inputs}
        self._sums = [
            op
            for op in operations
            if op.name in _SUMS and len(op.inputs) == 2 and op.keywords.get("alpha", 1) == 1
        ]

    def origin(self, value: Value) -> Value:
        """Walk back over reshapes."""
        made = self._made.get(value)
        while made is not None and made.name in SHAPES and made.inputs:
            value = made.inputs[0]
            made = self._made.get(value)
        return value

    def source(self, found: FoundBlock) -> Value:
        """The input of a normaliser."""
        return self.origin(found.path.given)

    def is_linear(self, value: Value) -> bool:
        """Whether a linear layer made a value."""
        made = self._made.get(value)
        return made is not None and made.name in LINEAR

    def before_linear(self, value: Value) -> Value:
        """The input of the linear layer that made a value."""
        return self.origin(self._made[value].inputs[0])

    def joined(self, stream: Value, branch: Value) -> Value | None:
        """The sum of the two, if they are added."""
        for operation in self._sums:
            if {self.origin(value) for value in operation.inputs} == {stream, branch}:
                return operation.output
        return None


def _block_at(
    graph: _Graph, found: Sequence[FoundBlock], first: int, stream: Value | None
) -> tuple[int, bool, Value] | None:
    """Stages of the block that begins here, whether a linear layer leads, the stream after it.

    The stream before it must be the given one, if one is.
    """
    source = graph.source(found[first])
    streams = {source: False}  # a stem may be linear too: the addition shows which it is
    if graph.is_linear(source):
        streams[graph.before_linear(source)] = True
    if stream is not None:
        streams = {stream: streams[stream]} if stream in streams else {}
    for at in range(first, len(found)):
        closing = found[at].path.closing
        if closing is None or found[at].path.reason is not None:
            return None
        for before, leading in streams.items():
            after = graph.joined(before, closing.output)
            if after is not None:
                return at - first + 1, leading, after
        if at + 1 == len(found) or graph.source(found[at + 1]) != closing.output:
            return None
    return None


def _alike(inside: Sequence[FoundBlock]) -> bool:
    """Whether all are batch norms with one activation and one set of parameters."""
    first = inside[0].normalisation
    if first.is_convolution or not SMALLEST_BATCH <= first.rows <= LARGEST_FOLLOWED:
        return False
    if any(
        one.activation is None
        or one.normalisation.normaliser != "batch norm"
        or one.normalisation.reason is not None
        for one in inside
    ):
        return False
    kinds = set()
    for one in inside:
        assert one.activation is not None
        gamma, beta, _ = affine(one.normalisation)
        kinds.add(
            (
                one.activation.name,
                one.normalisation.rows,
                one.normalisation.eps,
                round(gamma, 6),
                round(beta, 6),
            )
        )
    return len(kinds) == 1
