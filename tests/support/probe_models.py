"""Models that every probe is tested on; a new one joins by one line in MODELS."""

from __future__ import annotations

import itertools
import random
import warnings
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.layers import NoisyBatchNorm1d
from equipoise.models import resnet_cifar


class Shared(nn.Module):
    """One layer used twice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class Residual(nn.Module):
    """Pre-activation block with a skip connection."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm1d(6), nn.BatchNorm1d(6)
        self.fc1, self.fc2 = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(F.relu(self.norm2(self.fc1(F.relu(self.norm1(x))))))


class Containers(nn.Module):
    """Lists, dictionaries and bare parameters of modules; the output is a dictionary."""

    def __init__(self):
        super().__init__()
        self.stem = nn.ModuleDict({"a": nn.Linear(6, 4), "b": nn.Linear(6, 4)})
        self.norms = nn.ModuleList([nn.LayerNorm(8), nn.GroupNorm(2, 8)])
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))])
        self.unused = nn.Linear(3, 3)
        self.nothing = None

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([layer(x) for layer in self.stem.values()], 1)
        for norm, scale in zip(self.norms, self.scales, strict=True):
            h = h + scale * torch.relu(norm(h))
        return {"out": (h,)}["out"][0]


class Reassigning(nn.Module):
    """Replaces its buffers instead of changing them in place."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("recent", None)
        self.register_buffer("scratch", torch.zeros(6), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        self.calls = self.calls + 1
        self.recent = h.detach().mean(0)
        self.scratch += self.recent
        return h + torch.rand(()) + float(torch.rand(1))


class NumpyNoise(nn.Module):
    """Adds noise from a NumPy generator of its own."""

    def __init__(self):
        super().__init__()
        self.source = {"noise": np.random.default_rng(3)}

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.from_numpy(self.source["noise"].normal(size=x.shape)).to(x)


class Attention(nn.Module):
    """A small transformer encoder classifier."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x.unflatten(1, (1, 6)).repeat(1, 3, 1)).mean(1))


class Images(nn.Module):
    """Give a convolutional network flat inputs."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.reshape(len(x), 1, 2, 3).repeat(1, 1, 4, 4))


class Keeping(nn.Module):
    """A network that keeps something outside of parameters and buffers, and depends on it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 2)
        self.begin()

    def begin(self) -> None:
        """Make what is kept."""

    def kept(self, h: Tensor) -> Tensor | float:
        """Change what is kept, and return what is added to the features."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.norm(self.layer(x)))
        return self.head(h + self.kept(h.detach()))


class Counting(Keeping):
    def begin(self) -> None:
        self.calls = 0

    def kept(self, h: Tensor) -> float:
        self.calls += 1
        self.last_shape = tuple(h.shape)  # an attribute that no module had before
        return 0.1 * self.calls


class Averaging(Keeping):
    """Exponential averages as plain tensors: written in place, replaced, and in a tuple."""

    def begin(self) -> None:
        self.average, self.replaced = torch.zeros(6), torch.zeros(6)
        self.pair = (torch.zeros(6), torch.ones(6))

    def kept(self, h: Tensor) -> Tensor:
        self.average.mul_(0.9).add_(h.mean(0), alpha=0.1)
        self.replaced = 0.9 * self.replaced + 0.1 * h.mean(0)
        self.pair[0].add_(h.mean(0))
        return self.average * 1.0 + self.replaced + self.pair[0] * self.pair[1]


class Queueing(Keeping):
    def begin(self) -> None:
        self.recent: deque[Tensor] = deque(maxlen=2)

    def kept(self, h: Tensor) -> Tensor:
        self.recent.append(h.mean(0))
        return torch.stack(list(self.recent)).mean(0)


class Caching(Keeping):
    def begin(self) -> None:
        self.cache: dict[str, Tensor] = {}
        self.hits, self.seen = [0], {"none"}

    def kept(self, h: Tensor) -> Tensor:
        first = self.cache.setdefault("first", h.mean(0))
        self.cache[f"call {len(self.cache)}"] = h.mean(0)
        self.hits[0] += 1
        self.seen.add(f"call {self.hits[0]}")
        return first + 0.1 * len(self.cache)


class OwnPython(Keeping):
    """Python's and NumPy's generators, in a queue and an object."""

    def begin(self) -> None:
        self.sources = deque([random.Random(3)])
        self.noise = SimpleNamespace(source=np.random.RandomState(4))

    def kept(self, h: Tensor) -> float:
        return self.sources[0].random() + float(self.noise.source.normal())


class Noise:
    """An object with slots and a generator."""

    __slots__ = ("drawn", "source")

    def __init__(self):
        self.source, self.drawn = torch.Generator().manual_seed(5), 0

    def __call__(self, features: int) -> Tensor:
        self.drawn += 1
        return torch.randn(features, generator=self.source) * self.drawn


class OwnObject(Keeping):
    def begin(self) -> None:
        self.noise = Noise()

    def kept(self, h: Tensor) -> Tensor:
        return self.noise(6)


@dataclass
class Meter:
    total: float = 0.0
    history: list[float] = field(default_factory=list)


class Metering(Keeping):
    """A chain of objects, and a method of one of them."""

    def begin(self) -> None:
        self.meters = {"loss": [Meter()]}
        self.append = self.meters["loss"][0].history.append

    def kept(self, h: Tensor) -> float:
        meter = self.meters["loss"][0]
        meter.total += float(h.mean())
        self.append(meter.total)
        return meter.total + len(meter.history)


class Hooking(Keeping):
    """Adds a hook to a submodule and to a parameter in every pass."""

    def kept(self, h: Tensor) -> float:
        self.norm.register_forward_hook(lambda module, args, output: output * 1.1)
        if self.head.bias.requires_grad:
            self.head.bias.register_hook(lambda gradient: gradient * 0.9)
        return 0.0


class Growing(Keeping):
    """Adds a submodule in the first pass, a buffer in the next."""

    def kept(self, h: Tensor) -> Tensor:
        if not hasattr(self, "extra"):
            self.extra = nn.Linear(6, 6)
        else:
            self.register_buffer("mean", h.mean(0))
        return torch.tanh(self.extra(h))


class Expanding(Keeping):
    """A buffer whose rows are one row in memory."""

    def begin(self) -> None:
        self.register_buffer("scale", torch.full((1, 6), 0.5).expand(8, 6))

    def kept(self, h: Tensor) -> Tensor:
        self.scale[:1].add_(h.mean())
        return self.scale * 1.0


class Iterating(Keeping):
    def begin(self) -> None:
        self.numbers = itertools.count(1)
        self.turns = [itertools.cycle([0.1, 0.2, 0.3])]

    def kept(self, h: Tensor) -> float:
        return 0.1 * next(self.numbers) + next(self.turns[0])


class Hiding(Keeping):
    """A normaliser and an array that PyTorch does not know of."""

    def begin(self) -> None:
        self.teacher = [nn.BatchNorm1d(6)]
        self.sums = np.zeros(6)

    def kept(self, h: Tensor) -> Tensor:
        self.teacher[0](h)
        self.sums += h.numpy().mean(0)
        return self.teacher[0].running_mean * 1.0 + torch.from_numpy(self.sums).to(h)


def with_old_weight_norm() -> nn.Module:
    """Its hook makes `weight` a plain attribute, which every pass replaces."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        first, last = (nn.utils.weight_norm(nn.Linear(6, 6)) for _ in range(2))
    return nn.Sequential(first, nn.Tanh(), last)


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def normalised() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*layers, nn.Linear(6, 2))


