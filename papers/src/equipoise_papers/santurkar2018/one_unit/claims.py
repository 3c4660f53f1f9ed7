r"""Claims that one side is at most, or equals, another one, counted on random units.

Symbols: as in ``derivatives``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise_papers.santurkar2018.one_unit.derivatives import Standardised, standardise

# Identities hold to 1e-12 in these cases; false claims fail by more than this.
TOLERANCE = 1e-9
SAMPLES = 16


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """``left ≤ right`` or ``left = right`` in every case.

    Args:
        left: Of shape ``[cases]``.
        right: Of shape ``[cases]``.
        relation: Which of the two is claimed.
        size: Magnitude of the terms that the sides are sums of, if these may cancel. Rounding is
            judged relative to it; by default relative to the larger side.
    """

    left: Tensor
    right: Tensor
    relation: Literal["≤", "="] = "≤"
    size: Tensor | None = None

    @property
    def broken(self) -> Tensor:
        """Whether each case fails by more than rounding."""
        largest = torch.maximum(self.left.abs(), self.right.abs())
        room = TOLERANCE * (largest if self.size is None else torch.maximum(largest, self.size))
        excess = self.left - self.right
        return (excess.abs() if self.relation == "=" else excess) > room

    @property
    def violations(self) -> int:
        """Number of cases in which it fails."""
        return int(self.broken.sum())

    @property
    def worst_factor(self) -> float:
        """Largest factor between the sides where it fails; 1 where it never does.

        Infinite if a right side of 0 or less is exceeded, because no factor could correct that.
        """
        left, right = self.left[self.broken], self.right[self.broken]
        if not len(left):
            return 1.0
        ratio = torch.where(right > 0, left / right, math.inf)
        if self.relation == "=":
            ratio = torch.where(left < right, 1 / ratio, ratio)
            ratio = torch.where(left * right > 0, ratio.abs(), math.inf)
        return float(ratio.max())


def vanishes(left: Tensor, size: Tensor) -> Claim:
    """Claim that numbers are 0, up to rounding relative to a size."""
    return Claim(left.abs(), torch.zeros_like(left), "=", size)


@dataclass(frozen=True, slots=True, eq=False)
class Cases:
    """Random units with gradients and Hessians of some loss, one unit per case.

    Args:
        y: Outputs, of shape ``[cases, m]``; their deviations and means vary between units.
        g: Gradients with respect to z, of shape ``[cases, m]``.
        hessian: Positive semi-definite Hessians, of shape ``[cases, m, m]``.
        unit: The outputs normalised at ε = 0.
    """

    y: Tensor
    g: Tensor
    hessian: Tensor
    unit: Standardised

    @property
    def along(self) -> Tensor:
        """⟨g, ŷ⟩, of shape ``[cases]``."""
        return (self.g * self.unit.values).sum(-1)

    @property
    def mean_gradient(self) -> Tensor:
        """μ_g, of shape ``[cases]``."""
        return self.g.mean(-1)

    def quadratic_form(self, vectors: Tensor) -> Tensor:
        """VᵀHv, of shape ``[cases]``."""
        return (vectors * (self.hessian @ vectors.unsqueeze(-1)).squeeze(-1)).sum(-1)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw standard normal numbers in float64."""
    return torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float64)


def random_cases(generator: torch.Generator, cases: int) -> Cases:
    """Draw units of 16 samples: y = e^a n + b, g normal, H = AAᵀ/m; a, b, n, A normal."""
    m = SAMPLES
    a, b = normal(generator, 2, cases, 1)
    y = a.exp() * normal(generator, cases, m) + b
    g, A = normal(generator, cases, m), normal(generator, cases, m, m)
    return Cases(y, g, A @ A.mT / m, standardise(y))


def squared_norm(vectors: Tensor) -> Tensor:
    """‖v‖² along the last dimension."""
    return vectors.square().sum(-1)
