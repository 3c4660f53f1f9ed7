"""Models that keep state where a look at their attributes does not find it."""

from __future__ import annotations

import functools
import itertools
import tempfile
import threading
import warnings
import weakref
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from support.probe_models import Keeping, Meter

CALLS = 0


class InSlots(Keeping):
    """Attributes of a module that are not in its dictionary."""

    __slots__ = ("average", "calls")

    def begin(self) -> None:
        object.__setattr__(self, "average", torch.zeros(6))
        object.__setattr__(self, "calls", 0)

    def kept(self, h: Tensor) -> Tensor:
        object.__setattr__(self, "calls", self.calls + 1)
        self.average.add_(h.mean(0))
        return self.average * 0.1 * self.calls


class OnTheClass(Keeping):
    """A counter and a cache of the class, which all instances share."""

    calls = 0
    cache: dict[int, float] = {}  # noqa: RUF012

    def begin(self) -> None:
        type(self).calls = 0
        type(self).cache.clear()

    def kept(self, h: Tensor) -> float:
        type(self).calls += 1
        self.cache[self.calls] = 0.1
        return 0.1 * self.calls + len(self.cache)


class Gauge:
    """Counts, also as a hook."""

    def __init__(self) -> None:
        self.total = 0.0

    def __call__(self, module: nn.Module, args: object, output: Tensor) -> Tensor:
        self.total += 0.1
        return output * self.total


class InHooks(Keeping):
    """A hook with attributes, and one that counts in the function around it."""

    def begin(self) -> None:
        calls = 0

        def count(module: nn.Module, args: object) -> None:
            nonlocal calls
            calls += 1
            self.noise = 0.1 * calls

        self.layer.register_forward_hook(Gauge())
        self.layer.register_forward_pre_hook(count)

    def kept(self, h: Tensor) -> float:
        gauge = next(iter(self.layer._forward_hooks.values()))  # a probe adds its own
        return gauge.total + self.noise


STEPS: list[int] = []
TIMES: list[int] = []
AVERAGES: dict[str, Tensor] = {}


def counted(h: Tensor, seen: list[int] = []) -> Tensor:  # noqa: B006
    """Keep state in the file, in a default argument and as an attribute of this function."""
    STEPS.append(1)
    seen.append(len(STEPS))
    AVERAGES["h"] = AVERAGES.get("h", torch.zeros(6)) + h.mean(0)
    counted.calls = getattr(counted, "calls", 0) + 1
    return AVERAGES["h"] * 0.1 + len(seen) + counted.calls


@functools.lru_cache(maxsize=4)
def cached(layer: nn.Linear) -> float:
    return float(layer.weight.detach().sum())


class InTheFile(Keeping):
    """Containers of the file, and functions that the methods call."""

    def begin(self) -> None:
        STEPS.clear()
        AVERAGES.clear()
        cached.cache_clear()
        counted.__defaults__[0].clear()
        counted.__dict__.clear()

    def kept(self, h: Tensor) -> Tensor:
        return counted(h) + cached(self.layer)


class Decorated(Keeping):
    """A container of the file that is read behind a decorator of PyTorch's alone."""

    @torch.no_grad()
    def begin(self) -> None:
        TIMES.clear()

    @torch.no_grad()
    def kept(self, h: Tensor) -> float:
        TIMES.append(1)
        return 0.1 * len(TIMES)


class InKeys(Keeping):
    """An object that is a key."""

    def begin(self) -> None:
        self.gauges = {Gauge(): "total"}

    def kept(self, h: Tensor) -> float:
        (gauge,) = self.gauges
        gauge.total += 0.1
        return gauge.total


class InSparseValues(Keeping):
    def begin(self) -> None:
        self.averages = torch.eye(6).to_sparse().coalesce()

    def kept(self, h: Tensor) -> Tensor:
        self.averages.values().mul_(0.9)
        return self.averages.to_dense().sum(0)


class InTheModule(Keeping):
    """A global counter of the file that it is written in."""

    def begin(self) -> None:
        global CALLS
        CALLS = 0

    def kept(self, h: Tensor) -> float:
        global CALLS
        CALLS += 1
        return 0.1 * CALLS


class InAClosure(Keeping):
    def begin(self) -> None:
        calls, average = 0, torch.zeros(6)

        def noise(h: Tensor) -> Tensor:
            nonlocal calls, average
            calls += 1
            average = average + h.mean(0)
            return average * 0.1 * calls

        self.noise = noise

    def kept(self, h: Tensor) -> Tensor:
        return self.noise(h)


class OnAFunction(Keeping):
    """An attribute of a function."""

    def begin(self) -> None:
        def noise() -> float:
            noise.calls += 1
            return 0.1 * noise.calls

        noise.calls = 0
        self.noise = noise

    def kept(self, h: Tensor) -> float:
        return self.noise()


class BehindWeakReferences(Keeping):
    """What is counted hangs on weak references; the objects are held elsewhere."""

    holders: list[Meter] = []  # noqa: RUF012

    def begin(self) -> None:
        self.holders.append(Meter())
        self.meter = weakref.ref(self.holders[-1])
        self.by_layer = weakref.WeakKeyDictionary({self.layer: 0.0})
        self.latest = weakref.WeakValueDictionary()

    def kept(self, h: Tensor) -> float:
        self.meter().total += 0.1
        self.by_layer[self.layer] += 0.1
        self.latest[f"call {len(self.latest)}"] = self.layer
        return self.meter().total + self.by_layer[self.layer] + len(self.latest)


