r"""How one layer with batch norm maps the covariance of a batch, for any covariance.

.. math:: V_{B_\phi}(\Sigma) = E[f f^T], \quad f = \phi\Big(\gamma\frac{y}{\sqrt{S+\varepsilon}}
          + \beta\Big), \quad y = Gh, \quad S = \frac{\|y\|^2}{B}, \quad h \sim N(0, \Sigma)

Two integral forms reduce this to Gaussian covariance kernels V_φ; both are sums over nodes of
weight × V_φ(a matrix with the eigenvectors of GΣG). In Laplace's, for φ of degree α,

.. math:: (S+\varepsilon)^{-\alpha} = \frac1{\Gamma(\alpha)}\int_0^\infty
          s^{\alpha-1} e^{-s(S+\varepsilon)}\,ds ,

in Fourier's the density of S at t is an inverse Laplace transform along a contour in p.

Symbols: B: batch size, G: centring projector, λ_k: eigenvalues of GΣG, scaled so that the largest
is 1, C: their number, b_k = B/(2λ_k), d_k = b_k - min b, D_k = q + d_k.

References:
    [yang2019], Appendix on the Laplace and Fourier methods; extended to ε > 0 here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from equipoise.theory.activations import Activation
from equipoise.theory.adapt import ActivationLike, as_activation
from equipoise.theory.kernels import Kernel, Numbers, closed_form_kernel

Array = NDArray[np.float64]
Method = Literal["auto", "laplace", "fourier", "monte carlo"]

_UNIT = 2.220446049250313e-16
# Nodes whose weight is below exp(-40) = 4e-18 of the largest are left out.
_LEFT_OUT = 40.0
# Relative asymmetry and negative eigenvalues up to this are rounding of the caller's.
_TOLERANCE = 1e-8
# Beyond this relative error of Fourier's form, "auto" prefers Monte Carlo: sin's kernel grows like
# exp(B) on the contour if a few samples dominate a large batch.
_USEFUL = 1e-4
# Numbers held at once while a rule is summed.
_CHUNK = 2**18
# Angle of the contour from the vertical. Below π/4 the integrand falls from the saddle on,
# whatever the spectrum, so that nothing cancels.
_TILT = 0.7


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


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """Nodes whose sum of weight × V_φ(U diag(shrunk) Uᵀ) is the map, as its real part.

    Args:
        shrunk: Eigenvalues at each node, of shape ``[nodes, C]``.
        weight: Weights, ``[nodes]``.
        coarse: Weights of the rule with twice the steps, ``[nodes]``.
    """

    shrunk: Numbers
    weight: Numbers
    coarse: Numbers


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
            semidefinite, B at least 2. Any rank will do; eigenvalues of GΣG at the level of
            rounding count as 0. (At rank 1 the map is that sensitive: a second eigenvalue of
            relative size δ changes it by √δ.)
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
        [yang2019], Section 3 and Appendix (Laplace and Fourier methods).
    """
    function = as_activation(activation)
    _check_numbers(eps, gamma, beta, samples)
    matrix = checked_covariance(cov)
    spectrum = centred_spectrum(matrix)
    if not spectrum.values.size:
        return _equal_samples(function, len(matrix), eps, beta)
    kernel = None if beta else closed_form_kernel(function)
    route = _route(method, function, kernel, beta)
    if kernel is not None and route != "monte carlo":
        rule = _rule(route, kernel, spectrum, eps)
        mapped = _integrate(kernel, spectrum, rule, gamma**2, route)
        if method != "auto" or mapped.error.max() <= _USEFUL * np.abs(mapped.value).max():
            return mapped
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    return _monte_carlo(spectrum, function, eps, gamma, beta, samples, generator)


def _rule(route: str, kernel: Kernel, spectrum: CentredSpectrum, eps: float) -> Rule:
    batch_size, relative_eps = len(spectrum.vectors), eps / spectrum.largest
    if route == "laplace" and kernel.degree is not None:
        return laplace_rule(spectrum.values, batch_size, kernel.degree, relative_eps)
    return fourier_rule(spectrum.values, batch_size, relative_eps)


def laplace_rule(values: Array, batch_size: int, alpha: float, eps: float = 0.0) -> Rule:
    r"""Trapezoid rule in log s of Laplace's form.

    .. math:: V_{B_\phi} = \frac{B^\alpha}{\Gamma(\alpha)}\int_0^\infty ds\,s^{\alpha-1}
        e^{-sB\varepsilon}\det(I+2s\Sigma^G)^{-1/2}\,V_\phi\big(\Sigma^G(I+2s\Sigma^G)^{-1}\big)

    Args:
        values: Positive eigenvalues λ_k, the largest being 1.
        batch_size: B.
        alpha: Degree of φ.
        eps: ε in the units of ``values``.
    """
    # Γ(α + iω), the integrand's transform at large B, has a width of √α in ω. At this step the
    # coarse rule is exact to 1e-12.
    step = 0.15 / max(1.0, math.sqrt(alpha))
    lowest = -_LEFT_OUT / alpha - math.log(2 * batch_size * (1 + eps))
    index = np.arange(math.floor(lowest / step), math.ceil(90 / step))
    s = np.exp(step * index)
    growth = 1 + 2 * s[:, None] * values
    logs = alpha * step * index - np.log(growth).sum(1) / 2 - s * batch_size * eps
    logs += alpha * math.log(batch_size) - math.lgamma(alpha) + math.log(step)
    kept = _above(logs + alpha * np.log((values / growth).max(1)))
    weight = np.exp(logs[kept])
    return Rule((values / growth)[kept], weight, 2 * weight * (index[kept] % 2 == 0))


