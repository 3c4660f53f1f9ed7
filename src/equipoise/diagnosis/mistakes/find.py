"""All mistakes of a traced pass."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from equipoise.diagnosis.mistakes.cancelling import of_cancelling
from equipoise.diagnosis.mistakes.classes import of_classes
from equipoise.diagnosis.mistakes.codings import of_codings
from equipoise.diagnosis.mistakes.draws import of_draws
from equipoise.diagnosis.mistakes.future import of_future
from equipoise.diagnosis.mistakes.inputs import of_inputs
from equipoise.diagnosis.mistakes.layers import of_layers
from equipoise.diagnosis.mistakes.memory import of_memory
from equipoise.diagnosis.mistakes.outputs import of_outputs
from equipoise.diagnosis.mistakes.reach import of_reach
from equipoise.diagnosis.mistakes.samples import of_samples
from equipoise.diagnosis.mistakes.signs import of_signs
from equipoise.diagnosis.mistakes.steps import of_steps
from equipoise.diagnosis.mistakes.targets import of_targets
from equipoise.diagnosis.problem import Problem
from equipoise.instrument.recording.graph import Graph
from equipoise.records import wording
from equipoise.records.finding import Finding


def mistakes(graph: Graph, model: nn.Module, problem: Problem) -> list[Finding]:
    """What is wrong with the use of a model, and not with its initialisation.

    Looks that fail, as on a later batch that the model does not take, are named in a note.

    Args:
        graph: A pass traced on the first batch.
        model: One of the problem's models; left bit for bit as it is.
        problem: What is checked.
    """
    loss, first = problem.loss_fn, problem.first
    looks: dict[str, Callable[[], list[Finding]]] = {
        "outputs": lambda: of_outputs(graph, first, assumed=problem.loss_is_assumed),
        "axes of classes": lambda: of_classes(graph),
        "codings of targets": lambda: of_codings(graph, first),
        "random numbers": lambda: of_draws(graph, assumed=problem.loss_is_assumed),
        "inputs": lambda: of_inputs(graph, first),
        "layers": lambda: of_layers(graph, model),
        "parameters without a gradient": lambda: of_reach(graph, model, loss, problem.more()),
        "targets": lambda: of_targets(graph, first, problem.more),
        "forgotten time steps": lambda: of_memory(model, loss, first),
        "gradients that cancel": lambda: of_cancelling(graph),
        "first steps": lambda: of_steps(graph, model, loss, first),
        "signs of gradients": lambda: of_signs(graph, model, loss, first),
        "steps that are seen before they are predicted": lambda: of_future(
            graph, model, loss, first, problem.patience
        ),
        "samples that see each other": lambda: of_samples(
            model, loss, first, problem.patience, graph
        ),
    }
    found: list[Finding] = []
    failed: dict[str, str] = {}
    for what, look in looks.items():
        try:
            found += look()
        except Exception as error:  # what a model or its loader does is not to end the check-up
            failed[what] = wording.said(error)
    if failed:
        words = " ".join(f"{wording.capital(what)}: {why}" for what, why in failed.items())
        found.append(Finding("note", "Not all mistakes could be looked for", words))
    return found
