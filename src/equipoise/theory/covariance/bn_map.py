r"""How one layer with batch norm maps the covariance of a batch, for any covariance.

.. math:: V_{B_\phi}(\Sigma) = E[f f^T], \quad f = \phi\Big(\gamma\frac{y}{\sqrt{S+\varepsilon}}
          + \beta\Big), \quad y = Gh, \quad S = \frac{\|y\|^2}{B}, \quad h \sim N(0, \Sigma)

Two integral forms (:mod:`equipoise.theory.covariance.laplace_fourier`) reduce this to Gaussian
covariance kernels V_φ of matrices with the eigenvectors of GΣG; without a kernel, batches are
drawn.

Symbols: B: batch size, G: centring projector, C: rank of GΣG.

References:
    [yang2019], Theorems 2 and 3, Appendices B.1.1 and B.1.2; extended to ε > 0 here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from equipoise.numerics.checks import check_whole, check_within
from equipoise.numerics.options import named_options
from equipoise.theory.activation.adapt import ActivationLike, as_activation
from equipoise.theory.activation.catalogue import Activation
from equipoise.theory.covariance.kernels import Kernel, closed_form_kernel
from equipoise.theory.covariance.laplace_fourier import Rule, fourier_rule, laplace_rule

Array = NDArray[np.float64]
Method = Literal["auto", "laplace", "fourier", "monte carlo"]

_UNIT = 2.220446049250313e-16
# Relative asymmetry and negative eigenvalues up to this count as the caller's rounding.
_TOLERANCE = 1e-8
# Beyond this relative error of Fourier's form, "auto" prefers Monte Carlo: sin's kernel grows like
# exp(B) on the contour if a few samples dominate a large batch.
_USEFUL = 1e-4
# Numbers held at once while a rule is summed.
_CHUNK = 2**18


@dataclass(frozen=True, slots=True, eq=False)
class MappedCovariance:
    """A covariance matrix after one layer.

    Args:
        value: The matrix, of shape ``[B, B]``.
        error: Of the same shape; a bound on the numerical error, or for ``"monte carlo"`` one
            standard error.
        method: How it was obtained.
    """

    value: Array
    error: Array
    method: str


@dataclass(frozen=True, slots=True, eq=False)
class CentredSpectrum:
    """The nonzero eigenvalues of GΣG and their eigenvectors.

    Args:
        values: In units of the largest, ascending, of shape ``[C]``.
        vectors: Of shape ``[B, C]``.
        largest: The largest eigenvalue; 0 if all samples are equal, and C is then 0.
        rounding: Relative rounding of GΣG, more than a unit if Σ has a large shared part.
    """

    values: Array
    vectors: Array
    largest: float
    rounding: float


@named_options
def bn_map(
    cov: ArrayLike | Tensor,
    activation: ActivationLike,
    method: Method = "auto",
    *,
    eps: float = 0.0,
    gamma: float = 1.0,
    beta: float = 0.0,
    samples: int = 2**16,
    generator: torch.Generator | None = None,
) -> MappedCovariance:
    r"""Covariance of a batch after batch norm and an activation.

    .. math:: V_{B_\phi}(\Sigma) = E[f f^T], \quad
              f = \phi(\gamma\,\mathrm{BN}_\varepsilon(h)+\beta), \quad h \sim N(0, \Sigma)

    Args:
        cov: Covariance Σ of one neuron over the batch, of shape ``[B, B]``, symmetric, positive
            semidefinite, B at least 2, of any rank. Eigenvalues of GΣG at the level of rounding
            count as 0; at rank 1 they would matter, because a second eigenvalue of relative size
            δ changes the map by √δ.
        activation: A name, a module, or an elementwise callable on float64 tensors.
        method: ``"laplace"`` needs a positive-homogeneous activation, ``"fourier"`` one whose
            Gaussian kernel is known (see :func:`closed_form_kernel`), both ``beta = 0``;
            ``"monte carlo"`` takes any. ``"auto"`` takes the first that applies and is accurate.
            At B = 64 they cost 0.05, 4 and 0.5 seconds.
        eps: Batch norm's ε, in units of the variances in ``cov``.
        gamma: Batch norm's scale.
        beta: Batch norm's shift.
        samples: Batches drawn by ``"monte carlo"``, half of them and their negatives.
        generator: Its source of randomness; by default one seeded with 0.

    Returns:
        The mapped covariance. Its error is the difference of two levels of refinement plus what
        rounding may do to the integrals and eigenvectors, and for ``"monte carlo"`` one standard
        error. It supposes that ``cov`` is exact.

    Raises:
        ValueError: If ``cov`` is not such a matrix, all samples are equal at ``eps = 0``, the
            method does not apply, or a number is out of range.
        TypeError: If the activation is no activation at all.

    Examples:
        >>> mapped = bn_map(np.eye(3), "identity")
        >>> mapped.value.round(12), mapped.method  # B/(B - 1) G
        (array([[ 1. , -0.5, -0.5],
               [-0.5,  1. , -0.5],
               [-0.5, -0.5,  1. ]]), 'laplace')

    References:
        [yang2019], Theorems 2 and 3, Appendices B.1.1 and B.1.2.
    """
    function = as_activation(activation)
    _check_numbers(eps, gamma, beta, samples)
    matrix = checked_covariance(cov)
    spectrum = centred_spectrum(matrix)
    if not spectrum.values.size:
        return _equal_samples(function, len(matrix), eps, beta)
    kernel = None if beta else closed_form_kernel(function)
    chosen = _choose_method(method, function, kernel, beta)
    if kernel is not None and chosen != "monte carlo":
        rule = _rule(chosen, kernel, spectrum, eps)
        mapped = _integrate(kernel, spectrum, rule, gamma**2, chosen)
        if method != "auto" or mapped.error.max() <= _USEFUL * np.abs(mapped.value).max():
            return mapped
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    return _monte_carlo(spectrum, function, eps, gamma, beta, samples, generator)


def _rule(method: str, kernel: Kernel, spectrum: CentredSpectrum, eps: float) -> Rule:
    batch_size, relative_eps = len(spectrum.vectors), eps / spectrum.largest
    if method == "laplace" and kernel.degree is not None:
        return laplace_rule(spectrum.values, batch_size, kernel.degree, relative_eps)
    return fourier_rule(spectrum.values, batch_size, relative_eps)


def _integrate(
    kernel: Kernel, spectrum: CentredSpectrum, rule: Rule, size: float, method: str
) -> MappedCovariance:
    vectors = spectrum.vectors
    batch_size = len(vectors)
    value, coarse, rough = (np.zeros((batch_size, batch_size)) for _ in range(3))
    at_once = max(1, _CHUNK // batch_size**2)
    for start in range(0, len(rule.weight), at_once):
        part = slice(start, start + at_once)
        scaled = vectors * (size * rule.shrunk[part, None, :])
        mapped = kernel(scaled @ vectors.T)  # [nodes, B, B]
        value += np.tensordot(rule.weight[part], mapped, 1).real
        coarse += np.tensordot(rule.coarse[part], mapped, 1).real
        rough += np.tensordot(np.abs(rule.weight[part]), np.abs(mapped), 1)
    # Eigenvectors err by rounding of the largest samples, which then blurs the smallest too.
    blur = (16 + batch_size) * (1 + (kernel.degree or 1)) * spectrum.rounding * rough.max()
    error = np.abs(value - coarse) + blur
    return MappedCovariance((value + value.T) / 2, np.maximum(error, error.T), method)


def _monte_carlo(
    spectrum: CentredSpectrum,
    activation: Activation,
    eps: float,
    gamma: float,
    beta: float,
    samples: int,
    generator: torch.Generator,
) -> MappedCovariance:
    """Average over pairs of batches h and -h; pairs are independent, so standard errors hold."""
    (B, rank), pairs = spectrum.vectors.shape, samples // 2
    total, squares = np.zeros((B, B)), np.zeros((B, B))
    at_once = max(1, 4 * _CHUNK // B)
    device = generator.device
    for start in range(0, pairs, at_once):
        count = min(at_once, pairs - start)
        draw = torch.randn(count, rank, generator=generator, dtype=torch.float64, device=device)
        y = (draw.cpu().numpy() * np.sqrt(spectrum.values)) @ spectrum.vectors.T
        scale = np.sqrt((y * y).mean(1, keepdims=True) + eps / spectrum.largest)
        plus, minus = (activation.values(sign * gamma * y / scale + beta) for sign in (1, -1))
        total += (plus.T @ plus + minus.T @ minus) / 2
        mixed = plus * minus
        squares += ((plus**2).T @ plus**2 + (minus**2).T @ minus**2 + 2 * mixed.T @ mixed) / 4
    value = total / pairs
    variance = np.maximum(squares / pairs - value**2, 0)
    error = np.sqrt(variance / (pairs - 1)) + B * _UNIT * np.abs(value)
    return MappedCovariance(value, error, "monte carlo")


def _equal_samples(
    activation: Activation, batch_size: int, eps: float, beta: float
) -> MappedCovariance:
    if eps == 0:
        raise ValueError(
            "cov has equal samples only (GΣG = 0), which batch norm at eps = 0 divides by zero. "
            "Give samples that differ, or eps > 0."
        )
    output = float(activation.values(np.array([float(beta)]))[0])
    value = np.full((batch_size, batch_size), output * output)
    return MappedCovariance(value, _UNIT * np.abs(value), "closed form")


def _choose_method(method: str, activation: Activation, kernel: Kernel | None, beta: float) -> str:
    if method not in ("auto", "laplace", "fourier", "monte carlo"):
        raise ValueError(f"method must be auto, laplace, fourier or monte carlo, got {method!r}.")
    if method == "auto":
        if kernel is None:
            return "monte carlo"
        return "fourier" if kernel.degree is None else "laplace"
    if method == "laplace" and (kernel is None or kernel.degree is None):
        need = "a positive-homogeneous activation of degree above 1/2"
    elif method == "fourier" and kernel is None:
        need = "an activation whose Gaussian kernel is known"
    else:
        return method
    raise ValueError(
        f"the {method} form needs {need} and beta = 0, got {activation.name} and "
        f'beta = {beta:g}. Use method="monte carlo" or "auto".'
    )


def _check_numbers(eps: float, gamma: float, beta: float, samples: int) -> None:
    for name, value in (("eps", eps), ("gamma", gamma), ("beta", beta)):
        check_within(name, value, "[0, inf)" if name == "eps" else "(-inf, inf)")
    if gamma == 0:
        raise ValueError("gamma must not be 0: batch norm would send no signal at all.")
    check_whole("samples", samples, 4)


def checked_covariance(cov: ArrayLike | Tensor) -> Array:
    """Check that ``cov`` is symmetric and positive semidefinite; return it as float64."""
    values: Any = cov.detach().cpu().numpy() if isinstance(cov, Tensor) else cov
    matrix = np.array(values, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) < 2:
        raise ValueError(
            f"cov must be a square matrix of at least 2 samples, got shape {matrix.shape}."
        )
    if not np.isfinite(matrix).all():
        raise ValueError("cov must be finite, got nan or infinity in it.")
    largest = np.abs(matrix).max()
    asymmetry = np.abs(matrix - matrix.T).max()
    if asymmetry > _TOLERANCE * largest:
        raise ValueError(
            f"cov must be symmetric, its entries differ from their mirror images by up to "
            f"{asymmetry:.3g}. If that is rounding, give (cov + cov.T) / 2."
        )
    matrix = (matrix + matrix.T) / 2
    lowest = np.linalg.eigvalsh(matrix)[0]
    if lowest < -_TOLERANCE * largest:
        raise ValueError(
            f"cov must be positive semidefinite, its lowest eigenvalue is {lowest:.3g}. "
            "Give a matrix of second moments or a covariance."
        )
    return matrix


def centred_spectrum(cov: Array) -> CentredSpectrum:
    """Decompose GΣG once; eigenvalues at the level of Σ's rounding are left out."""
    row = cov.mean(0)
    centred = cov - row - row[:, None] + row.mean()
    values, vectors = np.linalg.eigh(centred)
    # Four times what eigh may err; Σ's own size counts, as a shared part cancels in GΣG.
    rounding = _UNIT * max(np.abs(cov).max(), values[-1])
    kept = values > 4 * len(cov) * rounding
    if not kept.any():
        return CentredSpectrum(np.zeros(0), np.zeros((len(cov), 0)), 0.0, _UNIT)
    largest = float(values[-1])
    return CentredSpectrum(values[kept] / largest, vectors[:, kept], largest, rounding / largest)
