"""Findings about initial weights: what a mistake does, where it is, and how to mend it."""

from __future__ import annotations

from typing import NamedTuple

from equipoise.diagnosis.initialisation.record import (
    FaultKind,
    Initialisation,
    InitialisationFault,
)
from equipoise.records import wording
from equipoise.records.finding import Finding, Severity


class _Words(NamedTuple):
    """How a fault is told: ``{}`` in the title is the number of parameters."""

    severity: Severity
    title: str
    remedy: str


# Parameters that a title names; of more it tells the number.
_NAMED = 2
_WORDS: dict[FaultKind, _Words] = {
    "not finite": _Words(
        "critical",
        "Training cannot begin: {} not finite",
        "Find the first module whose weights fail: torch.isfinite(p).all() after each step of "
        "your initialisation.",
    ),
    "constant": _Words(
        "critical",
        "Units of a layer will stay copies of each other: {} constant",
        "Draw them: torch.nn.init.kaiming_normal_(layer.weight).",
    ),
    "constant at first": _Words(
        "warning",
        "Units of a layer start as copies of each other: {} constant",
        "Draw them: torch.nn.init.kaiming_normal_(layer.weight).",
    ),
    "half loaded": _Words(
        "critical",
        "A checkpoint was loaded in part: {} still fresh",
        "missing, unexpected = model.load_state_dict(state, strict=False); print(missing, "
        "unexpected).",
    ),
    "fresh part": _Words(
        "note",
        "Whole parts of the model are fresh beside trained ones: {}",
        "New heads and decoders are. If a checkpoint was to fill them: missing, unexpected = "
        "model.load_state_dict(state, strict=False); print(missing, unexpected).",
    ),
    "running statistics": _Words(
        "critical",
        "Outputs in evaluation are wrong: {} without loaded statistics",
        "Save and load buffers too: model.load_state_dict(state), with a state from "
        "model.state_dict(), not from named_parameters().",
    ),
    "missed": _Words(
        "warning",
        "An init function missed {}",
        "Apply it last, to the whole model, after every layer exists: model.apply(init); and let "
        "it match these modules' class.",
    ),
    "not used": _Words(
        "warning",
        "An init function has no effect on {}",
        "Draw before torch.nn.utils.weight_norm is applied, or draw the direction: "
        "torch.nn.init.normal_(layer.weight_v).",
    ),
    "mis-scaled": _Words(
        "warning",
        "Activations start too large or too small: {} on another scale",
        "Draw them as intended, or multiply: with torch.no_grad(): layer.weight *= intended_std / "
        "std.",
    ),
    "fan mode": _Words(
        "warning",
        "Signals change at every change of width: {} with the wrong fan",
        "torch.nn.init.kaiming_normal_(layer.weight, mode='fan_in', nonlinearity='relu') keeps "
        "activations, mode='fan_out' gradients: use one throughout.",
    ),
    "residual scaling": _Words(
        "warning",
        "Some residual branches count more than others: {} unlike their siblings",
        "Scale the last layer of every branch: torch.nn.init.normal_(layer.weight, std=0.02 / "
        "math.sqrt(2 * blocks)).",
    ),
    "shifted": _Words(
        "warning",
        "Units start alike, because weights have a mean: {} off centre",
        "with torch.no_grad(): layer.weight -= layer.weight.mean().",
    ),
    "tied": _Words(
        "warning",
        "Logits start far too large: {} tied to an embedding",
        "torch.nn.init.normal_(embedding.weight, std=embedding.embedding_dim ** -0.5), or 0.02.",
    ),
    "copied": _Words(
        "warning",
        "Layers start as copies of each other: {} not drawn independently",
        "Build each block anew: nn.ModuleList(Block() for _ in range(depth)). Share a weight by "
        "head.weight = embedding.weight.",
    ),
    "copied in sequence": _Words(
        "note",
        "Blocks start as copies of each other, and part at the first step: {}",
        "Nothing has to change. To draw each anew: for p in model.parameters(): if p.dim() > 1: "
        "torch.nn.init.xavier_uniform_(p), as nn.Transformer does.",
    ),
    "low precision": _Words(
        "note",
        "Weights were drawn with few bits: {} on a coarse grid",
        "Draw in float32 and convert afterwards: model.apply(init).to(torch.bfloat16).",
    ),
    "reshaped": _Words(
        "note",
        "Weights have the intended scale but another law: {}",
        "Nothing depends on it but extremes: see that init is the function that you meant.",
    ),
}


def conclude_initialisation(found: Initialisation | None, reason: str = "") -> list[Finding]:
    """Turn the record into findings, one for each fault; or say why there is no record."""
    if found is None:
        return [Finding("note", "Initial weights were not checked", reason)] if reason else []
    if not found.faults:
        return [_healthy(found)]
    return [_finding(fault) for fault in found.faults]


def _finding(fault: InitialisationFault) -> Finding:
    words = _WORDS[fault.kind]
    noun = "module" if fault.kind == "running statistics" else "parameter"
    some = fault.parameters
    named = " and ".join(some) if len(some) <= _NAMED else wording.count(len(some), noun)
    title = words.title.format(named)
    detail = f"{wording.listed(fault.parameters)} (of {fault.of} compared). {fault.detail}"
    return Finding(words.severity, title, detail, words.remedy)


def _healthy(found: Initialisation) -> Finding:
    followed = [p for p in found.parameters if p.verdict == "as intended"]
    judged = [p for p in found.parameters if p.verdict != "not judged"]
    trained = [p.name for p in found.parameters if p.looks_trained]
    if trained:
        return Finding(
            "note",
            "These weights look trained, not as an initialiser leaves them",
            f"{wording.listed(trained)} have a preferred direction, or are no longer constant. No "
            "layer among them looks fresh.",
            "To check the initialisation, give the model before training.",
        )
    if not judged:
        return Finding(
            "note",
            "Nothing is known of how these weights were meant to start",
            "No module has a reset_parameters that explains them, and no three layers agree.",
            "Name your init function: diagnosis.initialisation(model, init).",
        )
    source = f"what {found.init} draws" if found.init else "PyTorch's default or their siblings"
    detail = (
        f"{len(followed)} of {wording.count(len(found.parameters), 'parameter')} follow {source}, "
        f"within {wording.number(found.threshold, 2)} standard errors."
    )
    others = [p for p in judged if p.verdict == "exception"]
    if others:
        detail += (
            " Different, as is common: "
            f"{wording.listed([f'{p.name} ({p.explanation})' for p in others], 2)}."
        )
    unjudged = len(found.parameters) - len(judged)
    if unjudged:
        detail += f" Not judged: {unjudged}, too small or with nothing to compare them with."
    return Finding("good", "Weights start as they were meant to", detail)