def in_place() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.ReLU(inplace=True)
    )


def convolutional() -> nn.Module:
    return Images(
        nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.Conv2d(4, 4, 3, groups=2),
            nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
            nn.Flatten(),
            nn.Linear(4 * 4 * 8, 2),
        )
    )


def mixed_modes() -> nn.Module:
    model = normalised()
    model[1].eval()
    model[4].momentum = None
    model[7].eval()
    return model


def frozen() -> nn.Module:
    model = normalised()
    model[0].requires_grad_(False)
    model[5].requires_grad_(False)
    return model


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    return model


def with_weight_norm() -> nn.Module:
    return nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)),
        nn.Tanh(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)),
    )


def with_own_generator() -> nn.Module:
    generator = torch.Generator().manual_seed(5)
    noisy = [NoisyBatchNorm1d(6, generator=generator) for _ in range(2)]
    return nn.Sequential(nn.Linear(6, 6), noisy[0], nn.ReLU(), nn.Linear(6, 6), noisy[1])


def with_own_numpy_generator() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), NumpyNoise(), nn.Tanh(), nn.Linear(6, 2))


MODELS = {
    "plain": plain,
    "batch norm and dropout": normalised,
    "in-place ReLU": in_place,
    "convolutions": convolutional,
    "mixed modes": mixed_modes,
    "frozen parameters": frozen,
    "tied weights": tied,
    "shared module": Shared,
    "residual": Residual,
    "containers": Containers,
    "buffers reassigned": Reassigning,
    "own generator": with_own_generator,
    "own NumPy generator": with_own_numpy_generator,
    "transformer": Attention,
    "parametrizations": with_weight_norm,
    "convolutional residual": lambda: Images(resnet_cifar(8, 2, 1, width=2)),
}

# Models that keep something outside of parameters and buffers. They are for promises about traces:
# a reference that works on a deep copy, or in another type, would need to know what they keep.
KEEPING = {
    "counter": Counting,
    "averages": Averaging,
    "queue": Queueing,
    "cache": Caching,
    "own generators of Python and NumPy": OwnPython,
    "own generator in an object": OwnObject,
    "chain of objects": Metering,
    "hooks added": Hooking,
    "submodule added": Growing,
    "expanded buffer": Expanding,
    "iterators": Iterating,
    "module in a list": Hiding,
    "old weight norm": with_old_weight_norm,
}
ALL = MODELS | KEEPING


def build(name: str) -> nn.Module:
    """Build a model of the table from a fixed seed, and restore the global state."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return ALL[name]()


def batch(seed: int = 0, rows: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 6, generator=generator), torch.randn(rows, 1, generator=generator)


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return (model(x) - y).square().mean()
