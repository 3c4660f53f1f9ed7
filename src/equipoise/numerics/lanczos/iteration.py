r"""Lanczos' method for a symmetric operator that is known only through its products.

Symbols: A: the operator, n × n; q₁: the start, a unit vector; Q: orthonormal basis of the Krylov
space of q₁, m columns; T = QᵀAQ: tridiagonal, α on its diagonal and β beside it; θ, s: eigenvalues
and eigenvectors of T, the Ritz values and their coefficients; AQ = QT + β_m q_{m+1} e_mᵀ.

References:
    G. H. Golub and C. F. Van Loan (2013), Matrix Computations, chapter 10.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from equipoise.numerics.lanczos.bounds import distance_above, is_within, likely_overlap

Array = NDArray[np.float64]
Product = Callable[[Tensor], Tensor]

# A remainder below this many roundings of A counts as rounding: 31 were measured at n = 30.
_EXHAUSTED = 64.0
# A vector that keeps less than this share of its length is orthogonalised once more.
_CANCELLED = 0.5


@dataclass(frozen=True, slots=True)
class RitzPair:
    """An approximate extremal eigenvalue.

    Args:
        value: θ, never beyond the true extremal eigenvalue but for rounding.
        distance: Bound on how far beyond θ that eigenvalue is, with the probability asked for.
        residual: ‖Ay - θy‖: some eigenvalue, if not the extremal one, is this near.
        vector: y = Qs, of length 1.
        remainder: Ay - θy, from the recurrence.
    """

    value: float
    distance: float
    residual: float
    vector: Tensor
    remainder: Tensor


@dataclass(frozen=True, slots=True)
class Krylov:
    """A symmetric operator projected onto the Krylov space of a random start.

    Args:
        alpha: Diagonal of T, of length m.
        beta: Beside it; β_m, the last of m, is 0 if the space is invariant.
        basis: Q as rows, and q_{m+1} after them: shape ``[m + 1, n]``.
        overlap: Lower bound on the start's component along an eigenvector, with the probability
            asked for.
        asymmetry: Norm of what rounding added to QᵀAQ above its second diagonal, where an
            exactly symmetric operator has zeros.
        converged: Whether both extremal eigenvalues are known to the tolerance.
    """

    alpha: Array
    beta: Array
    basis: Tensor
    overlap: float
    asymmetry: float
    converged: bool

    def quadrature(self) -> tuple[Array, Array]:
        r"""Gauss' rule for :math:`q_1^T f(A) q_1 \approx \sum_i w_i f(\theta_i)`.

        Returns:
            Nodes, ascending, and weights, which sum to 1; exact for polynomials f of degree up
            to 2m - 1.
        """
        theta, s = eigh_tridiagonal(self.alpha, self.beta[:-1])
        return theta, s[0] ** 2

    def extremes(self) -> tuple[RitzPair, RitzPair]:
        """The smallest and the largest eigenvalue."""
        theta, s = eigh_tridiagonal(self.alpha, self.beta[:-1])
        below = distance_above(-theta, self.beta, self.overlap)
        above = distance_above(theta, self.beta, self.overlap)
        return self._pair(theta[0], s[:, 0], below), self._pair(theta[-1], s[:, -1], above)

    def _pair(self, value: float, coefficients: Array, distance: float) -> RitzPair:
        m = len(self.alpha)
        vector = torch.from_numpy(coefficients).to(self.basis) @ self.basis[:m]
        left = float(self.beta[-1] * coefficients[-1])
        return RitzPair(float(value), distance, abs(left), vector, left * self.basis[m])


def random_start(size: int, generator: torch.Generator, like: Tensor) -> Tensor:
    """A start that is uniform on the sphere, drawn on the generator's device."""
    device = generator.device
    start = torch.randn(size, generator=generator, dtype=torch.float32, device=device)
    return start.to(like)


