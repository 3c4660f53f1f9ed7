r"""Eigenvalues from random neurons: exact traces over G, L and M, averaged over samples.

The third way to the spectra, beside closed forms and quadrature. A neuron's Jacobian J over the
batch, written out as a matrix, turns into eigenvalues by traces over the three subspaces, which
are plain linear algebra: no expectation of the theory is used. With Y = GJ,

.. math:: \mathrm{tr}_G = \frac{\|Y\|^2}{n}, \quad
          \mathrm{tr}_L = \frac{\sum_i Y_{ii}^2 - \|Y\|^2/B}{1 - 2/B}, \quad
          \mathrm{tr}_G + \mathrm{tr}_L + \mathrm{tr}_M = \tfrac12\{(\mathrm{tr} Y)^2
          + \mathrm{tr} Y^2\}

for :math:`\Delta\mapsto J^T\Delta J`, and the same with one of the two Y replaced by
:math:`h\,\phi^T/\kappa` for the forward map, whose derivative at κG along Δ moves h by Δh/(2κ).

Symbols: B: batch size, n = B - 1, h: centred pre-activations, s² = mean of h² + ε.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.numerics.checks import check_whole
from equipoise.numerics.options import named_options
from equipoise.records.estimate import Estimate
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.batch_norm.fixed_point.solve import solve_by_quadrature
from equipoise.theory.batch_norm.setting import Setting, SettingOptions, as_setting
from equipoise.theory.batch_norm.spectra.eigenvalues import Spectrum
from equipoise.theory.simulation.networks import PLAIN, Draw, forward

Array = NDArray[np.float64]

# Numbers held at once in B × B matrices.
_CHUNK = 2**22
# Neurons by default: so many numbers in B × B matrices, about a second, within bounds.
_WORK, _FEWEST, _MOST = 2**25, 256, 2**15


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedSpectra:
    """Eigenvalues in networks of finite width, one row per network, columns G, L, M.

    Args:
        backward: Those of the gradients' covariance, of shape ``[networks, 3]``.
        forward: Those of the covariance, ``[networks, 3]``.
        cross_batch: The eigenvalue between two batches, ``[networks]``.
    """

    backward: Array
    forward: Array
    cross_batch: Array


@dataclass(frozen=True, slots=True)
class SampledTheory:
    r"""Monte Carlo twins of the theory's numbers, with standard errors.

    Args:
        kappa: κ; at ε > 0, F(κ) at the κ that quadrature found.
        backward: As :func:`backward_spectrum`.
        forward: As :func:`forward_spectrum`.
        cross_batch: As :func:`cross_batch`.
    """

    kappa: Estimate
    backward: Spectrum
    forward: Spectrum
    cross_batch: Estimate


@named_options
def simulate_spectra(
    setting: Setting | ActivationLike,
    batch_size: int | None = None,
    *,
    width: int = 1000,
    depth: int = 20,
    networks: int = 8,
    generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    **options: Unpack[SettingOptions],
) -> SimulatedSpectra:
    r"""Measure the eigenvalues in the last layer of random networks.

    Arguments as in :func:`simulate_networks`. At finite width the covariance wanders around its
    fixed point, so means differ from theory by terms of order 1/width.

    Raises:
        ValueError: If a number is out of range or the activation is not usable.

    Examples:
        >>> run = simulate_spectra("identity", 16, width=400, networks=2, depth=4)
        >>> run.backward.shape
        (2, 3)
    """
    setting = as_setting(setting, batch_size, options)
    width, depth = check_whole("width", width, 1), check_whole("depth", depth, 1)
    networks = check_whole("networks", networks, 1)
    if generator is None:
        generator = torch.Generator(device).manual_seed(0)
    rows = []
    for _ in range(networks):
        with torch.no_grad():
            draw = Draw(1, width, generator, torch.device(device), dtype)
            layers, _ = forward(setting, PLAIN, depth, draw)
        h = layers[-1][0].detach()
        h = (h - h.mean(0)).T.double()  # [width, B]
        kappa = float(h.square().sum(1).mean()) / (setting.batch_size - 1)
        parts = [_traces(setting, chunk, kappa).mean(0) * len(chunk) for chunk in _chunks(h)]
        rows.append(torch.stack(parts).sum(0) / width)
    table = torch.stack(rows).cpu().numpy()
    return SimulatedSpectra(
        table[:, :3], table[:, 3:6], setting.weight_variance * table[:, 6] ** 2
    )


@named_options
def sample_spectra(
    setting: Setting | ActivationLike,
    batch_size: int | None = None,
    *,
    samples: int | None = None,
    generator: torch.Generator | None = None,
    **options: Unpack[SettingOptions],
) -> SampledTheory:
    r"""Estimate the eigenvalues by Monte Carlo at infinite width, where no bias is left.

    Neurons are drawn from the fixed point itself, N(0, κG) with κ from quadrature. Directions are
    uniform; for the backward map the squared radius is drawn from :math:`\chi^2_{B-3}` and
    reweighted, because a plain average of :math:`\|h\|^{-2}` has infinite variance at B ≤ 5.

    Args:
        setting: A :class:`Setting`, or its activation, followed by its batch size and keywords.
        batch_size: Only beside an activation.
        samples: Neurons to draw, at least 2; by default 2¹⁵, fewer at batches above 32, because
            every neuron costs B² numbers.
        generator: Source of randomness; by default one seeded with 0.

    Raises:
        ValueError: If a number is out of range, the activation is not usable, or the fixed point
            has collapsed (ε above :func:`critical_eps`), which leaves nothing to sample.

    Examples:
        >>> sampled = sample_spectra("tanh", 8, samples=4000)
        >>> exact = solve_by_quadrature(Setting("tanh", 8)).backward[1]
        >>> abs(sampled.backward.L.value - exact.value) < 4 * sampled.backward.L.error
        True
    """
    setting = as_setting(setting, batch_size, options)
    B = setting.batch_size
    if samples is None:
        samples = max(_FEWEST, min(_MOST, _WORK // B**2))
    samples = check_whole("samples", samples, 2)
    solution = solve_by_quadrature(setting)
    if solution.kappa.value == 0:
        raise ValueError(
            f"at eps = {setting.eps:g} all samples become equal, and there is nothing to sample: "
            "take an eps below critical_eps."
        )
    generator = generator or torch.Generator().manual_seed(0)
    n, kappa = B - 1, solution.kappa.value
    direction = torch.randn(samples, B, generator=generator, dtype=torch.float64)
    direction -= direction.mean(1, keepdim=True)
    direction *= (kappa / direction.square().sum(1, keepdim=True)).sqrt()
    plain, reduced = _chi_squared(n, samples, generator), _chi_squared(n - 2, samples, generator)
    forward = torch.cat(
        [_traces(setting, h, kappa)[:, 3:] for h in _chunks(direction * plain.sqrt()[:, None])]
    )
    backward = torch.cat(
        [_traces(setting, h, kappa)[:, :3] for h in _chunks(direction * reduced.sqrt()[:, None])]
    )
    backward *= (reduced / (n - 2))[:, None]
    method = f"Monte Carlo, {samples} neurons"

    def estimates(table: Tensor) -> list[Estimate]:
        return [Estimate.of_mean(column, method) for column in table.T.numpy()]

    def spectrum(table: Tensor) -> Spectrum:
        G, L, M = estimates(table)
        return Spectrum(G, L, M, B)

    mean_slope, kappa_again = estimates(forward[:, 3:5])
    cross = setting.weight_variance * mean_slope.value**2
    error = 2 * setting.weight_variance * abs(mean_slope.value) * mean_slope.error
    return SampledTheory(
        kappa=kappa_again,
        backward=spectrum(backward),
        forward=spectrum(forward[:, :3]),
        cross_batch=Estimate(cross, error, method),
    )


def _chi_squared(degrees: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw from χ² with any whole number of degrees of freedom."""
    total = torch.zeros(count, dtype=torch.float64)
    for start in range(0, degrees, 64):
        shape = count, min(64, degrees - start)
        total += torch.randn(shape, generator=generator, dtype=torch.float64).square().sum(1)
    return total


