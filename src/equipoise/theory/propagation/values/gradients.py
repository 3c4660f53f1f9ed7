"""Second moments of gradients."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.theory.propagation import latent
from equipoise.theory.propagation.exchangeable import Average, Exchangeable, of_draws

Array = NDArray[np.float64]


class Behind(NamedTuple):
    """The gradient behind functions of single elements.

    Args:
        gradient: Behind all of them.
        slope: The product of their derivatives, a table of the latents.
        latent: Of what they are functions.
    """

    gradient: Gradient
    slope: Array
    latent: Hashable


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    r"""Second moments of the derivatives of the loss by the elements of a tensor.

    Args:
        pairs: Averages of products at two rows, in the order of the tensor's positions.
        weight: :math:`w(g)`, how the mean square depends on the element's own latent; averages
            to 1; of shape ``[M]``.
        excess: By how much averages of gradient times latent at two rows exceed what they would
            be if the two were independent; None for not at all.
        filters: Mean square of the weights of a feature, weighted by its squared gradient, over
            that of all.
        parts: Of a concatenation, the gradients of its parts.
        draws: Where it comes from operations whose inputs were drawn, a part of it that belongs
            to the same draws, of shape ``[2, draws, 2, P]``, see :mod:`.draws`.
        orthogonal: Share of what features of a row would have along the tensor's that is missing,
            as a layer norm behind took it off.
        behind: If it came through functions of single elements just before, from where.
        rows: Share of the rows that have one, where others took the place of the rest.
    """

    pairs: Exchangeable
    weight: Array = field(default_factory=lambda: np.ones_like(latent.nodes()[0]))
    excess: Exchangeable | None = None
    parts: tuple[Gradient, ...] = ()
    filters: float = 1.0
    draws: Array | None = None
    behind: Behind | None = None
    orthogonal: float = 0.0
    rows: float = 1.0

    def times(self, factor: float) -> Gradient:
        """That of a tensor that is multiplied with a number, and all else is of the product."""
        draws = None if self.draws is None else self.draws * factor
        return replace(self, pairs=self.pairs * factor**2, excess=None, draws=draws, behind=None)

    def __add__(self, other: Gradient) -> Gradient:
        ours, theirs = self.pairs.mean_diagonal, other.pairs.mean_diagonal
        total = ours + theirs
        if total == 0:
            return self
        weight = (ours * self.weight + theirs * other.weight) / total
        filters = (ours * self.filters + theirs * other.filters) / total
        lead = self if self.parts else other
        parts: tuple[Gradient, ...] = ()
        if isinstance(lead.pairs, Average):
            count = len(lead.parts)
            both = zip(self.parts or [self] * count, other.parts or [other] * count, strict=True)
            parts = tuple(a + b for a, b in both)
            pairs: Exchangeable = lead.pairs.of([part.pairs for part in parts])
        else:
            pairs = self.pairs + other.pairs
        excess = self.excess or other.excess
        if self.excess is not None and other.excess is not None:
            excess = self.excess + other.excess
        draws = other.draws if self.draws is None else self.draws
        if self.draws is not None and other.draws is not None:
            draws = self.draws + other.draws
            alone, common = (
                of_draws(a, b, pairs.samples) for a, b in zip(self.draws, other.draws, strict=True)
            )
            same = pairs.same + 2 * (alone.same + common.same)
            pairs = Exchangeable(same, pairs.diff + 2 * common.diff, pairs.samples)
        orthogonal = (ours * self.orthogonal + theirs * other.orthogonal) / total
        return Gradient(pairs, weight, excess, parts, filters, draws, orthogonal=orthogonal)