def lanczos(
    product: Product,
    start: Tensor,
    *,
    steps: int,
    tolerance: float,
    failure: float = 1e-3,
    full: bool = False,
) -> Krylov:
    r"""Build the Krylov space of a random start, fully orthogonalised.

    .. math:: \beta_m q_{m+1} = A q_m - \alpha_m q_m - \beta_{m-1} q_{m-1}

    Args:
        product: Returns A v for a vector v of the start's shape, type and device.
        start: A vector that is not zero; for the bounds on eigenvalues to hold, drawn from
            :func:`random_start`. Its type, float32 or float64, is the basis's.
        steps: Most products to take. The basis needs memory for one vector more.
        tolerance: Stop as soon as both extremal eigenvalues are known to this share of the
            larger one's magnitude.
        failure: Probability, over the start, that a bound on an eigenvalue does not hold.
        full: Whether to go on to the last step, or until the space is invariant.

    Returns:
        The projection, converged or not.

    Raises:
        ValueError: If a product is not finite.

    Examples:
        >>> A = torch.diag(torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64))
        >>> start = random_start(3, torch.Generator().manual_seed(0), A)
        >>> smallest, largest = lanczos(lambda v: A @ v, start, steps=3, tolerance=0.01).extremes()
        >>> round(smallest.value, 12), round(largest.value, 12), largest.distance
        (-1.0, 2.0, 0.0)
    """
    size = len(start)
    steps = min(steps, size)
    basis = start.new_empty(steps + 1, size)  # fails at once, not half-way, if it is too big
    basis[0] = start / _length(start)
    asymmetric = np.zeros((steps, steps))
    alpha: list[float] = []
    beta: list[float] = []
    overlap = likely_overlap(size, failure)
    converged = False
    unit = 1.0
    for m in range(steps):
        # In place of the next basis vector: allocating costs more than adding vectors.
        image = basis[m + 1]
        image.copy_(product(basis[m]))
        if m == 0:  # so that squares neither overflow nor vanish
            unit = float(image.abs().max()) or 1.0
        image /= unit
        along, left, strays = _orthogonalise(image, basis[: m + 1], beta[-1] if m else 0.0)
        asymmetric[:m, m] = strays
        if not math.isfinite(along + left):
            raise ValueError(f"product number {m + 1} with a unit vector is not finite.")
        if m + 1 == size:
            left = 0.0
        alpha.append(along)
        beta.append(left)
        if left:
            image /= left
        else:
            image.zero_()
        noise = _EXHAUSTED * torch.finfo(start.dtype).eps * max(np.abs(alpha).max(), max(beta))
        last = m + 1 == steps or left <= noise
        if last or not full:
            converged = _is_converged(alpha, beta, tolerance, overlap)
        if last or (converged and not full):
            break
    m = len(alpha)
    asymmetry = float(np.linalg.norm(asymmetric[:m, :m], 2))
    return Krylov(
        alpha=unit * np.array(alpha),
        beta=unit * np.array(beta),
        basis=basis[: m + 1],
        overlap=overlap,
        asymmetry=unit * asymmetry,
        converged=converged,
    )


def _orthogonalise(image: Tensor, basis: Tensor, beta: float) -> tuple[float, float, Array]:
    """Subtract from A q_m, in place, its part in the basis; return α_m, the rest's length, strays.

    The recurrence comes first, then all of the basis. Only the second step costs m inner products;
    the strays it finds would be zero for an exactly symmetric operator.
    """
    along = basis[-1] @ image
    known = torch.stack([image.new_tensor(beta), along])[-len(basis) :]
    image.addmv_(basis[-2:].T, known, alpha=-1)
    before = _length(image)
    found = basis @ image
    image.addmv_(basis.T, found, alpha=-1)
    if _length(image) < _CANCELLED * before:
        image.addmv_(basis.T, basis @ image, alpha=-1)
    # One transfer from the device.
    found[-1] += along
    *strays, diagonal, left = torch.cat([found, _length(image)[None]]).tolist()
    return diagonal, left, np.array(strays)


def _length(vector: Tensor) -> Tensor:
    # In float32 vector_norm is off by 2e-3 at 3e7 entries on a CPU; a dot product is not.
    return torch.dot(vector, vector).sqrt()


def _is_converged(alpha: list[float], beta: list[float], tolerance: float, overlap: float) -> bool:
    if beta[-1] == 0.0:
        return True
    theta = eigh_tridiagonal(alpha, beta[:-1], eigvals_only=True)
    reach = tolerance * float(np.abs(theta).max())
    ends = (theta, -theta)
    return all(is_within(end, np.array(beta), overlap, reach) for end in ends)
