"""Where trainings are computed: on the CPU, or on a GPU where the user asks for one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

# Worker processes inherit it from the command that sets it.
DEVICE_VARIABLE = "EQUIPOISE_DEVICE"


def training_device(*, large: bool = False) -> torch.device:
    """Device of a training: the one that ``--device`` names; otherwise the CPU.

    Args:
        large: Whether the training has the paper's size and data, and so takes a GPU unasked if
            there is one. Smaller ones stay on the CPU, for the same numbers everywhere.

    Raises:
        ValueError: If PyTorch does not see the device that was asked for.

    Examples:
        >>> training_device()
        device(type='cpu')
    """
    named = os.environ.get(DEVICE_VARIABLE)
    if named is None:
        return torch.device("cuda" if large and torch.cuda.is_available() else "cpu")
    return checked_device(named)


def checked_device(name: str) -> torch.device:
    """Return a device by name.

    Raises:
        ValueError: If it is neither the CPU nor a GPU that PyTorch sees.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"no device is called {name!r}; name cpu, cuda or cuda:1.") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"trainings run on cpu or cuda; got {name!r}.")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ValueError(
            f"device {name!r} is not there: PyTorch sees {count} GPUs here. Leave --device out to "
            "compute on the CPU."
        )
    return device


def moved(
    batches: Iterable[tuple[Tensor, Tensor]], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of inputs and targets, on a device."""
    for x, y in batches:
        yield x.to(device), y.to(device)