def _chunks(h: Tensor) -> Iterator[Tensor]:
    size = max(1, _CHUNK // h.shape[1] ** 2)
    for start in range(0, len(h), size):
        yield h[start : start + size]


def _traces(setting: Setting, h: Tensor, kappa: float) -> Tensor:
    """Per neuron: backward G, L, M, forward G, L, M, mean slope tr Y / n, and κ of the output.

    Args:
        setting: The problem.
        h: Centred pre-activations, of shape ``[neurons, B]``.
        kappa: Their variance per dimension at the fixed point.

    Returns:
        A tensor of shape ``[neurons, 8]``.
    """
    B = h.shape[1]
    n = B - 1
    s = (h.square().mean(1, keepdim=True) + setting.eps).sqrt()
    values, slopes = _respond(setting, h / s)
    slopes = setting.gamma * slopes / s
    values = values - values.mean(1, keepdim=True)
    unit = h / (s * B**0.5)  # R v
    Y = slopes[:, :, None] * (torch.eye(B, dtype=h.dtype, device=h.device) - 1 / B)
    Y -= (slopes * unit)[:, :, None] * unit[:, None, :]
    Y -= Y.mean(1, keepdim=True)
    diagonal = Y.diagonal(dim1=1, dim2=2)
    trace, square = diagonal.sum(1), Y.square().sum((1, 2))
    sums = torch.stack([square, diagonal.square().sum(1), trace**2, (Y * Y.mT).sum((1, 2))], 1)
    backward = setting.weight_variance * _eigenvalues(sums, B)

    Yh = (Y * h[:, None, :]).sum(2)
    hY = (Y * h[:, :, None]).sum(1)
    together = (values * h).sum(1) * trace
    sums = torch.stack(
        [(values * Yh).sum(1), (values * diagonal * h).sum(1), together, (hY * values).sum(1)], 1
    )
    forward = setting.weight_variance / kappa * _eigenvalues(sums, B)
    spread = setting.weight_variance * values.square().sum(1) / n
    return torch.cat([backward, forward, torch.stack([trace / n, spread], 1)], 1)


def _eigenvalues(sums: Tensor, B: int) -> Tensor:
    """Turn Σ_ij X_ij Y_ij, Σ_i X_ii Y_ii, tr X tr Y and tr XY into eigenvalues."""
    square, diagonal, traces, product = sums.T
    along_g = square / (B - 1)
    in_l = (diagonal - square / B) / (1 - 2 / B)
    in_m = (traces + product) / 2 - along_g - in_l
    return torch.stack([along_g, in_l / (B - 1), in_m / (B * (B - 3) / 2)], 1)


def _respond(setting: Setting, normalised: Tensor) -> tuple[Tensor, Tensor]:
    argument = setting.gamma * normalised + setting.beta
    values, slopes = setting.activation(argument.cpu().numpy())
    return torch.from_numpy(values).to(normalised), torch.from_numpy(slopes).to(normalised)
