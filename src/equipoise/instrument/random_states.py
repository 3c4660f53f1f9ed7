"""Every random state that a model may draw from, remembered and put back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class TorchSources:
    """PyTorch's generators that a model may draw from.

    These are the default ones of the CPU and of the model's devices, and those that a module
    keeps as an attribute.

    Args:
        model: Any module.
    """

    def __init__(self, model: nn.Module) -> None:
        tensors = (*model.parameters(), *model.buffers())
        devices = {t.device for t in tensors if t.device.type not in ("cpu", "meta")}
        self._devices = sorted(devices, key=str)
        own = {id(v): v for m in model.modules() for v in vars(m).values()}
        self._own = [value for value in own.values() if isinstance(value, torch.Generator)]

    def states(self) -> tuple[Tensor, ...]:
        """All states, as copies."""
        return (
            torch.get_rng_state(),
            *(torch.get_device_module(d).get_rng_state(d) for d in self._devices),
            *(generator.get_state() for generator in self._own),
        )

    def restore(self, states: tuple[Tensor, ...]) -> None:
        """Put back what :meth:`states` returned."""
        torch.set_rng_state(states[0])
        accelerators = len(self._devices)
        for device, state in zip(self._devices, states[1 : 1 + accelerators], strict=True):
            torch.get_device_module(device).set_rng_state(state, device)
        for generator, state in zip(self._own, states[1 + accelerators :], strict=True):
            generator.set_state(state)


class RandomStates:
    """States of PyTorch, NumPy and Python as they are when the object is built.

    Args:
        model: Its devices and own generators count.
    """

    def __init__(self, model: nn.Module) -> None:
        self.sources = TorchSources(model)
        self._torch = self.sources.states()
        self._python = random.getstate()
        # NumPy's global state is what users' code draws from, so that is what is kept.
        self._numpy: Any = np.random.get_state()  # noqa: NPY002

    def numpy_was_used(self) -> bool:
        """Whether NumPy's state is another one by now."""
        now: Any = np.random.get_state()  # noqa: NPY002
        return not (self._numpy[2:] == now[2:] and np.array_equal(self._numpy[1], now[1]))

    def python_was_used(self) -> bool:
        """Whether Python's state is another one by now."""
        return self._python != random.getstate()

    def restore(self, *, numpy: bool = True) -> None:
        """Put the states back, NumPy's only on demand: that takes longer than all the others."""
        random.setstate(self._python)
        if numpy:
            np.random.set_state(self._numpy)  # noqa: NPY002
        self.sources.restore(self._torch)
