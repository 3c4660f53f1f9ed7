"""State of models that FSDP2 splits over processes: gathered whole, and split again.

Every function here is a collective operation: all ranks call it alike.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from equipoise_papers.big.distributed import Ranks, of_all


def is_sharded(model: nn.Module) -> bool:
    """Whether ``fully_shard`` has split the model's parameters."""
    return any(_is_split(parameter) for parameter in model.parameters())


def all_finite(model: nn.Module, here: Ranks) -> bool:
    """Whether the model's trained parameters are finite, on every rank."""
    parts = (
        p.to_local() if _is_split(p) else p  # type: ignore[attr-defined]  # only a DTensor has it
        for p in model.parameters()
        if p.requires_grad
    )
    return all(of_all(all(bool(part.isfinite().all()) for part in parts), here))


def whole(state: Any) -> Any:
    """Copy a nested state with every tensor in one piece, on the CPU; other things as they are."""
    if isinstance(state, Tensor):
        # Only a DTensor gets to full_tensor, and Tensor does not declare it.
        full = state.full_tensor() if _is_split(state) else state  # type: ignore[attr-defined]
        copied: Tensor = full.detach().to("cpu", copy=True)
        return copied
    if isinstance(state, dict):
        twin = copy.copy(state)  # keeps a factory, and what modules note of their versions
        for key, value in state.items():  # not update(), by which a Counter adds
            twin[key] = whole(value)
        return twin
    if isinstance(state, list | tuple):
        values = [whole(value) for value in state]
        return type(state)(*values) if hasattr(state, "_fields") else type(state)(values)
    return state


def load_model(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Load a whole state, splitting what the model has split."""
    own = model.state_dict()
    split = copy.copy(state)  # with the versions of modules, by which they translate old states
    split.update((name, _split_like(value, own[name])) for name, value in state.items())
    model.load_state_dict(split)


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """The same for an optimizer, whose states are split as their parameters are.

    PyTorch casts them to their parameter's type; here they keep their own, as in a training
    that was never interrupted.
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
    return type(tensor) not in (Tensor, nn.Parameter) and hasattr(tensor, "placements")


def _split_like(value: Tensor, like: Tensor) -> Tensor:
    if not _is_split(like):
        return value
    from torch.distributed.tensor import distribute_tensor  # not in every build of PyTorch

    # As above: only a DTensor has these.
    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    return distribute_tensor(value.to(like.device), mesh, placements)
