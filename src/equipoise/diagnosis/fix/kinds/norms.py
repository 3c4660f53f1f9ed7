"""Another norm in the place of every norm over channels."""

from __future__ import annotations

from typing import Any

from torch import nn

from equipoise.diagnosis.fix.kinds.kind import Undo, UnsuitableRemedyError
from equipoise.diagnosis.fix.remedy import Edit, Remedy
from equipoise.instrument.modules import places, put
from equipoise.instrument.recording.graph import Graph
from equipoise.layers.batch_renorm import RenormSchedule
from equipoise.layers.convert import convert
from equipoise.layers.kinds import SOURCES, STATISTICS, TARGETS
from equipoise.theory.propagation.what_if.answer import Changes
from equipoise.theory.propagation.what_if.norms import KINDS as PREDICTED

_WORDS = {
    "group": "group norm",
    "layer": "layer norm",
    "instance": "instance norm",
    "rms": "RMS norm",
    "batch": "batch norm",
    "batch_renorm": "batch renorm",
    "ghost": "ghost batch norm",
    "frozen": "frozen batch norm",
    "none": "no norm",
}


def words(edit: Edit) -> str:
    """Name the norm."""
    name = _WORDS.get(edit.choice, edit.choice)
    if edit.choice == "group" and edit.value is not None:
        name += f" of {edit.value:g} groups"
    if edit.choice == "ghost" and edit.value is not None:
        name += f" over {edit.value:g} samples"
    if edit.choice == "batch_renorm" and edit.value is not None:
        name += f" after {edit.value:g} steps"
    return f"{name} instead of every norm"


def code(edit: Edit) -> tuple[str, ...]:
    """The line that exchanges them."""
    return (f'model = equipoise.apply(model, "{Remedy((edit,)).name}").model',)


def change_model(model: nn.Module, edit: Edit) -> Undo:
    """Exchange them; layers keep γ and β, and those of the model's own that are alike stay."""
    if edit.choice not in TARGETS:
        raise ValueError(f"norm is one of {', '.join(TARGETS)}, got {edit.choice!r}.")
    before = places(model)
    # Batch norms hand their running statistics on, which the new layers then change.
    statistics = {
        module: {n: t for n in STATISTICS if (t := getattr(module, n, None)) is not None}
        for module in set(before.values())
    }
    kept = {m: {n: t.clone() for n, t in found.items()} for m, found in statistics.items()}
    trial = convert(model, sources(edit), edit.choice, **_options(edit))
    if trial.skipped or not trial.changed:
        reason = str(trial.skipped[0]) if trial.skipped else "it has no norm of another kind"
        raise UnsuitableRemedyError(f"{words(edit)} does not fit the model: {reason}.")
    if any("" in changed.names for changed in trial.changed):
        raise UnsuitableRemedyError("the model is a norm itself: exchange it by hand.")
    made = convert(model, sources(edit), edit.choice, inplace=True, **_options(edit))
    names = [name for changed in made.changed for name in changed.names]

    def undo() -> None:
        for name in names:
            put(model, name, before[name])
        for module, tensors in kept.items():
            for name, value in tensors.items():
                getattr(module, name).copy_(value)

    return undo


def change_graph(graph: Graph, edit: Edit, model: nn.Module) -> Graph:
    """Exchange them in the trace; new layers that start as batch norm are predicted as it."""
    if edit.choice == "batch_renorm":  # r = 1 and d = 0 before its schedule begins
        return Changes(norm="batch").made_to(graph)
    if edit.choice == "frozen":  # statistics 0 and 1 of a new batch norm change nothing
        return Changes(norm="none").made_to(graph)
    if edit.choice == "ghost":
        size = min(graph.batch, int(edit.value or graph.batch))
        return Changes(norm="batch", batch_size=size).made_to(graph)
    if edit.choice not in PREDICTED:
        raise UnsuitableRemedyError(f"theory does not know {words(edit)}.")
    groups = int(edit.value) if edit.choice == "group" and edit.value is not None else None
    return Changes(norm=edit.choice, groups=groups).made_to(graph)


def sources(edit: Edit) -> tuple[str, ...]:
    """Kinds that are exchanged: all but the edit's; layer norms only for RMS norm or none."""
    last = ("layer", "rms")
    found = [kind for kind in SOURCES if kind != edit.choice or kind in ("group", "ghost")]
    if edit.choice not in ("rms", "none"):
        found = [kind for kind in found if kind not in last]
    return tuple(found)


def _options(edit: Edit) -> dict[str, Any]:
    if edit.choice == "group" and edit.value is not None:
        return {"groups": int(edit.value)}
    if edit.choice == "ghost" and edit.value is not None:
        return {"virtual_batch_size": int(edit.value)}
    if edit.choice == "batch_renorm" and edit.value is not None:
        whole = RenormSchedule()
        return {"schedule": whole.scaled(edit.value / whole.warmup)}
    return {"dims": 0} if edit.choice == "rms" else {}