class OfTheThread(Keeping):
    def begin(self) -> None:
        self.local, self.lock = threading.local(), threading.Lock()
        self.local.calls = 0

    def kept(self, h: Tensor) -> float:
        with self.lock:
            self.local.calls += 1
        return 0.1 * self.local.calls


class Cached(Keeping):
    """Methods that remember their first answers, one of them in a property."""

    def kept(self, h: Tensor) -> Tensor:
        return self.first(0) + self.second

    @functools.cache  # noqa: B019
    def first(self, _: int) -> Tensor:
        return self.norm.running_mean.clone()

    @functools.cached_property
    def second(self) -> Tensor:
        return self.norm.running_var.clone()


@dataclass(slots=True, weakref_slot=True)
class Ring:
    """A ring buffer that knows itself."""

    values: Tensor = field(default_factory=lambda: torch.zeros(3))
    place: int = 0
    me: list[Ring] = field(default_factory=list)


class InAProperty(Keeping):
    """A property over a slotted dataclass that contains itself."""

    def begin(self) -> None:
        self._ring = Ring()
        self._ring.me.append(self._ring)

    @property
    def level(self) -> float:
        return float(self._ring.values.sum())

    @level.setter
    def level(self, value: float) -> None:
        self._ring.values[self._ring.place % 3] = value
        self._ring.place += 1

    def kept(self, h: Tensor) -> float:
        self.level = self.level + 0.1
        return self.level


class MemoryMapped(Keeping):
    """An array and a tensor over files."""

    def begin(self) -> None:
        self.file = tempfile.NamedTemporaryFile()  # noqa: SIM115
        self.mapped = np.memmap(self.file.name, np.float32, "w+", shape=(6,))
        self.file2 = tempfile.NamedTemporaryFile()  # noqa: SIM115
        self.tensor = torch.from_file(self.file2.name, shared=True, size=6)

    def kept(self, h: Tensor) -> Tensor:
        self.mapped += 0.1
        self.tensor.add_(h.mean(0))
        return torch.from_numpy(np.array(self.mapped)).to(h) + self.tensor.to(h)


class Aliased(Keeping):
    """Attributes that share memory with each other and with parameters."""

    def begin(self) -> None:
        self.sums = torch.zeros(2, 6)
        self.row, self.flat = self.sums[0], self.sums.view(-1)
        self.same = self.sums
        self.seen = self.head.bias.detach()
        self.part = self.layer.weight.data[:2]

    def kept(self, h: Tensor) -> Tensor:
        self.row.add_(h.mean(0))
        self.flat[6:].mul_(0.5).add_(0.1)
        return self.same.sum(0) + self.seen.sum() + self.part.sum()


class LazyParameter(Keeping):
    """A parameter that the first pass in training adds."""

    def kept(self, h: Tensor) -> Tensor:
        if not hasattr(self, "gain"):
            self.gain = nn.Parameter(torch.full((6,), 0.5))
            self.register_parameter("late", nn.Parameter(h.mean(0)))
        return h * self.gain + self.late


class Functional(Keeping):
    """A normaliser that is called with other tensors, and parametrised in the forward pass."""

    def begin(self) -> None:
        self.inner = nn.BatchNorm1d(6)
        self.fast = {name: p.detach().clone() for name, p in self.inner.named_parameters()}

    def kept(self, h: Tensor) -> Tensor:
        out = torch.func.functional_call(self.inner, self.fast, (h,))
        for value in self.fast.values():
            value.mul_(0.99)
        return out + self.inner.running_mean


def with_old_spectral_norm() -> nn.Module:
    """Power iteration in a hook, which also replaces a plain attribute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        first = nn.utils.spectral_norm(nn.Linear(6, 6), n_power_iterations=2)
        return nn.Sequential(first, nn.BatchNorm1d(6), nn.utils.spectral_norm(nn.Linear(6, 1)))


class Tee(Keeping):
    """Two readers of one iterator, and a numbered one."""

    def begin(self) -> None:
        self.first, self.second = itertools.tee(itertools.count())
        self.numbered = enumerate(itertools.cycle([0.1, 0.2]))

    def kept(self, h: Tensor) -> float:
        return 0.1 * next(self.first) + next(self.numbered)[1]


HIDING = {
    "slots of a module": InSlots,
    "class attributes": OnTheClass,
    "global counter": InTheModule,
    "hooks": InHooks,
    "containers of the file": InTheFile,
    "decorated methods": Decorated,
    "keys of a dictionary": InKeys,
    "values of a sparse tensor": InSparseValues,
    "closure": InAClosure,
    "attribute of a function": OnAFunction,
    "weak references": BehindWeakReferences,
    "state of a thread": OfTheThread,
    "cached methods": Cached,
    "property over slots": InAProperty,
    "memory maps": MemoryMapped,
    "shared memory": Aliased,
    "parameters added": LazyParameter,
    "functional calls": Functional,
    "old spectral norm": with_old_spectral_norm,
    "divided iterators": Tee,
}


def build(name: str) -> nn.Module:
    """Build a model of the table from a fixed seed, and restore the global state."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return HIDING[name]()
