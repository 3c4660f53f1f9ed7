"""All mistakes of a traced pass.

A detector states the severity of its finding by one rule. Critical: hardly anything can be learnt,
or what is learnt cannot be used. Warning: it costs much, or is meant in rare cases alone. Note: it
is meant as often as not. The first critical one heads the verdict (``diagnosis.verdict``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from torch import nn

from equipoise.diagnosis.mistakes.data.codings import of_codings
from equipoise.diagnosis.mistakes.data.inputs import of_inputs
from equipoise.diagnosis.mistakes.data.leaks import of_leaks
from equipoise.diagnosis.mistakes.data.targets import of_targets
from equipoise.diagnosis.mistakes.losses.adversaries import of_adversaries
from equipoise.diagnosis.mistakes.losses.aims import of_aims
from equipoise.diagnosis.mistakes.losses.detached import of_detached
from equipoise.diagnosis.mistakes.losses.latents import of_latents
from equipoise.diagnosis.mistakes.losses.policies import of_policies
from equipoise.diagnosis.mistakes.outputs.classes import of_classes
from equipoise.diagnosis.mistakes.outputs.fit import of_fit
from equipoise.diagnosis.mistakes.outputs.ranges import of_ranges
from equipoise.diagnosis.mistakes.samples.mixing import of_mixing
from equipoise.diagnosis.mistakes.samples.padding import of_padding
from equipoise.diagnosis.mistakes.samples.pairing import of_pairing
from equipoise.diagnosis.mistakes.samples.pairs import of_pairs
from equipoise.diagnosis.mistakes.series.future import of_future
from equipoise.diagnosis.mistakes.series.memory import of_memory
from equipoise.diagnosis.mistakes.series.own_steps import of_own_steps
from equipoise.diagnosis.mistakes.series.past import of_past
from equipoise.diagnosis.mistakes.traced_pass import TracedPass
from equipoise.diagnosis.mistakes.training.cancelling import of_cancelling
from equipoise.diagnosis.mistakes.training.draws import of_draws
from equipoise.diagnosis.mistakes.training.layers import of_layers
from equipoise.diagnosis.mistakes.training.plateaus import of_plateaus
from equipoise.diagnosis.mistakes.training.quantised import of_quantised
from equipoise.diagnosis.mistakes.training.reach import of_reach
from equipoise.diagnosis.mistakes.training.signs import of_signs
from equipoise.diagnosis.mistakes.training.steps import of_steps
from equipoise.diagnosis.problem import Problem
from equipoise.diagnosis.refusals import too_little_memory
from equipoise.instrument.memory import lacks_memory
from equipoise.instrument.recording.graph import Graph
from equipoise.records import wording
from equipoise.records.finding import Finding

# Detectors, by what they look at, in the words of the note for those that fail.
DETECTORS: Mapping[str, Callable[[TracedPass], list[Finding]]] = {
    "outputs": of_fit,
    "ranges of outputs": of_ranges,
    "axes of classes": of_classes,
    "codings of targets": of_codings,
    "random numbers": of_draws,
    "inputs": of_inputs,
    "layers": of_layers,
    "latent variables": of_latents,
    "quantised codes": of_quantised,
    "parameters without a gradient": of_reach,
    "parts of the loss without a gradient": of_detached,
    "targets": of_targets,
    "forgotten time steps": of_memory,
    "gradients that cancel": of_cancelling,
    "first steps": of_steps,
    "plateaus": of_plateaus,
    "signs of gradients": of_signs,
    "signs of losses": of_aims,
    "signs of parts of a policy's loss": of_policies,
    "critics and generators": of_adversaries,
    "steps that are seen before they are predicted": of_future,
    "steps that are not seen": of_own_steps,
    "targets that were given": of_past,
    "masks of padding": of_padding,
    "inputs that hold the targets": of_leaks,
    "similarities of samples": of_pairs,
    "targets of other samples": of_pairing,
    "samples that see each other": of_mixing,
}


class Search:
    """A search for mistakes, in two parts: in a traced pass, and by running the model again.

    Detectors that fail, as on a later batch that the model does not take, are named in a note.

    Args:
        graph: A pass traced on the first batch; it is not kept for the second part.
        model: One of the problem's models; left bit for bit as it is.
        problem: What is checked.
        left_out: Parameters that the user's optimiser does not hold.
    """

    def __init__(
        self, graph: Graph, model: nn.Module, problem: Problem, left_out: Collection[str] = ()
    ) -> None:
        self._found: dict[str, list[Finding]] = {}
        self._looks: list[tuple[str, Callable[[], list[Finding]]]] = []
        self._failed: dict[str, str] = {}
        self._too_large: dict[str, str] = {}
        postponed: list[Callable[[], list[Finding]]] = []
        traced = TracedPass(
            graph=graph,
            model=model,
            loss_fn=problem.loss_fn,
            batch=problem.first,
            more=problem.more,
            patience=problem.patience,
            loss_is_assumed=problem.loss_is_assumed,
            left_out=left_out,
            postponed=postponed,
        )
        for what, detect in DETECTORS.items():
            self._look(what, partial(detect, traced))
            self._looks += [(what, look) for look in postponed]
            postponed.clear()

    @property
    def looks(self) -> int:
        """How often the model is still to be looked at; each takes about a training step."""
        return len(self._looks)

    @property
    def found(self) -> list[Finding]:
        """What was found so far."""
        found = [one for what in DETECTORS for one in self._found.get(what, ())]
        failed = [
            f"{wording.capital(what)}: {self._failed[what]}"
            for what in DETECTORS
            if what in self._failed
        ]
        if self._too_large:
            *_, last = self._too_large.values()
            failed.append(f"{wording.capital(wording.listed([*self._too_large], 3))}: {last}")
        if failed:
            found.append(Finding("note", "Not all mistakes could be looked for", " ".join(failed)))
        return found

    def finish(self) -> None:
        """Run the model again, where that may tell more."""
        while self._looks:
            self._look(*self._looks.pop(0))

    def _look(self, what: str, look: Callable[[], list[Finding]]) -> None:
        try:
            self._found.setdefault(what, []).extend(look())
        except Exception as error:  # what a model or its loader does is not to end the check-up
            if lacks_memory(error):
                self._too_large[what] = too_little_memory(error)
            else:
                self._failed[what] = wording.said(error)


def mistakes(
    graph: Graph, model: nn.Module, problem: Problem, left_out: Collection[str] = ()
) -> list[Finding]:
    """What is wrong with the use of a model, and not with its initialisation.

    Args:
        graph: A pass traced on the first batch.
        model: One of the problem's models; left bit for bit as it is.
        problem: What is checked.
        left_out: Parameters that the user's optimiser does not hold.
    """
    search = Search(graph, model, problem, left_out)
    search.finish()
    return search.found
