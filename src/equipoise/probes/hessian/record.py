"""Records of a Hessian: its extremal eigenvalues and the distribution of all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from equipoise.records.estimate import Estimate
from equipoise.records.wording import spread, table


@dataclass(frozen=True, slots=True)
class SpectralDensity:
    r"""Distribution of the eigenvalues of a symmetric matrix.

    A weighted sum over the nodes approximates a mean over the eigenvalues,

    .. math:: \frac1n\sum_j f(\lambda_j) \approx \sum_i w_i f(\theta_i) .

    Args:
        nodes: θ, ascending.
        weights: w, which sum to 1.
        parameters: n, the number of eigenvalues.
        probes: Number of random vectors used for the weights; 0 if the nodes are all the
            eigenvalues.
        width: Default standard deviation of the Gaussians that :meth:`curve` replaces the nodes
            with: the range of the nodes over the products per probe. At this width the error of
            quadrature is less than a thousandth of the peak, at half of it a third.
    """

    nodes: tuple[float, ...]
    weights: tuple[float, ...]
    parameters: int
    probes: int
    width: float

    def mean(self, function: Callable[[float], float]) -> Estimate:
        r"""Mean of a function over the eigenvalues.

        Its standard error is exact for random vectors that are uniform on the sphere:
        :math:`\sqrt{2\,\mathrm{Var} f / ((n + 2)\,\text{probes})}`, with the variance over the
        nodes. It does not include the error of the quadrature.

        Args:
            function: Of one eigenvalue.

        Examples:
            >>> density = SpectralDensity((1.0, 3.0), (0.5, 0.5), 2, probes=0, width=0.1)
            >>> print(density.mean(lambda x: x))
            2
        """
        values = [function(node) for node in self.nodes]
        mean = math.fsum(w * v for w, v in zip(self.weights, values, strict=True))
        if not self.probes:
            return Estimate(mean, 0.0, "all eigenvalues")
        pairs = zip(self.weights, values, strict=True)
        variance = math.fsum(w * (v - mean) ** 2 for w, v in pairs)
        error = math.sqrt(2 * variance / ((self.parameters + 2) * self.probes))
        return Estimate(mean, error, f"Lanczos quadrature, {self.probes} probes")

    def curve(self, points: Sequence[float], *, width: float | None = None) -> list[Estimate]:
        """The density with every eigenvalue broadened to a Gaussian; it integrates to 1.

        Args:
            points: Where to evaluate it.
            width: Standard deviation of the Gaussians, by default :attr:`width`.

        Raises:
            ValueError: If the width is not positive.

        Examples:
            >>> density = SpectralDensity((0.0,), (1.0,), 1, probes=0, width=1.0)
            >>> round(density.curve([0.0])[0].value * math.sqrt(2 * math.pi), 12)
            1.0
        """
        sigma = self.width if width is None else width
        if not sigma > 0:
            raise ValueError(
                f"width must be positive, got {sigma}. All nodes may be equal: pass width=."
            )
        return [self.mean(_gaussian(at, sigma)) for at in points]


@dataclass(frozen=True, slots=True)
class HessianSpectrum:
    """Spectrum of the Hessian, or of one diagonal block of it.

    Args:
        block: The parameters: ``whole``, a layer's name, or the caller's name.
        parameters: Number of parameters; the Hessian's size.
        largest: Largest eigenvalue.
        smallest: Smallest eigenvalue, usually negative.
        converged: Whether both errors of the iteration are below the tolerance; if not, the
            stated errors are still bounds.
        products: Number of Hessian-vector products taken.
        density: Distribution of the eigenvalues, if requested.
    """

    block: str
    parameters: int
    largest: Estimate
    smallest: Estimate
    converged: bool
    products: int
    density: SpectralDensity | None = None

    @property
    def trace(self) -> Estimate | None:
        """Sum of the eigenvalues, if their density was requested."""
        if self.density is None:
            return None
        mean, size = self.density.mean(float), self.parameters
        return Estimate(size * mean.value, size * mean.error, mean.method)


@dataclass(frozen=True, slots=True)
class Hessian:
    """Curvature of a loss with respect to a model's trainable parameters.

    Args:
        whole: Spectrum for all parameters together, if requested.
        blocks: Spectra for the layers, in order of use, or for the caller's groups.
        batches: Number of batches that the loss is a mean over.
    """

    whole: HessianSpectrum | None
    blocks: tuple[HessianSpectrum, ...]
    batches: int

    def __str__(self) -> str:
        """A line for the whole and for each block.

        Examples:
            >>> largest, smallest = Estimate(4.0, 0.1, "Lanczos"), Estimate(-1.0, 0.1, "Lanczos")
            >>> print(Hessian(HessianSpectrum("whole", 9, largest, smallest, True, 20), (), 1))
            block  parameters  largest eigenvalue  smallest
            whole  9           4.00 ± 0.10         −1.00 ± 0.10
        """
        rows = [
            (one.block, f"{one.parameters:,}", spread(one.largest), spread(one.smallest))
            for one in ([self.whole] if self.whole else []) + list(self.blocks)
        ]
        return table([("block", "parameters", "largest eigenvalue", "smallest"), *rows])

    @property
    def largest(self) -> Estimate:
        """Largest eigenvalue of the whole Hessian."""
        return self._whole().largest

    @property
    def smallest(self) -> Estimate:
        """Smallest eigenvalue of the whole Hessian."""
        return self._whole().smallest

    @property
    def density(self) -> SpectralDensity | None:
        """Distribution of the eigenvalues of the whole Hessian, if requested."""
        return self._whole().density

    @property
    def converged(self) -> bool:
        """Whether all measured spectra converged."""
        every = (*self.blocks, *([self.whole] if self.whole else []))
        return all(spectrum.converged for spectrum in every)

    def _whole(self) -> HessianSpectrum:
        if self.whole is None:
            raise ValueError(
                "only blocks of the Hessian were measured: read .blocks, or ask for blocks='both'."
            )
        return self.whole


def _gaussian(centre: float, width: float) -> Callable[[float], float]:
    scale = 1 / (width * math.sqrt(2 * math.pi))
    return lambda x: scale * math.exp(-(((x - centre) / width) ** 2) / 2)
