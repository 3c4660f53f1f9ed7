"""Small models that are asked what if, and what they would be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.instrument.recording.tracer import trace
from equipoise.theory.propagation.propagate import Propagation, propagate
from equipoise.theory.propagation.sites import Site


class Block(nn.Module):
    """A residual block with one hidden layer."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.act, self.down = nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch."""
        branch = self.down(self.act(self.up(self.norm(x))))
        return x + (branch if self.scale == 1 else self.scale * branch)


def residual(depth: int = 3) -> nn.Sequential:
    """Blocks between a first and a last layer."""
    blocks = [Block() for _ in range(depth)]
    return nn.Sequential(nn.Linear(16, 32), *blocks, nn.LayerNorm(32), nn.Linear(32, 8))


def perceptron(depth: int = 3, width: int = 32) -> nn.Sequential:
    """Batch norm and ReLU after every hidden layer."""
    layers: list[nn.Module] = []
    for i in range(depth):
        layers += [nn.Linear(width if i else 16, width), nn.BatchNorm1d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 8))


def convolutional() -> nn.Sequential:
    """Two normalised convolutions of 6 × 6 images, in the shape of 108 features."""
    layers: list[nn.Module] = []
    for channels in (3, 16):
        layers += [nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 8))


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Of 8 classes."""
    return F.cross_entropy(model(batch[0]), batch[1])


def batch(*shape: int) -> tuple[Tensor, Tensor]:
    """Noise and classes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, generator=generator)
    return x, torch.randint(8, (shape[0],), generator=generator)


def projected(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A loss with the same gradient at any logits."""
    logits = model(batch[0])
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
    return (logits * weights).sum()


def vectors(samples: int = 16) -> tuple[Tensor, Tensor]:
    """Orthogonal inputs: any number of them has the same moments."""
    rows = torch.ones(1, 1)
    for _ in range(4):
        rows = torch.cat([torch.cat([rows, rows], 1), torch.cat([rows, -rows], 1)])
    return rows[:samples], torch.arange(samples) % 8


def images() -> tuple[Tensor, Tensor]:
    """Noise."""
    return batch(4, 3, 6, 6)


def of_even_size(model: nn.Module) -> nn.Module:
    """The model with random signs for weights, so that their mean square is no chance."""
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                for tensor in layer.parameters():
                    tensor.copy_(tensor.sign() / layer.weight[0].numel() ** 0.5)
    return model


def predicted(
    model: nn.Module,
    data: Any,
    loss: Callable[[nn.Module, Any], Tensor] = projected,
) -> Propagation:
    """What theory says about a model."""
    return propagate(trace(model, data, loss))


Key = tuple[str, str, int]


def by_place(found: Propagation) -> Mapping[Key, Site]:
    """Predicted sites by module, operation and number in the module."""
    seen: Counter[tuple[str, str]] = Counter()
    sites: dict[Key, Site] = {}
    for site in found.sites:
        place = site.module, site.operation
        if site.second_moment is not None and site.operation != "detach":
            sites[(*place, seen[place])] = site
            seen[place] += 1
    return sites


def gradients(found: Propagation) -> dict[Key, float]:
    """Gradients by place, where there are any."""
    sites = by_place(found).items()
    return {place: site.gradient for place, site in sites if site.gradient is not None}


def second_moments(found: Propagation) -> dict[Key, float | None]:
    """Second moments by place."""
    return {place: site.second_moment for place, site in by_place(found).items()}
