"""What an exchange of normalisation layers did, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, slots=True)
class Changed:
    """A layer that was exchanged.

    Attributes:
        names: Every path under which the model holds it.
        before: The old layer, as printed.
        after: The new layer, as printed.
        kept: Parameters and statistics that the new layer took over.
        lost: Those that it has no use for.
        note: What to see to, or nothing.
    """

    names: tuple[str, ...]
    before: str
    after: str
    kept: tuple[str, ...]
    lost: tuple[str, ...]
    note: str = ""

    def __str__(self) -> str:
        lost = f"; lost {', '.join(self.lost)}" if self.lost else ""
        note = f" ({self.note})" if self.note else ""
        return f"{', '.join(map(repr, self.names))}: {self.before} -> {self.after}{lost}{note}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A layer that stayed.

    Attributes:
        names: Every path under which the model holds it.
        layer: Its class.
        reason: Why, and what to do.
    """

    names: tuple[str, ...]
    layer: str
    reason: str

    def __str__(self) -> str:
        return f"{', '.join(map(repr, self.names))}: {self.layer} stays: {self.reason}"


@dataclass(frozen=True, slots=True)
class Conversion:
    """A model with other normalisation layers, and what happened to each.

    Attributes:
        model: The converted model.
        changed: Layers exchanged, in the order of the model.
        skipped: Layers of the wanted kind that stayed.
    """

    model: nn.Module
    changed: tuple[Changed, ...]
    skipped: tuple[Skipped, ...]

    def __str__(self) -> str:
        lines = [*map(str, self.changed), *map(str, self.skipped)]
        return "\n".join(lines) or "no layer of that kind"
