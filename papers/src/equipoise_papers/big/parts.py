"""Everything that a training's next step depends on, captured and put back to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from equipoise_papers.big import sharded
from equipoise_papers.big.batches import Batches
from equipoise_papers.big.distributed import Ranks, of_all
from equipoise_papers.big.layout import Layout, batch_norms
from equipoise_papers.big.random_states import (
    capture_random_states,
    random_sources,
    restore_random_states,
)

# What schedulers of PyTorch count; the rest of their plain values are settings.
_COUNTERS = frozenset(
    {
        "last_epoch",
        "T_cur",
        "T_i",
        "_step_count",
        "_last_lr",
        "_is_initial",
        "_get_lr_called_within_step",
    }
)


class Stateful(Protocol):
    """What else has a state, such as a preconditioner or an average of weights."""

    def state_dict(self) -> dict[str, Any]:
        """The state, as tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Continue from it."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects that a training changes.

    Args:
        model: Without a wrapper.
        optimizer: Of its parameters.
        scheduler: Of the optimizer.
        also: Other objects with a state, by name.
        batches: Their position is the number of steps.
        layout: What a step is made of.
        here: This process.
    """

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler | None
    also: Mapping[str, Stateful]
    batches: Batches
    layout: Layout
    here: Ranks = field(default_factory=Ranks)

    def identity(self) -> dict[str, Any]:
        """What must be the same for one training to continue another; asked before a step."""
        scheduler = self.scheduler
        groups = [len(group["params"]) for group in self.optimizer.param_groups]
        return {
            "tensor": _shapes(self.model),
            "optimizer": type(self.optimizer).__name__,
            "parameters by group": groups,
            "option": _options(self.optimizer.param_groups),
            "scheduler": None if scheduler is None else type(scheduler).__name__,
            "schedule": {} if scheduler is None else _settings(scheduler.state_dict()),
            "also": sorted(self.also),
            "data": self.batches.identity,
            "number of": random_sources(self.model),
            "batch norms": batch_norms(self.model),
            "batch statistics": self.layout.statistics,
        }

    def capture(self) -> dict[str, Any]:
        """Copy all states, on every rank alike; rank 0's file serves all."""
        return {
            "model": sharded.whole(self.model.state_dict()),
            "optimizer": sharded.whole(self.optimizer.state_dict()),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "also": {name: part.state_dict() for name, part in self.also.items()},
            "random": of_all(capture_random_states(self.model), self.here),
        }

    def restore_also(self, state: dict[str, Any]) -> None:
        """Put back first what may refuse its state, for whatever reason it has."""
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        for name, part in self.also.items():
            part.load_state_dict(state["also"][name])

    def restore(self, state: dict[str, Any]) -> None:
        """Put all other states back, on every rank alike."""
        sharded.load_model(self.model, state["model"])
        sharded.load_optimizer(self.optimizer, state["optimizer"])
        # Last, for loading might draw. Ranks that were not there before keep their own states.
        if self.here.rank < len(state["random"]):
            restore_random_states(self.model, state["random"][self.here.rank])


def _shapes(model: nn.Module) -> dict[str, str]:
    """Type and whole shape of every tensor of a model's state, by name."""
    return {
        name: f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        for name, value in model.state_dict().items()
        if isinstance(value, torch.Tensor)
    }


def _options(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The plain options of every group, with the rate from which a schedule starts."""
    found = {}
    for number, group in enumerate(groups):
        whose = f" of group {number}" if len(groups) > 1 else ""
        for name, value in (group | {"lr": group.get("initial_lr", group.get("lr"))}).items():
            one = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
            if name != "initial_lr" and isinstance(one, bool | int | float | str | tuple | None):
                found[f"{name}{whose}"] = one
    return found


def _settings(state: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): _plain(value) for name, value in state.items() if name not in _COUNTERS}


def _plain(value: Any) -> Any:
    """Values that compare and can be stored; of others their type, as functions have no state."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return _settings(value)
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    plain = isinstance(value, bool | int | float | str | None)
    return value if plain else type(value).__name__
