"""Telling a lack of memory from other failures, and what is allocated on a device."""

from __future__ import annotations

import re
import traceback

import torch

from equipoise.records.exceptions import text_of, with_causes

# What PyTorch's allocators say, on a GPU and on a CPU; NumPy's has a class of its own.
_LACK = re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE)
_SIZE = re.compile(r"[Aa]llocate ([\d.]+ [KMGT]?i?B|\d+ bytes)\b")


def lacks_memory(error: BaseException | None) -> bool:
    """Whether an error says that memory does not suffice, or was caused by one that does.

    Examples:
        >>> lacks_memory(torch.OutOfMemoryError("CUDA out of memory."))
        True
        >>> lacks_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
        True
        >>> lacks_memory(RuntimeError("shapes cannot be multiplied"))
        False
    """
    return _lack(error) is not None


def asked_for(error: BaseException | None) -> str:
    """How much memory was asked for in vain; empty where the error does not say.

    Examples:
        >>> asked_for(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.65 GiB."))
        '1.65 GiB'
        >>> asked_for(MemoryError())
        ''
    """
    lack = _lack(error)
    found = None if lack is None else _SIZE.search(text_of(lack))
    if found is None:
        return ""
    size, _, unit = found[1].partition(" ")
    return f"{int(size) / 1e9:.3g} GB" if unit == "bytes" else found[1]


def pass_on_lack_of_memory(error: BaseException) -> None:
    """Raise an error again if it says that memory does not suffice, which is told once for all.

    Raises:
        BaseException: The error.
    """
    if lacks_memory(error):
        raise error


def let_go(error: BaseException) -> None:
    """Free the tensors that an error for want of memory, and its causes, keep in their frames."""
    for step in with_causes(error):
        if lacks_memory(step):
            traceback.clear_frames(step.__traceback__)


def allocated(device: torch.device) -> int | None:
    """Bytes of tensors on a device; None where nothing tells."""
    return int(torch.cuda.memory_allocated(device)) if device.type == "cuda" else None


def _lack(error: BaseException | None) -> BaseException | None:
    """The error that says it."""
    for step in with_causes(error):
        is_torch = isinstance(step, RuntimeError) and _LACK.search(text_of(step)) is not None
        if is_torch or isinstance(step, MemoryError | torch.OutOfMemoryError):
            return step
    return None
