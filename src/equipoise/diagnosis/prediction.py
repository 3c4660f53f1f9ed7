"""Predict every operation of a model, and the layers at which gradients are measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.diagnosis.problem import Problem
from equipoise.diagnosis.record import LayerPrediction
from equipoise.diagnosis.sources import following
from equipoise.diagnosis.trainability.entrance import leading_to
from equipoise.instrument import untouched
from equipoise.instrument.forward import recording_gradients
from equipoise.instrument.kept_batches import apart
from equipoise.instrument.layer_watch import LayerWatch
from equipoise.instrument.memory import lacks_memory, let_go
from equipoise.instrument.random_states import RandomStates
from equipoise.instrument.recording.graph import Graph, Made
from equipoise.instrument.recording.tracer import trace
from equipoise.numerics.pieces import norm
from equipoise.records.estimate import Estimate
from equipoise.theory.propagation.propagate import Propagation, propagate
from equipoise.theory.propagation.sites import Site

_METHOD = "signal propagation"
_NO_WAY_BACK = "no operation after it lets theory pass back"


@dataclass(frozen=True, slots=True, eq=False)
class TracedModel:
    """One pass of a model, as operations.

    Args:
        graph: The operations.
        layers: Where the watched layers stand in it, by name; None where they do not.
        problem: What was run, with as many samples as went into the device's memory.
    """

    graph: Graph
    layers: dict[str, Made | None]
    problem: Problem

    def predict(
        self, parameters: Mapping[str, Tensor] | None = None, allowance: float | None = None
    ) -> Propagation:
        """Carry moments through every operation, if need be with other values of parameters."""
        return propagate(self.graph.with_parameters(parameters or {}), allowance=allowance)

    def at_layers(self, propagation: Propagation) -> tuple[LayerPrediction, ...]:
        """What is predicted at the watched layers, or why nothing is."""
        sites = {site.node: site for site in propagation.sites}
        return tuple(
            _at_layer(name, made, None if made is None else sites.get(made.node))
            for name, made in self.layers.items()
        )


def in_sequence(trace: TracedModel) -> frozenset[tuple[str, str]]:
    """Pairs of neighbouring watched layers of which all of one's gradient comes from the other.

    None is a branch that others pass by, or one of several heads or calls beside each other.
    """
    graph = trace.graph
    if graph.result is None:
        return frozenset()
    leading = (graph.nodes[n] for n in sorted(leading_to(graph, graph.result.node)))
    used = [node for node in leading if any(x.requires_grad for x in node.outputs)]
    last = {source.node: n.number for n in used for source in n.inputs if isinstance(source, Made)}
    last[graph.result.node] = len(graph.nodes)
    found = set()
    for (name, first), (neighbour, second) in pairwise(trace.layers.items()):
        if first is None or second is None or first.node > second.node:
            continue
        between = graph.nodes[first.node + 1 : second.node + 1]
        behind = {first.node, *(node.number for node in following({first.node}, between))}
        others = behind - {second.node}
        if second.node in behind and all(last.get(n, 0) <= second.node for n in others):
            found.add((name, neighbour))
    return frozenset(found)


def traced(problem: Problem, model: nn.Module) -> TracedModel:
    """Run a model on the first batch and record every operation; the model is not changed.

    The tensors of all operations are held at once, where a training step lets most of them go: of
    a batch for which the device has too little memory half is run, or half of that.

    Raises:
        torch.OutOfMemoryError: If one sample takes too much, or the batch cannot be halved.
    """
    while True:
        try:
            return _traced(problem, model)
        except Exception as error:
            fewer = with_fewer_samples(problem, error)
            if fewer is None:
                raise
        problem = fewer


def with_fewer_samples(problem: Problem, error: Exception) -> Problem | None:
    """The same with half of the samples, after an error for want of memory, which lets go of it.

    Returns:
        None after another error, and where the batch cannot be halved.
    """
    fewer = problem.halved() if lacks_memory(error) else None
    if fewer is None:
        return None
    let_go(error)
    if problem.device.type != "cpu":
        torch.accelerator.empty_cache()
    return fewer


def _traced(problem: Problem, model: nn.Module) -> TracedModel:
    edges: dict[str, Any] = {}
    loss_fn, batch = apart(problem.loss_fn, problem.first)  # copying is no part of the pass

    def watched_loss(model: nn.Module, batch: Any) -> Tensor:
        with LayerWatch(model) as watch:
            loss: Tensor = loss_fn(model, batch)
        edges.update(watch.edges)
        return loss

    graph = trace(model, batch, watched_loss)
    return TracedModel(graph, dict(zip(edges, graph.at(edges.values()), strict=True)), problem)


def traced_with(problem: Problem, model: nn.Module, values: Mapping[str, Tensor]) -> Graph:
    """A pass on the first batch with other values of some parameters, by name.

    Args:
        problem: What is checked.
        model: One of its models; left bit for bit as it is.
        values: The other values.
    """
    with untouched(model):
        parameters = dict(model.named_parameters())
        for name, value in values.items():
            parameters[name].data.copy_(value)
        return trace(model, problem.first, problem.loss_fn).kept()


def traced_after_step(problem: Problem, model: nn.Module, part: float) -> Graph:
    """A pass on the first batch after a step against the signs of its gradient, as Adam's first.

    Args:
        problem: What is checked.
        model: One of its models; left bit for bit as it is.
        part: By how much of its root mean square each matrix moves.
    """
    with untouched(model), recording_gradients():
        matrices = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
        random_states = RandomStates(model)
        loss = problem.loss_fn(model, problem.first)
        gradients = torch.autograd.grad(loss, matrices, allow_unused=True)
        random_states.restore()  # the same units are dropped again
        for matrix, gradient in zip(matrices, gradients, strict=True):
            if gradient is not None:
                is_dense = gradient.layout is torch.strided
                signs = (gradient if is_dense else gradient.to_dense()).sgn()
                size = norm(matrix) / matrix.numel() ** 0.5
                matrix.data.sub_(part * size * signs)
        return trace(model, problem.first, problem.loss_fn).kept()


def _at_layer(name: str, made: Made | None, site: Site | None) -> LayerPrediction:
    if made is not None and made.index > 0:
        reason = "it is one of several outputs of an operation"
        return LayerPrediction(name, None, None, None, reason)
    if site is None:
        return LayerPrediction(name, None, None, None, "no weights lie before it")
    if site.gradient is None or site.second_moment is None:
        return LayerPrediction(
            name, None, site.second_moment, site.row_correlation, site.reason or _NO_WAY_BACK
        )
    total = site.gradient * site.elements
    return LayerPrediction(
        name,
        Estimate(total, total * site.error, _METHOD),
        site.second_moment,
        site.row_correlation,
        None,
    )
