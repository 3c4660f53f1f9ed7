"""Everything that a training's next step depends on: described, captured, restored to the bit.

FSDP2 splits tensors over processes. They are captured in one piece and split again when they are
restored, so that any number of ranks can continue. What gathers or splits tensors is a collective
operation: all ranks must call it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from equipoise.instrument import RandomStates
from equipoise_papers.big.batches import Batches
from equipoise_papers.big.distributed import Ranks, from_all_ranks
from equipoise_papers.big.layout import Layout, batch_norms

# What PyTorch's schedulers count; their other plain values are settings.
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
    """An object with a state, such as a preconditioner or an average of weights."""

    def state_dict(self) -> dict[str, Any]:
        """The state, as tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Continue from it."""


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The objects that a training changes.

    Args:
        model: Without a wrapper.
        optimizer: Of its parameters.
        scheduler: Of the optimizer.
        also: Other objects with a state, by name.
        batches: The number of steps is their position.
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
        """What must be equal for one training to continue another.

        To be read before the first step, because schedules change options with every step.
        """
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
            "number of": RandomStates(self.model).counts,
            "batch norms": batch_norms(self.model),
            "batch statistics": self.layout.statistics,
        }

    def capture(self) -> dict[str, Any]:
        """Copy all states; every rank gets the same, with the random states of all ranks."""
        return {
            "model": full_copy(self.model.state_dict()),
            "optimizer": full_copy(self.optimizer.state_dict()),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "also": {name: part.state_dict() for name, part in self.also.items()},
            "random": from_all_ranks(RandomStates(self.model).state_dict(), self.here),
        }

    def restore_scheduler_and_also(self, saved: dict[str, Any]) -> None:
        """Restore first the parts whose ``load_state_dict`` can fail."""
        if self.scheduler is not None:
            self.scheduler.load_state_dict(saved["scheduler"])
        for name, part in self.also.items():
            part.load_state_dict(saved["also"][name])

    def restore_model_and_optimizer(self, saved: dict[str, Any]) -> None:
        """Restore model and optimizer, and at last this rank's random states.

        Ranks that the saved training did not have keep their own random states.
        """
        _load_model(self.model, saved["model"])
        _load_optimizer(self.optimizer, saved["optimizer"])
        # Last, because loading may draw random numbers.
        if self.here.rank < len(saved["random"]):
            RandomStates(self.model).load_state_dict(saved["random"][self.here.rank])

    def weights_are_finite(self) -> bool:
        """Whether all trained parameters are finite, on all ranks."""
        parts = (
            p.to_local() if _is_split(p) else p  # type: ignore[attr-defined]  # only a DTensor has it
            for p in self.model.parameters()
            if p.requires_grad
        )
        return all(from_all_ranks(all(bool(part.isfinite().all()) for part in parts), self.here))


def is_split(model: nn.Module) -> bool:
    """Whether ``fully_shard`` has split the model's parameters over processes."""
    return any(_is_split(parameter) for parameter in model.parameters())


def full_copy(state: Any) -> Any:
    """Copy a nested state, with every tensor in one piece on the CPU."""
    if isinstance(state, Tensor):
        # Only a DTensor has full_tensor, and Tensor does not declare it.
        full = state.full_tensor() if _is_split(state) else state  # type: ignore[attr-defined]
        copied: Tensor = full.detach().to("cpu", copy=True)
        return copied
    if isinstance(state, dict):
        twin = copy.copy(state)  # keeps a default factory, and the versions of modules
        for key, value in state.items():  # not update(), by which a Counter adds
            twin[key] = full_copy(value)
        return twin
    if isinstance(state, list | tuple):
        values = [full_copy(value) for value in state]
        return type(state)(*values) if hasattr(state, "_fields") else type(state)(values)
    return state


def _load_model(model: nn.Module, state: dict[str, Tensor]) -> None:
    own = model.state_dict()
    split = copy.copy(state)  # with the versions of modules, which some need to read old states
    split.update((name, _split_like(value, own[name])) for name, value in state.items())
    model.load_state_dict(split)


def _load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load a full state, split as the parameters are, with the dtypes that it has.

    PyTorch's ``load_state_dict`` casts states to the dtype of their parameter, and a resumed
    training would no longer equal an uninterrupted one.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    split = {
        index: {
            name: _split_like(value, parameters[index])
            if isinstance(value, Tensor) and value.shape == parameters[index].shape
            else value
            for name, value in entry.items()
        }
        for index, entry in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": split})
    for index, entry in split.items():
        loaded = optimizer.state[parameters[index]]
        for name, value in entry.items():
            if isinstance(value, Tensor) and loaded[name].dtype != value.dtype:
                loaded[name] = value.to(loaded[name].device)


def _is_split(tensor: Tensor) -> bool:
    # A DTensor, without the 0.7 s that importing it takes.
    return type(tensor) not in (Tensor, nn.Parameter) and hasattr(tensor, "placements")


def _split_like(value: Tensor, like: Tensor) -> Tensor:
    if not _is_split(like):
        return value
    from torch.distributed.tensor import distribute_tensor  # not in every build of PyTorch

    # As above: only a DTensor has these.
    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    return distribute_tensor(value.to(like.device), mesh, placements)


def _shapes(model: nn.Module) -> dict[str, str]:
    """Dtype and full shape of every tensor of a model's state, by name."""
    return {
        name: f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }


def _options(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The plain options of every group, with the rate from which a schedule starts."""
    found = {}
    for number, group in enumerate(groups):
        suffix = f" of group {number}" if len(groups) > 1 else ""
        for name, value in (group | {"lr": group.get("initial_lr", group.get("lr"))}).items():
            plain = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
            if name != "initial_lr" and isinstance(plain, bool | int | float | str | tuple | None):
                found[f"{name}{suffix}"] = plain
    return found


def _settings(state: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): _plain(value) for name, value in state.items() if name not in _COUNTERS}


def _plain(value: Any) -> Any:
    """A value that can be compared and stored; the type's name for values that cannot."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return _settings(value)
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    plain = isinstance(value, bool | int | float | str | None)
    return value if plain else type(value).__name__
