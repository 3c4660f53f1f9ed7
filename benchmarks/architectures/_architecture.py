"""What an architecture of the benchmark is, and the batches and losses that several share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 10
SIDE = 32  # of an image
TOKENS = 64
VOCABULARY = 100

Batch = tuple[Any, Any]


@dataclass(frozen=True)
class Architecture:
    """A model with the noise it is fed and the loss it is trained with.

    Attributes:
        name: Unique among all architectures.
        build: Makes the model in training mode, with weights from PyTorch's global generator.
        batch: Makes (input, target) from a number of samples and a generator.
        loss: Scalar loss of a model on such a batch.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[int, torch.Generator], Batch]
    loss: Callable[[nn.Module, Any], Tensor]


def images(size: int, generator: torch.Generator, side: int = SIDE) -> Batch:
    """Standard normal images and their classes."""
    x = torch.randn(size, 3, side, side, generator=generator)
    return x, torch.randint(CLASSES, (size,), generator=generator)


def segmentations(size: int, generator: torch.Generator) -> Batch:
    """Standard normal images and a class for every pixel."""
    x = torch.randn(size, 3, SIDE, SIDE, generator=generator)
    return x, torch.randint(CLASSES, (size, SIDE, SIDE), generator=generator)


def texts(size: int, generator: torch.Generator) -> Batch:
    """Random tokens and, for each, the token that follows."""
    tokens = torch.randint(VOCABULARY, (size, TOKENS + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross entropy of logits ``[N, classes, ...]``."""
    x, target = batch
    return F.cross_entropy(model(x), target)


def token_cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross entropy of logits ``[N, tokens, vocabulary]``."""
    tokens, target = batch
    return F.cross_entropy(model(tokens).flatten(0, 1), target.flatten())
