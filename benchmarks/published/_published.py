"""One public model: where its definition comes from, and how a small one is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Published:
    """A model definition that pip installs.

    Args:
        package: What is to be installed: ``pip install package``.
        name: The class, as users import it.
        make: Imports it and returns a model with random weights, and a batch that it takes.
    """

    package: str
    name: str
    make: Callable[[], tuple[Any, Any]]


def pictures(count: int, side: int, channels: int = 3) -> Tensor:
    """Noise in the shape of pictures."""
    return torch.randn(count, channels, side, side)


def tokens(count: int, length: int, vocabulary: int = 100) -> Tensor:
    """Random words; 0 to 3, which often stand for padding and ends, are left out."""
    return torch.randint(4, vocabulary, (count, length))


def classes(*shape: int, of: int = 10) -> Tensor:
    """Random classes."""
    return torch.randint(of, shape)
