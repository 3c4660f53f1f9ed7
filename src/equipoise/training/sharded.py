"""State of models that FSDP2 splits over processes: gathered whole, and split again.

Every function here is a collective operation: all ranks call it alike.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer


def is_sharded(model: nn.Module) -> bool:
    """Whether ``fully_shard`` has split the model's parameters."""
    return any(_is_split(parameter) for parameter in model.parameters())


def whole(state: Any) -> Any:
    """Copy a nested state with every tensor in one piece, on the CPU."""
    if isinstance(state, Tensor):
        # Only a DTensor gets to full_tensor, and Tensor does not declare it.
        full = state.full_tensor() if _is_split(state) else state  # type: ignore[attr-defined]
        copied: Tensor = full.detach().to("cpu", copy=True)
        return copied
    if isinstance(state, dict):
        return type(state)((key, whole(value)) for key, value in state.items())
    if isinstance(state, list | tuple):
        return type(state)(whole(value) for value in state)
    return state


def load_model(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Load a whole state, splitting what the model has split."""
    own = model.state_dict()
    model.load_state_dict({name: _split_like(value, own[name]) for name, value in state.items()})


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """The same for an optimizer, whose states are split as their parameters are."""
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


def _is_split(tensor: Tensor) -> bool:
    return type(tensor) not in (Tensor, nn.Parameter) and hasattr(tensor, "placements")


def _split_like(value: Tensor, like: Tensor) -> Tensor:
    if not _is_split(like):
        return value
    from torch.distributed.tensor import distribute_tensor  # not in every build of PyTorch

    # As above: only a DTensor has these.
    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    return distribute_tensor(value.to(like.device), mesh, placements)
