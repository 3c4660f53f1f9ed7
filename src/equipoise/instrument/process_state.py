"""What a model's code may change of the whole process, put back as it was."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from equipoise.instrument.containers import Entries, itself

# What PyTorch is set to: how it is read, and how it is written.
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
)
# Hooks of all modules.
_HOOKS = tuple(
    value
    for name, value in vars(torch_module).items()
    if name.startswith("_global_") and isinstance(value, dict)
)


class ProcessState:
    """PyTorch's settings and hooks of all modules, environment, folder and paths of the process.

    Examples:
        >>> state = ProcessState()
        >>> torch.set_default_dtype(torch.float64)
        >>> state.restore()
        >>> torch.get_default_dtype()
        torch.float32
    """

    def __init__(self) -> None:
        self._settings = [(read(), read, write) for read, write in _SETTINGS]
        self._hooks = [Entries(hooks) for hooks in _HOOKS]
        self._environment, self._paths = dict(os.environ), list(sys.path)
        self._folder = _folder()

    def restore(self) -> None:
        """Put back what has changed."""
        for value, read, write in self._settings:
            if read() != value:
                write(value)
        for hooks in self._hooks:
            hooks.fill(itself)
        if os.environ != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        if sys.path != self._paths:
            sys.path[:] = self._paths
        if self._folder is not None and _folder() != self._folder:
            os.chdir(self._folder)


def _folder() -> str | None:
    """The current folder; None where it has been deleted."""
    with contextlib.suppress(OSError):
        return os.getcwd()
    return None
