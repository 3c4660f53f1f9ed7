"""Every random state that a training may draw from: as plain values, or kept over a block."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def random_sources(model: nn.Module) -> dict[str, int]:
    """How many accelerators a model is on, and how many generators its modules own."""
    return {"accelerators": len(_devices(model)), "own generators": len(_own(model))}


def capture_random_states(model: nn.Module) -> dict[str, Any]:
    """Copy the states of PyTorch, NumPy, Python and the model's own generators.

    Args:
        model: Its device and the generators that its modules keep as attributes count.
    """
    # NumPy's global state is what users' code draws from.
    numpy: Any = np.random.get_state()  # noqa: NPY002
    name, keys, *rest = numpy
    return {
        "torch": torch.get_rng_state(),
        "devices": [torch.get_device_module(d).get_rng_state(d) for d in _devices(model)],
        "own": [generator.get_state() for generator in _own(model)],
        "numpy": [str(name), torch.from_numpy(keys.astype(np.int64)), *rest],
        "python": random.getstate(),
    }


def restore_random_states(model: nn.Module, states: dict[str, Any]) -> None:
    """Put back what :func:`capture_random_states` returned.

    Raises:
        ValueError: If the model has other devices or generators now.
    """
    pairs = _pairs("accelerators", _devices(model), states["devices"])
    own = _pairs("random generators of its own", _own(model), states["own"])
    for device, state in pairs:
        torch.get_device_module(device).set_rng_state(state, device)
    for generator, state in own:
        generator.set_state(state)
    torch.set_rng_state(states["torch"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))


def forked(device: torch.device) -> AbstractContextManager[None]:
    """PyTorch's draws inside this block leave no trace, on the CPU and on this device."""
    accelerators = [] if device.type == "cpu" else [device]
    # PyTorch does not annotate it.
    fork: Callable[..., AbstractContextManager[None]] = torch.random.fork_rng
    return fork(accelerators, device_type=device.type)


def _pairs(what: str, here: list[Any], saved: list[Tensor]) -> list[tuple[Any, Tensor]]:
    if len(here) != len(saved):
        raise ValueError(
            f"the checkpoint is of a model on {len(saved)} {what}, this one has {len(here)}. "
            "Go on with the model and on the kind of device that it was written with."
        )
    return list(zip(here, saved, strict=True))


def _devices(model: nn.Module) -> list[torch.device]:
    tensors = (*model.parameters(), *model.buffers())
    return sorted({t.device for t in tensors if t.device.type not in ("cpu", "meta")}, key=str)


def _own(model: nn.Module) -> list[torch.Generator]:
    found = {id(v): v for module in model.modules() for v in vars(module).values()}
    return [value for value in found.values() if isinstance(value, torch.Generator)]
