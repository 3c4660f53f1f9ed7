"""All mistakes of a traced pass."""

from __future__ import annotations

from torch import nn

from equipoise.diagnosis.mistakes.inputs import of_inputs
from equipoise.diagnosis.mistakes.layers import of_layers
from equipoise.diagnosis.mistakes.outputs import of_outputs
from equipoise.diagnosis.mistakes.reach import of_reach
from equipoise.diagnosis.mistakes.samples import of_samples
from equipoise.diagnosis.mistakes.targets import of_targets
from equipoise.diagnosis.problem import Problem
from equipoise.instrument.recording.graph import Graph
from equipoise.records.finding import Finding


def mistakes(graph: Graph, model: nn.Module, problem: Problem) -> list[Finding]:
    """What is wrong with the use of a model, and not with its initialisation.

    Args:
        graph: A pass traced on the first batch.
        model: One of the problem's models; left bit for bit as it is.
        problem: What is checked.
    """
    return [
        *of_outputs(graph, problem.first, assumed=problem.loss_is_assumed),
        *of_inputs(graph, problem.first),
        *of_layers(graph, model),
        *of_reach(graph, model, problem.loss_fn, problem.more()),
        *of_targets(graph, list(problem.more())),
        *of_samples(model, problem.loss_fn, problem.first),
    ]
