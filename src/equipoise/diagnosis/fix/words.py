"""What remedies change, in a few words."""

from __future__ import annotations

from equipoise.diagnosis.fix.remedy import Edit, Remedy

UNCHANGED = "as it is"

LETTERS = {"shift": "β", "scale": "γ"}
_NORMS = {
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

_ACTIVATIONS = {"relu": "ReLU", "leaky_relu": "leaky ReLU", "gelu": "GELU"}


def in_words(remedy: Remedy | None) -> str:
    """Say what a remedy changes; of none, that the model is as it is."""
    if remedy is None:
        return UNCHANGED
    return ", ".join(map(edit_in_words, remedy.edits))


def edit_in_words(edit: Edit) -> str:
    """Say what one edit changes.

    Raises:
        ValueError: If there is no kind of that name.

    Examples:
        >>> edit_in_words(Edit("norm", 8, "group"))
        'group norm of 8 groups instead of every norm'
        >>> edit_in_words(Edit("activation", choice="leaky_relu"))
        'leaky ReLU instead of every activation'
    """
    match edit.kind:
        case "shift" | "scale":
            return f"start every norm's {edit.kind} {LETTERS[edit.kind]} at {edit.value:g}"
        case "eps":
            return f"set every norm's ε to {edit.value:g}"
        case "weights":
            return edit.choice or f"scale {len(edit.factors)} parameters"
        case "activation":
            rest = " but gates and outputs" if edit.kept else ""
            name = _ACTIVATIONS.get(edit.choice, edit.choice)
            return f"{name} instead of every activation{rest}"
        case "norm":
            return f"{_norm(edit)} instead of every norm"
        case "bnp":
            return "BNP"
        case "batch":
            return f"batches of {edit.value:g} samples"


def _norm(edit: Edit) -> str:
    name = _NORMS.get(edit.choice, edit.choice)
    if edit.choice == "group" and edit.value is not None:
        name += f" of {edit.value:g} groups"
    if edit.choice == "ghost" and edit.value is not None:
        name += f" over {edit.value:g} samples"
    if edit.choice == "batch_renorm" and edit.value is not None:
        name += f" after {edit.value:g} steps"
    return name
