"""The layers of a model with their statistics, one flat set for each device and type."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from equipoise.preconditioners.bnp.layer import UpdateSchedule, WatchedLayer
from equipoise.preconditioners.bnp.maps import Factors
from equipoise.preconditioners.bnp.settings import Settings
from equipoise.preconditioners.bnp.statistics import RunningStatistics, reduce_over, replicas

_AVERAGES = ("mean", "variance")
_SAVED = (*_AVERAGES, "weight", "updates")  # one number per feature
_SAVED_SCALARS = ("samples", "positions")


class Bank:
    """Layers whose weights share a device and a type.

    Args:
        layers: In the order of the model.
        settings: Averaging constants and rules.
    """

    def __init__(self, layers: Sequence[WatchedLayer], settings: Settings) -> None:
        self.layers = tuple(layers)
        self.key = layers[0].key
        self.statistics = RunningStatistics([w.geometry for w in layers], settings, *self.key)
        self._factors: dict[bool, tuple[list[bool], dict[str, Factors]]] = {}

    def update(self, group: dist.ProcessGroup | None, *, first: bool, eager: bool) -> None:
        """Average the pending moments in, of all replicas together."""
        parts = [layer.take() for layer in self.layers]
        together = replicas(group) > 1
        if not together and not any(parts):
            return
        step = self.statistics.join(parts)
        if together:
            shift = None if first else self.statistics.mean
            step = reduce_over(step, self.statistics.owner, group, shift)
        self.statistics.update(step, eager=eager)
        self._factors.clear()
        for layer, part, shift in zip(self.layers, parts, self.statistics.means, strict=True):
            if part is not None:
                layer.shift = shift

    def factors(self, *, squared: bool) -> dict[str, Factors]:
        """Factors of the layers' maps, by name of the layer and in their order."""
        centred = [layer.centred for layer in self.layers]
        cached = self._factors.get(squared)
        if cached is None or cached[0] != centred:
            found = self.statistics.factors(centred, squared=squared)
            names = (layer.name for layer in self.layers)
            cached = (centred, dict(zip(names, found, strict=True)))
            self._factors[squared] = cached
        return cached[1]

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Statistics by layer, as copies."""
        s = self.statistics
        flat = {name: s.by_layer(getattr(s, name)) for name in _SAVED}
        flat |= {name: getattr(s, name).unbind() for name in _SAVED_SCALARS}
        return {
            layer.name: {name: values[i].clone() for name, values in flat.items()}
            | {"seen": torch.tensor(s.seen[i], device="cpu")}
            for i, layer in enumerate(self.layers)
        }

    def load(self, state: dict[str, dict[str, Tensor]]) -> None:
        """Replace the statistics by a state that :func:`check_state` has accepted."""
        s = self.statistics
        mine = [state[layer.name] for layer in self.layers]

        def joined(name: str) -> Tensor:
            together = torch.cat([entry[name].reshape(-1) for entry in mine])
            return together.to(device=s.device, dtype=s.dtype)

        for name in ("weight", "updates", *_SAVED_SCALARS):
            setattr(s, name, joined(name))
        s.seen = [int(entry["seen"]) for entry in mine]
        s.replace(torch.stack([joined(name) for name in _AVERAGES]))
        self._factors.clear()
        pairs = zip(self.layers, s.means, s.by_layer(s.updates), strict=True)
        for layer, shift, updates in pairs:
            layer.pending = None
            layer.shift = shift if bool(updates.any()) else None


class Banks:
    """All layers of a model.

    Args:
        layers: In the order of the model.
        settings: Averaging constants and rules.
        schedule: Which optimizer steps update the statistics.
        group: Processes that share gradients.
    """

    def __init__(
        self,
        layers: Sequence[WatchedLayer],
        settings: Settings,
        schedule: UpdateSchedule,
        group: dist.ProcessGroup | None,
    ) -> None:
        self.layers = tuple(layers)
        self.settings = settings
        self.schedule = schedule
        self.group = group
        self._banks: list[Bank] = []

    @property
    def banks(self) -> list[Bank]:
        """Built when first needed, and again when the model has moved or changed type."""
        # Only these layers are compared: a bank's layers share a key by construction.
        if not self._banks or any(w.key != b.key for b in self._banks for w in b.layers):
            state = self.state()
            by_key: dict[Any, list[WatchedLayer]] = {}
            for layer in self.layers:
                by_key.setdefault(layer.key, []).append(layer)
            pending = [layer.pending for layer in self.layers]
            self._banks = [Bank(group, self.settings) for group in by_key.values()]
            if state:
                for bank in self._banks:
                    bank.load(state)
                for layer, moments in zip(self.layers, pending, strict=True):
                    layer.pending = moments
        return self._banks

    def update(self) -> None:
        """Average the pending moments in, if this step updates the statistics."""
        if self.schedule.recording:
            for bank in self.banks:
                first, eager = self.schedule.steps == 0, self.schedule.eager
                bank.update(self.group, first=first, eager=eager)

    def factors(self, *, squared: bool) -> dict[str, Factors]:
        """Factors of all layers' maps, by name of the layer."""
        # A whole model moves, not one layer of it, so comparing one is enough here.
        moved = not self._banks or self._banks[0].key != self._banks[0].layers[0].key
        banks = self.banks if moved else self._banks
        if len(banks) == 1:
            return banks[0].factors(squared=squared)
        return {name: f for bank in banks for name, f in bank.factors(squared=squared).items()}

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Statistics by layer, as copies."""
        return {name: entry for bank in self._banks for name, entry in bank.state().items()}

    def load(self, state: dict[str, dict[str, Tensor]]) -> None:
        """Replace all statistics by a state that :func:`check_state` has accepted."""
        for bank in self.banks:
            bank.load(state)


def check_state(state: dict[str, dict[str, Tensor]], layers: Sequence[WatchedLayer]) -> None:
    """Refuse a state that does not fit the layers.

    Raises:
        ValueError: If it is that of other layers, or of other statistics.
        AttributeError, KeyError, TypeError: If it is not made as a state is.
    """
    here = {layer.name for layer in layers}
    if state.keys() != here:
        missing, foreign = sorted(here - state.keys()), sorted(state.keys() - here)
        raise ValueError(
            f"The saved state is of other layers: missing {missing}, not in this model {foreign}. "
            "Build BNP with the model, include and exclude that it was saved with."
        )
    for layer in layers:
        entry = state[layer.name]
        operator.index(entry["seen"])
        saved = {entry[name].numel() for name in _SAVED}
        scalars = {entry[name].numel() for name in _SAVED_SCALARS}
        if saved != {layer.geometry.length} or scalars != {1}:
            raise ValueError(
                f"The saved state has {max(saved)} means for {layer.name!r}, which needs "
                f"{layer.geometry.length}. Use the layer sizes and conv_stats it was saved with."
            )
        for name in (*_SAVED, *_SAVED_SCALARS):
            if not _are_numbers(entry[name], negative=name == "mean"):
                raise ValueError(
                    f"The saved state's {name} of {layer.name!r} is not of finite real numbers"
                    f"{'' if name == 'mean' else ' that are not negative'}. Give what "
                    "BNP.state_dict() returned, unchanged."
                )


def _are_numbers(values: Tensor, *, negative: bool) -> bool:
    """Whether a tensor is dense, in memory, real and finite, and not negative unless it may be."""
    if values.layout is not torch.strided or values.is_meta or values.is_complex():
        return False
    return bool((values.isfinite() & ((values >= 0) | negative)).all())
