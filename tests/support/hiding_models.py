"""Models that keep state where a look at their attributes does not find it."""

from __future__ import annotations

import functools
import io
import itertools
import multiprocessing
import os
import queue
import tempfile
import threading
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from support import hidden_counters
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


class Clock:
    """Counts as an object and as a class."""

    ticks = 0

    def __init__(self) -> None:
        self.count = 0

    def tick(self) -> float:
        self.count += 1
        Clock.ticks += 1
        return 0.1 * self.count


CLOCK = Clock()


class InObjectsOfTheFile(Keeping):
    """An object of the file, its class, and the variables of another file of the user's."""

    def begin(self) -> None:
        CLOCK.count = Clock.ticks = hidden_counters.passes = 0
        hidden_counters.LENGTHS.clear()

    def kept(self, h: Tensor) -> float:
        hidden_counters.passes += 1
        counts = Clock.ticks, hidden_counters.passes, hidden_counters.noted(len(h))
        return CLOCK.tick() + 0.1 * sum(counts)


class InMemory(Keeping):
    """Streams, memory that processes share, and sources of seeds."""

    def begin(self) -> None:
        self.log, self.counter = io.StringIO(), multiprocessing.Value("i", 0)
        self.queue: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.seeds, self.bits = np.random.SeedSequence(1), np.random.PCG64(1)

    def kept(self, h: Tensor) -> float:
        self.log.write("pass ")
        self.counter.value += 1
        self.queue.put(1)
        drawn = np.random.default_rng(self.seeds.spawn(1)[0]).random()
        length = len(self.log.getvalue()) + self.counter.value + self.queue.qsize()
        return 0.1 * length + drawn + self.bits.random_raw() % 7


class InAnInnerTraining(Keeping):
    """A weight of its own that each forward pass trains, with a schedule."""

    def begin(self) -> None:
        self.inner = torch.zeros((), requires_grad=True)
        self.steps = torch.optim.SGD([self.inner], lr=0.5, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.steps, 0.9)

    def kept(self, h: Tensor) -> float:
        self.inner.grad = 2 * (self.inner.detach() - 1)
        self.steps.step()
        self.schedule.step()
        return float(self.inner.detach()) + self.schedule.get_last_lr()[0]


class Doubling(dict[str, int]):
    """Does not do what a dictionary does."""

    def __setitem__(self, key: str, value: int) -> None:
        super().__setitem__(key, 2 * value)


class Empty(list[int]):
    """Seems empty, and has an attribute."""

    total = 0

    def __iter__(self) -> Iterator[int]:
        return iter(())


class InUnusualContainers(Keeping):
    """Containers whose methods do something else, and objects in an array."""

    def begin(self) -> None:
        self.entries, self.elements = Doubling(), Empty()
        self.array = np.array([[0], None], dtype=object)

    def kept(self, h: Tensor) -> float:
        self.entries["a"] = self.entries.get("a", 0) + 1
        self.elements.append(1)
        self.elements.total += len(self.elements)
        self.array[0].append(1)
        return 0.01 * (self.entries["a"] + self.elements.total + len(self.array[0]))


SUM = torch.zeros(1)


class OnTensors(Keeping):
    """Attributes of parameters and buffers, a tensor that grows, and a default argument."""

    def begin(self) -> None:
        self.grown = torch.zeros(1)
        self.mean(torch.zeros(1))[0].zero_()

    def mean(self, h: Tensor, kept: Tensor = SUM) -> Tensor:
        return kept.add_(h.mean())

    def kept(self, h: Tensor) -> Tensor:
        for tensor in (self.layer.weight, self.norm.running_mean):
            tensor.passes = getattr(tensor, "passes", 0) + 1
        self.grown.resize_(len(self.grown) + 1).fill_(0.1)
        return self.mean(h) + 0.1 * self.norm.running_mean.passes + self.grown.sum()


class InTheProcess(Keeping):
    """The environment, settings of PyTorch, and methods of the class."""

    def begin(self) -> None:
        os.environ.pop("EQUIPOISE_TEST_PASSES", None)
        torch.set_num_threads(1)

    def kept(self, h: Tensor) -> float:
        passes = int(os.environ.get("EQUIPOISE_TEST_PASSES", "0")) + 1
        os.environ["EQUIPOISE_TEST_PASSES"] = str(passes)
        torch.set_num_threads(1 + passes % 2)
        type(self).gain = staticmethod(lambda: 0.1 * passes)
        return type(self).gain() + torch.get_num_threads()


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
    "objects of files": InObjectsOfTheFile,
    "memory": InMemory,
    "inner training": InAnInnerTraining,
    "unusual containers": InUnusualContainers,
    "attributes of tensors": OnTensors,
    "settings of the process": InTheProcess,
}


def build(name: str) -> nn.Module:
    """Build a model of the table from a fixed seed, and restore the global state."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return HIDING[name]()
