r"""Extremal eigenvalues and the spectrum's distribution of an operator given by its products.

The distribution comes from stochastic Lanczos quadrature: for v uniform on the unit sphere,
:math:`E\,v^Tf(A)v = \operatorname{tr} f(A)/n`, and Lanczos started at v gives Gauss' rule for it.

References:
    S. Ubaru, J. Chen and Y. Saad (2017), Fast estimation of tr(f(A)) via stochastic Lanczos
    quadrature. SIAM J. Matrix Anal. Appl. 38, 1075-1099.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.numerics.lanczos.iteration import Krylov, Product, RitzPair, lanczos, random_start

Array = NDArray[np.float64]

# Why not Scipy's eigsh (ARPACK): for both ends of six Hessians of MLPs and CNNs at tolerance 1e-3
# it took 21 to 56 products, about as many as the 21 to 44 here, but it states no error, returns
# nothing before it has converged, moves every vector to the CPU in float64, and has no quadrature.


@dataclass(frozen=True, slots=True)
class SymmetricSpectrum:
    """Eigenvalues of a symmetric operator, as far as products revealed them.

    Args:
        smallest: The smallest eigenvalue.
        largest: The largest.
        converged: Whether both are known to the tolerance.
        asymmetry: How far the products are from those of a symmetric operator, as a norm.
        products: Number of products taken.
        nodes: Nodes of the distribution, ascending; ``None`` if it was not asked for.
        weights: Their weights, with sum 1.
        starts: Random starts behind the nodes; 0 if they are all eigenvalues.
    """

    smallest: RitzPair
    largest: RitzPair
    converged: bool
    asymmetry: float
    products: int
    nodes: Array | None = None
    weights: Array | None = None
    starts: int = 0


def extremal_spectrum(
    product: Product,
    like: Tensor,
    *,
    steps: int,
    tolerance: float,
    generator: torch.Generator,
) -> SymmetricSpectrum:
    """Both ends of the spectrum from one random start.

    Args:
        product: Returns A v for a vector like ``like``.
        like: Any vector of the right length, type and device.
        steps: Most products to take.
        tolerance: Largest error of either end, as a share of the larger one's magnitude.
        generator: Source of the random start.

    Examples:
        >>> A = torch.diag(torch.arange(50.0))
        >>> found = extremal_spectrum(
        ...     lambda v: A @ v,
        ...     A[0],
        ...     steps=50,
        ...     tolerance=1e-3,
        ...     generator=torch.Generator().manual_seed(0),
        ... )
        >>> round(found.largest.value, 2), found.converged
        (49.0, True)
    """
    start = random_start(len(like), generator, like)
    return _summary(lanczos(product, start, steps=steps, tolerance=tolerance))


def full_spectrum(
    product: Product,
    like: Tensor,
    *,
    steps: int,
    starts: int,
    tolerance: float,
    generator: torch.Generator,
    failure: float = 1e-3,
) -> SymmetricSpectrum:
    """Both ends and the distribution in between.

    If ``steps * starts`` products suffice for the whole matrix, it is diagonalised instead.

    Args:
        product: Returns A v for a vector like ``like``.
        like: Any vector of the right length, type and device.
        steps: Products per start; all are taken unless the Krylov space is invariant.
        starts: Random starts to average over.
        tolerance: Largest error of either end, as a share of the larger one's magnitude.
        generator: Source of the random starts.
        failure: Probability that a stated distance is too small.

    Examples:
        >>> A = torch.diag(torch.arange(5.0))
        >>> found = full_spectrum(
        ...     lambda v: A @ v,
        ...     A[0],
        ...     steps=3,
        ...     starts=2,
        ...     tolerance=1e-3,
        ...     generator=torch.Generator().manual_seed(0),
        ... )
        >>> found.nodes.tolist(), found.starts
        ([0.0, 1.0, 2.0, 3.0, 4.0], 0)
    """
    if len(like) <= steps * starts:
        return _explicit(product, like)
    nodes, weights, runs = [], [], []
    for _ in range(starts):
        start = random_start(len(like), generator, like)
        krylov = lanczos(
            product, start, steps=steps, tolerance=tolerance, failure=failure / starts, full=True
        )
        theta, weight = krylov.quadrature()
        nodes.append(theta)
        weights.append(weight / starts)
        # Drop the basis, so that two are never held at once.
        runs.append(_summary(krylov))
        del krylov
    order = np.argsort(np.concatenate(nodes), kind="stable")
    return SymmetricSpectrum(
        smallest=_best([run.smallest for run in runs], -1.0),
        largest=_best([run.largest for run in runs], 1.0),
        converged=any(run.converged for run in runs),
        asymmetry=max(run.asymmetry for run in runs),
        products=sum(run.products for run in runs),
        nodes=np.concatenate(nodes)[order],
        weights=np.concatenate(weights)[order],
        starts=starts,
    )


def _summary(krylov: Krylov) -> SymmetricSpectrum:
    smallest, largest = krylov.extremes()
    products = len(krylov.alpha)
    return SymmetricSpectrum(smallest, largest, krylov.converged, krylov.asymmetry, products)


def _best(pairs: list[RitzPair], sign: float) -> RitzPair:
    """The outermost Ritz value, with the tightest of the bounds, all of which hold at once."""
    best = max(pairs, key=lambda pair: sign * pair.value)
    bound = min(sign * pair.value + pair.distance for pair in pairs)
    return replace(best, distance=max(0.0, bound - sign * best.value))


def _explicit(product: Product, like: Tensor) -> SymmetricSpectrum:
    """All eigenvalues of the matrix, one product per column."""
    size = len(like)
    columns = [product(unit) for unit in torch.eye(size, dtype=like.dtype, device=like.device)]
    matrix = torch.stack(columns, 1).to("cpu", torch.float64)
    if not bool(torch.isfinite(matrix).all()):
        raise ValueError("a product with a unit vector is not finite.")
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    asymmetry = float(torch.linalg.matrix_norm(matrix - matrix.T, 2)) / 2
    smallest, largest = (
        RitzPair(float(values[i]), 0.0, 0.0, vectors[:, i].to(like), torch.zeros_like(like))
        for i in (0, -1)
    )
    weights = np.full(size, 1 / size)
    return SymmetricSpectrum(smallest, largest, True, asymmetry, size, values.numpy(), weights)
