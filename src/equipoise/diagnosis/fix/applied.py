"""Make the changes of a remedy in a model, and undo them."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from equipoise.diagnosis.fix.kinds.kind import Undo
from equipoise.diagnosis.fix.kinds.registry import kind_of
from equipoise.diagnosis.fix.record import Fix
from equipoise.diagnosis.fix.remedy import Remedy
from equipoise.instrument.modules import without_shortcuts
from equipoise.instrument.recording.graph import Graph
from equipoise.preconditioners.bnp.bnp import BNP
from equipoise.records.codec import from_plain

# What lines of code need, if they are to work where they are pasted.
_IMPORTS = {
    r"\bequipoise\.": "import equipoise",
    r"\btorch\.": "import torch",
    r"\bnn\.": "from torch import nn",
    r"\bDataLoader\(": "from torch.utils.data import DataLoader",
}


@dataclass(slots=True, eq=False)
class Applied:
    """A model in which the changes of a remedy were made.

    Args:
        model: The changed model, the same object as before.
        remedy: What was changed.
    """

    model: nn.Module
    remedy: Remedy
    _undo: list[Undo] = field(default_factory=list, repr=False)

    def undo(self) -> nn.Module:
        """Restore the model, bit for bit unless it was trained or moved since; once.

        Raises:
            RuntimeError: If it was undone before.
        """
        if not self._undo:
            raise RuntimeError("this remedy was undone before. Apply it again first.")
        while self._undo:
            self._undo.pop()()
        return self.model

    def attach(self, optimizer: torch.optim.Optimizer) -> AbstractContextManager[Any]:
        """Attach to an optimiser what the remedy changes about its steps, if anything.

        Returns:
            A context that ends it; it may also be left open.
        """
        if "bnp" in self.remedy.kinds:
            return BNP(self.model).attach(optimizer)
        return contextlib.nullcontext()


def apply(model: nn.Module, remedy: Remedy | str | Path | None) -> Applied:
    r"""Change a model as a remedy says.

    Parameters keep their identity, so that an optimiser made before remains valid, and lose
    nothing: γ and β of an exchanged norm are the same tensors.

    Args:
        model: Changed in place.
        remedy: A remedy; its name, such as ``"norm=group:8 shift=0.5"``; or the path of a
            ``remedy.json`` that a fix was saved with. ``None``, the best of a fix in which none
            helped, is refused. Groups must divide the channels of every norm that is exchanged.

    Returns:
        The model and a way to undo the change. What a remedy changes about steps (BNP) starts with
        ``.attach(optimizer)``.

    Raises:
        ValueError: If the remedy does not fit the model, which is then as it was.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
        >>> applied = apply(model, "norm=group:2 shift=0.5")
        >>> model[1], model[1].bias.tolist()[:2]
        (GroupNorm(2, 8, eps=1e-05, affine=True...), [0.5, 0.5])
        >>> applied.undo()[1], model[1].bias.tolist()[:2]
        (BatchNorm1d(8, eps=1e-05...), [0.0, 0.0])
    """
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"apply changes a torch.nn.Module, got {type(model).__name__}. Wrap a factory: "
            "equipoise.diagnosis.fixed(factory, remedy)."
        )
    if remedy is None:
        raise ValueError(
            "there is no remedy to apply: .best of a fix is None where none helps. Its .arms say "
            "what was tried."
        )
    wanted = as_remedy(remedy)
    applied = Applied(model, wanted)
    applied._undo.append(without_shortcuts(model))
    try:
        for edit in wanted.edits:
            applied._undo.append(kind_of(edit).change_model(model, edit))
    except Exception:
        while applied._undo:
            applied._undo.pop()()
        raise
    return applied


def fixed(
    build: Callable[..., nn.Module], remedy: Remedy | str | Path
) -> Callable[..., nn.Module]:
    """Wrap a factory, so that what it builds is changed as a remedy says.

    Args:
        build: Returns a new model.
        remedy: As for :func:`apply`.

    Returns:
        A factory that takes the same arguments.

    Raises:
        ValueError: If it is a model in the place of a factory, or there is no such remedy.

    Examples:
        >>> build = fixed(lambda width: nn.Sequential(nn.BatchNorm1d(width)), "shift=0.5")
        >>> build(3)[0].bias.tolist()
        [0.5, 0.5, 0.5]
    """
    if isinstance(build, nn.Module) or not callable(build):
        raise ValueError(
            f"fixed wraps a factory, got {type(build).__name__}. Change a model with "
            "equipoise.apply(model, remedy)."
        )
    return partial(_build_and_change, build, as_remedy(remedy))


def _build_and_change(
    build: Callable[..., nn.Module], remedy: Remedy, *args: Any, **kwargs: Any
) -> nn.Module:
    return apply(build(*args, **kwargs), remedy).model


def as_remedy(given: Remedy | str | Path) -> Remedy:
    """Read a remedy from its name or its file.

    Raises:
        ValueError: If it is neither.
    """
    whatever: object = given
    if isinstance(whatever, Fix):
        raise ValueError("a fix was given in the place of a remedy. Take its .best.")
    if isinstance(given, Remedy):
        return given
    if isinstance(given, Path) or str(given).endswith(".json"):
        path = Path(given)
        try:
            return from_plain(Remedy, json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{path} holds no remedy: {error}. Name the remedy.json of a saved fix."
            ) from error
    if not isinstance(given, str):
        raise ValueError(
            "a remedy is given by its name, such as 'norm=group:8', its file or itself; got "
            f"{given!r:.60}."
        )
    return Remedy.named(given)


def change_graph(graph: Graph, remedy: Remedy, model: nn.Module) -> Graph:
    """Change a traced pass of a model as a remedy changes the model.

    Raises:
        ValueError: If the remedy does not fit, or theory does not know what it does.
    """
    for edit in remedy.edits:
        graph = kind_of(edit).change_graph(graph, edit, model)
    return graph


def code_lines(remedy: Remedy) -> tuple[str, ...]:
    """Lines that change ``model`` and attach to ``optimizer``, after what they import."""
    lines = [line for edit in remedy.edits for line in kind_of(edit).code(edit)]
    imports = [
        line for name, line in _IMPORTS.items() if any(re.search(name, code) for code in lines)
    ]
    return (*imports, *lines)