def fourier_rule(values: Array, batch_size: int, eps: float = 0.0) -> Rule:
    r"""Product rule of Fourier's form, over S and a contour in p = iλ.

    .. math:: V_{B_\phi} = \int_0^\infty dt\int\frac{dp}{2\pi i}\,e^{pt}
        \det\Big(I+\frac{2p}B\Sigma^G\Big)^{-1/2}\,V_\phi\Big(\frac1{t+\varepsilon}
        \Sigma^G\big(I+\frac{2p}B\Sigma^G\big)^{-1}\Big)

    t runs over the values of S and is parametrised by the saddle point of the inner integrand,
    t = ½ Σ_k 1/D_k at p = q - min b. The contour is a hyperbola through that saddle, bent towards
    the branch points. Talbot's bends further, so that the determinant grows along it before e^pt
    decays: with equal eigenvalues e^4 cancels at C = 100, but e^31 at C = 200.

    Args:
        values: Positive eigenvalues λ_k, the largest being 1.
        batch_size: B.
        eps: ε in the units of ``values``.
    """
    b = batch_size / (2 * values)
    shift = b.min()
    step, index, saddle = _saddles(b, shift)
    fine, column, move, speed = _hyperbola()
    distance = saddle[:, None] + (b - shift)  # [saddles, C]
    t = (1 / distance).sum(1) / 2
    curvature = (1 / distance**2).sum(1) / 2
    shifts = move / np.sqrt(curvature)[:, None]  # [saddles, columns], p - p_saddle
    point = distance[:, None, :] + shifts[:, :, None]  # p + b_k
    logs = (saddle[:, None] - shift + shifts) * t[:, None] - np.log(point / b).sum(2) / 2
    logs += np.log(speed) + np.log(fine * step / np.pi * np.sqrt(curvature) * saddle)[:, None]
    kept = logs.real > logs.real.max() - _LEFT_OUT
    weight = np.exp(logs) * np.where(column == 0, 0.5, 1.0)  # the other half is its conjugate
    even = (index[:, None] % 2 == 0) & (column % 2 == 0)
    shrunk = batch_size / (2 * point) / (t + eps)[:, None, None]
    return Rule(shrunk[kept], weight[kept], (4 * weight * even)[kept])


def _hyperbola() -> tuple[float, NDArray[np.int64], Numbers, Numbers]:
    """Step, columns, points and speed (over i) of the upper half of a contour of width 1."""
    # At this step the coarse rule is exact to 1e-10, or 1e-14 at small B.
    step = 0.075
    column = np.arange(math.ceil(6 / step))
    sinh, cosh = np.sinh(step * column), np.cosh(step * column)
    bend, rise = math.sin(_TILT), math.cos(_TILT)
    return step, column, bend * (1 - cosh) + 1j * rise * sinh, rise * cosh + 1j * bend * sinh


def _saddles(b: Array, shift: float) -> tuple[float, NDArray[np.int64], Array]:
    """Step, indices and values of q on a logarithmic grid, where the inner integrals matter."""
    # The density of log S has a width of √(2/C).
    step = 0.18 / max(1.0, math.sqrt(len(b) / 2))
    index = np.arange(math.floor(-8 / step), math.ceil(90 / step))
    q = shift * np.exp(step * index)
    distance = q[:, None] + (b - shift)
    t, curvature = (1 / distance).sum(1) / 2, (1 / distance**2).sum(1) / 2
    height = (q - shift) * t - np.log(distance / b).sum(1) / 2
    kept = _above(height + np.log(q) + np.log(curvature) / 2)
    return step, index[kept], q[kept]


def _above(logs: Array) -> NDArray[np.bool_]:
    return np.asarray(logs > logs.max() - _LEFT_OUT)


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
    """Average over pairs of batches h and -h; pairs are independent, so errors are honest."""
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


def _route(method: str, activation: Activation, kernel: Kernel | None, beta: float) -> str:
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
        if not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value}.")
    if eps < 0:
        raise ValueError(f"eps must not be negative, got {eps}.")
    if gamma == 0:
        raise ValueError("gamma must not be 0: batch norm would send no signal at all.")
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 4:
        raise ValueError(f"samples must be a whole number of at least 4, got {samples!r}.")


def checked_covariance(cov: ArrayLike | Tensor) -> Array:
    """Check that ``cov`` is symmetric and positive semidefinite; return it as float64."""
    given: Any = cov.detach().cpu().numpy() if isinstance(cov, Tensor) else cov
    matrix = np.array(given, dtype=np.float64)
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
