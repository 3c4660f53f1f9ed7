"""Record of what second-order pooling does to its features' spectrum, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.records.estimate import Estimate


@dataclass(frozen=True, slots=True)
class MatrixSpectrum:
    """Eigenvalues of symmetric matrices, summarised over samples by medians.

    Args:
        top: The largest absolute eigenvalues, largest first, each as a fraction of their sum.
        condition: Largest over smallest, without those that are zero to rounding.
        rank: How many are not zero to rounding.
    """

    top: tuple[float, ...]
    condition: float
    rank: float

    @property
    def leading_share(self) -> float:
        """The largest eigenvalue as a fraction of the sum."""
        return self.top[0]


@dataclass(frozen=True, slots=True)
class SecondOrderPooling:
    r"""One pooling layer, measured on one batch.

    Args:
        layer: Name of the layer in the model.
        kind: Its class.
        samples: Samples whose matrices were decomposed.
        positions: N, positions per sample.
        channels: D, after the layer's own reduction.
        before: Spectrum of the second moments FᵀF/N; ``None`` if nothing was measured.
        after: Spectrum of the matrix that the layer makes of them, before a sketch or the root of
            its entries.
        direction_share: ρ / tr B, the part of the energy in the direction that RUN shrinks, or
            would shrink from the mean start; median over samples.
        eigen_residual: ‖Bv̂ - ρv̂‖ / ρ of that direction; 0 at an eigenvector.
        shrinks: Whether the layer shrinks it.
        cost: Part of a forward and backward pass that the layer takes; median over turns with
            its standard error.
        reason: Why something was not measured; ``None`` if all was.
    """

    layer: str
    kind: str
    samples: int
    positions: int
    channels: int
    before: MatrixSpectrum | None
    after: MatrixSpectrum | None
    direction_share: float
    eigen_residual: float
    shrinks: bool
    cost: Estimate | None
    reason: str | None = None
