"""Everything that a training's next step depends on, captured and put back to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from equipoise.training import sharded
from equipoise.training.batches import Batches
from equipoise.training.distributed import Ranks, of_all
from equipoise.training.layout import Layout
from equipoise.training.random_states import capture_random_states, restore_random_states


class Stateful(Protocol):
    """What else has a state: a preconditioner, an average of weights, a ``GradScaler``."""

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
        """What must be the same for one training to continue another."""
        scheduler = self.scheduler
        groups = [len(group["params"]) for group in self.optimizer.param_groups]
        return {
            "tensor": _shapes(self.model),
            "optimizer": type(self.optimizer).__name__,
            "parameters by group": groups,
            "option": _options(self.optimizer.defaults),
            "scheduler": None if scheduler is None else type(scheduler).__name__,
            "also": sorted(self.also),
            "data": self.batches.identity,
            "batch statistics": self.layout.statistics,
        }

    def capture(self) -> dict[str, Any]:
        """Copy all states, on every rank alike; rank 0's file serves all."""
        states = {
            "model": sharded.whole(self.model.state_dict()),
            "optimizer": sharded.whole(self.optimizer.state_dict()),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "also": {name: part.state_dict() for name, part in self.also.items()},
            "random": of_all(capture_random_states(self.model), self.here),
        }
        return {"identity": self.identity(), **states}

    def restore(self, state: dict[str, Any]) -> None:
        """Put all states back.

        Raises:
            ValueError: If a part refuses its state.
        """
        sharded.load_model(self.model, state["model"])
        sharded.load_optimizer(self.optimizer, state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        for name, part in self.also.items():
            part.load_state_dict(state["also"][name])
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


def _options(defaults: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's options as it was made, before a schedule changed them."""
    plain = {
        name: value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
        for name, value in defaults.items()
    }
    return {
        name: value
        for name, value in plain.items()
        if value is None or isinstance(value, bool | int | float | str | tuple)
    }
