"""Random parts of heads: drawn once, from a generator of the head's own."""

from __future__ import annotations

import torch
from torch import Tensor


def own_generator(generator: torch.Generator | None, seed: int | None) -> torch.Generator:
    """The given generator, or a new one with the given seed, 0 by default.

    Raises:
        TypeError: If it is no generator.
        ValueError: If both are given.
    """
    if generator is None:
        return torch.Generator().manual_seed(0 if seed is None else seed)
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator; got {generator!r}. Or pass seed=.")
    if seed is not None:
        raise ValueError(f"give generator or seed, not both; got seed={seed} beside a generator.")
    return generator


def random_signs(*shape: int, generator: torch.Generator) -> Tensor:
    """Draw -1 and 1 with equal probability, on the generator's device."""
    bits = torch.randint(2, shape, generator=generator, device=generator.device)
    return (2 * bits - 1).to(torch.float32)


def placed(drawn: Tensor) -> Tensor:
    """Move a draw from the generator's device to where new modules are made."""
    return drawn.to(torch.get_default_device())
