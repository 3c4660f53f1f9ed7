"""Models that every probe is tested on; a new one joins by one line in MODELS."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.layers import NoisyBatchNorm1d
from equipoise.models import resnet18


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
    "resnet18": lambda: Images(resnet18(2, 1, width=2)),
}


def build(name: str) -> nn.Module:
    """Build a model of the table from a fixed seed, and restore the global state."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return MODELS[name]()


def batch(seed: int = 0, rows: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 6, generator=generator), torch.randn(rows, 1, generator=generator)


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return (model(x) - y).square().mean()
