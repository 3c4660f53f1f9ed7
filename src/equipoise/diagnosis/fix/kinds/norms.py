"""Another norm in the place of every norm over channels."""

from __future__ import annotations

import contextlib
import math
from typing import Any

from torch import nn

from equipoise.diagnosis.fix.kinds.kind import Undo, UnsuitableRemedyError
from equipoise.diagnosis.fix.remedy import Edit, Remedy
from equipoise.diagnosis.fix.words import edit_in_words
from equipoise.instrument.modules import places, put
from equipoise.instrument.recording.graph import Graph
from equipoise.layers.batch_renorm import RenormSchedule
from equipoise.layers.convert import convert
from equipoise.layers.kinds import (
    SOURCES,
    STATISTICS,
    TARGETS,
    CannotConvertError,
    exchangeable_kind,
    read,
)
from equipoise.numerics.checks import check_choice
from equipoise.theory.propagation.what_if.answer import Changes
from equipoise.theory.propagation.what_if.norms import KINDS as PREDICTED


def code(edit: Edit) -> tuple[str, ...]:
    """The line that exchanges them."""
    return (f'model = equipoise.apply(model, "{Remedy((edit,)).name}").model',)


def change_model(model: nn.Module, edit: Edit) -> Undo:
    """Exchange them; layers keep γ and β, and those of the model's own that are alike stay."""
    check_choice("norm", edit.choice, TARGETS)
    _check_groups(model, edit)
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
        raise UnsuitableRemedyError(f"{edit_in_words(edit)} does not fit the model: {reason}.")
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


def _check_groups(model: nn.Module, edit: Edit) -> None:
    """Refuse groups that do not divide all channels: ``convert`` would take fewer of them."""
    if edit.choice != "group" or edit.value is None:
        return
    channels = _channels_by_name(model, sources(edit))
    unfit = [name for name, count in channels.items() if count % edit.value]
    if not unfit:
        return
    most = math.gcd(*channels.values())
    fitting = [str(count) for count in range(1, most + 1) if most % count == 0]
    others = f" ({len(unfit) - 1} more)" if len(unfit) > 1 else ""
    raise UnsuitableRemedyError(
        f"norm={edit.choice}:{edit.value:g} does not fit the model: layer {unfit[0]!r}{others} "
        f"has {channels[unfit[0]]} channels, which {edit.value:g} does not divide. All norms of "
        f"the model take {', '.join(fitting)}; equipoise.layers.convert(model, 'batch', "
        f"'group', groups={edit.value:g}) gives each layer the largest divisor of both."
    )


def _channels_by_name(model: nn.Module, kinds: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for name, module in places(model).items():
        kind = exchangeable_kind(module)
        if kind is not None and kind.name in kinds:
            with contextlib.suppress(CannotConvertError):  # convert says why it stays
                found[name] = read(module, kind, None).channels
    return found


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
        raise UnsuitableRemedyError(f"theory does not know {edit_in_words(edit)}.")
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
