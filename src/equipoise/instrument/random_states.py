"""The states of all random generators that a model may draw from: captured, restored, saved."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.instrument.hiding_places import own_attributes
from equipoise.instrument.saved_objects import OwnGenerator, reachable, registered


class RandomStates:
    """The states of all random generators of a model, as they are when this object is built.

    These are PyTorch's generators for the CPU and for the model's devices, NumPy's and Python's
    global ones, and those that modules own: attributes, also inside containers and objects, of
    type ``torch.Generator``, ``numpy.random.Generator``, ``numpy.random.RandomState`` or
    ``random.Random``.

    Args:
        model: Any module.

    Examples:
        >>> states = RandomStates(nn.Dropout())
        >>> drawn = torch.rand(3)
        >>> states.restore()
        >>> bool((torch.rand(3) == drawn).all())
        True
    """

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        devices, own = _accelerators(modules), _own_generators(model)
        own_torch = [g for g in own if isinstance(g, torch.Generator)]
        own_others = [g for g in own if not isinstance(g, torch.Generator)]
        self._devices, self._own_torch = len(devices), len(own_torch)
        self._torch = (
            _Source(torch.get_rng_state, torch.set_rng_state),
            *map(_source_of_device, devices),
            *map(_source, own_torch),
        )
        self._others = (_Source(random.getstate, _set_python_state), *map(_source, own_others))
        self._torch_states = self.torch_states()
        self._other_states = tuple(source.read() for source in self._others)
        # NumPy's global state is what users' code draws from.
        self._numpy_state: Any = np.random.get_state()  # noqa: NPY002

    @property
    def counts(self) -> dict[str, int]:
        """How many accelerators the model is on, and how many generators its modules own."""
        own = self._own_torch + len(self._others) - 1
        return {"accelerators": self._devices, "own generators": own}

    def restore(self, *, numpy: bool = True) -> None:
        """Put the captured states back; NumPy's global state, the slowest, only if asked."""
        for source, state in zip(self._others, self._other_states, strict=True):
            source.write(state)
        if numpy:
            np.random.set_state(self._numpy_state)  # noqa: NPY002
        self.set_torch_states(self._torch_states)

    def torch_states(self) -> tuple[Tensor, ...]:
        """The present states of PyTorch's generators, as copies."""
        return tuple(source.read() for source in self._torch)

    def set_torch_states(self, states: tuple[Tensor, ...]) -> None:
        """Set PyTorch's generators to what :meth:`torch_states` returned."""
        for source, state in zip(self._torch, states, strict=True):
            source.write(state)

    def numpy_was_used(self) -> bool:
        """Whether NumPy's global state has changed since it was captured."""
        now: Any = np.random.get_state()  # noqa: NPY002
        captured = self._numpy_state
        return not (captured[2:] == now[2:] and np.array_equal(captured[1], now[1]))

    def others_than_torch_were_used(self) -> bool:
        """Whether the state of a generator that is not PyTorch's has changed."""
        pairs = zip(self._others, self._other_states, strict=True)
        return self.numpy_was_used() or any(not _equal(s.read(), state) for s, state in pairs)

    def state_dict(self) -> dict[str, Any]:
        """The captured states, as tensors and plain values that a checkpoint can hold.

        ``torch.load`` reads them back with ``weights_only=True``.
        """
        first_own = 1 + self._devices
        python, *others = self._other_states
        name, keys, *position = self._numpy_state
        return {
            "torch": self._torch_states[0],
            "devices": list(self._torch_states[1:first_own]),
            "own": [*self._torch_states[first_own:], *map(_plain, others)],
            "numpy": [str(name), torch.from_numpy(keys.astype(np.int64)), *position],
            "python": python,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Set all generators to the states that :meth:`state_dict` returned.

        Raises:
            ValueError: If this model is on another number of accelerators, or owns another
                number of generators.
        """
        counts = self.counts
        _check("accelerators", counts["accelerators"], saved["devices"])
        _check("random generators of its own", counts["own generators"], saved["own"])
        own = saved["own"]
        self._torch_states = (saved["torch"], *saved["devices"], *own[: self._own_torch])
        self._other_states = (saved["python"], *own[self._own_torch :])
        name, keys, *position = saved["numpy"]
        self._numpy_state = (name, keys.numpy().astype(np.uint32), *position)
        self.restore()


def seed_torch(seed: int) -> None:
    """Seed PyTorch's generators, of accelerators too if there are any.

    Without one, ``torch.manual_seed`` notes the stack for one that may come: a millisecond.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch, NumPy and Python inside the block, and restore their states afterwards."""
    with torch.random.fork_rng():
        others = random.getstate(), np.random.get_state()  # noqa: NPY002
        seed_torch(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(others[0])
            np.random.set_state(others[1])  # noqa: NPY002


class _Source(NamedTuple):
    """Reads and writes the state of one generator."""

    read: Callable[[], Any]
    write: Callable[[Any], object]


def _source(generator: OwnGenerator) -> _Source:
    match generator:
        case torch.Generator():
            return _Source(generator.get_state, generator.set_state)
        case np.random.Generator():
            bits = generator.bit_generator
            return _Source(lambda: bits.state, partial(setattr, bits, "state"))
        case np.random.BitGenerator():
            return _Source(lambda: generator.state, partial(setattr, generator, "state"))
        case np.random.RandomState():
            return _Source(partial(generator.get_state, legacy=False), generator.set_state)
        case random.Random():
            return _Source(generator.getstate, partial(_set_python_state, generator=generator))


def _source_of_device(device: torch.device) -> _Source:
    module = torch.get_device_module(device)
    if device.type == "mps":  # there is only one: its functions need no device
        return _Source(module.get_rng_state, module.set_rng_state)
    return _Source(
        partial(module.get_rng_state, device), partial(module.set_rng_state, device=device)
    )


def _set_python_state(state: Any, generator: Any = random) -> None:
    version, words, gauss = state
    generator.setstate((version, tuple(words), gauss))  # a file may have made it a list


def _accelerators(modules: list[nn.Module]) -> list[torch.device]:
    tensors = (t for m in modules for t in (*m._parameters.values(), *m._buffers.values()))
    devices = {tensor.device for tensor in tensors if tensor is not None}
    return sorted((d for d in devices if d.type not in ("cpu", "meta")), key=str)


def _own_generators(model: nn.Module) -> list[OwnGenerator]:
    """The generators that modules keep as attributes, each once, in order."""
    found = reachable(own_attributes(model), registered(model))
    return [value for _, value in found if isinstance(value, OwnGenerator)]


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return all(_equal(a[key], b[key]) for key in a)
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else bool(a == b)


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state


def _check(what: str, here: int, saved: list[Any]) -> None:
    if here != len(saved):
        raise ValueError(
            f"the saved random states are of a model on {len(saved)} {what}, this one has {here}. "
            "Go on with the model and on the kind of device that they were saved with."
        )
