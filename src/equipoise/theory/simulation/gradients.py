r"""The theory's own networks at finite width: random, batch-normalised, differentiated.

The third way to the same numbers, beside closed forms and quadrature. It also measures how much
of a difference finite width alone explains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.instrument.forward import recording_gradients
from equipoise.numerics.checks import check_whole
from equipoise.numerics.options import named_options
from equipoise.records.estimate import Estimate
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.batch_norm.setting import Setting, SettingOptions, as_setting
from equipoise.theory.simulation.networks import PLAIN, Architecture, Draw, forward

Array = NDArray[np.float64]

# Numbers held at once: of each layer the weights, and about four tensors of activations.
_CHUNK = 2**27
# The first layers still carry the input's covariance.
_SETTLING = 2


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedNetworks:
    """Gradients and covariances in random networks; layers run from input to output.

    Args:
        log_gradients: Logarithm of the squared gradient norm with respect to each layer's
            pre-activations, of shape ``[networks, depth]``.
        second_moments: Mean square of the pre-activations, ``[networks, depth]``.
        correlations: Mean correlation of two samples, ``[networks, depth]``.
    """

    log_gradients: Array
    second_moments: Array
    correlations: Array


@named_options
def simulate_networks(
    setting: Setting | ActivationLike,
    batch_size: int | None = None,
    *,
    width: int = 1000,
    depth: int = 20,
    networks: int = 8,
    generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    architecture: Architecture = PLAIN,
    **options: Unpack[SettingOptions],
) -> SimulatedNetworks:
    r"""Run random networks :math:`h^l = W^l\phi(\gamma\,\mathrm{BN}(h^{l-1})+\beta) + b^l`.

    Inputs are independent Gaussian samples; the gradient that enters at the top is Gaussian.

    Args:
        setting: A :class:`Setting`, or its activation, followed by its batch size and keywords.
        batch_size: Only beside an activation.
        width: Neurons per layer.
        depth: Layers.
        networks: Independent networks.
        generator: Source of randomness on ``device``; by default one seeded with 0.
        device: Where to compute.
        dtype: In which precision; norms are summed in float64 where the device has it.
        architecture: Another normaliser, or residual blocks.

    Raises:
        ValueError: If a number is out of range or the activation is not usable.

    Examples:
        >>> run = simulate_networks("relu", 8, width=32, depth=4, networks=2)
        >>> run.log_gradients.shape
        (2, 4)
    """
    setting = as_setting(setting, batch_size, options)
    width, depth = check_whole("width", width, 1), check_whole("depth", depth, 1)
    networks = check_whole("networks", networks, 1)
    if generator is None:
        generator = torch.Generator(device).manual_seed(0)
    per_network = depth * width * (width + 4 * setting.batch_size)
    at_once = max(1, min(networks, _CHUNK // per_network))
    parts = []
    for start in range(0, networks, at_once):
        count = min(at_once, networks - start)
        draw = Draw(count, width, generator, torch.device(device), dtype)
        parts.append(_run(setting, architecture, depth, draw))
    stacked = (np.concatenate(part) for part in zip(*parts, strict=True))
    return SimulatedNetworks(*stacked)


@named_options
def simulate_explosion_rate(
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
) -> Estimate:
    r"""Estimate :func:`explosion_rate` from random networks of finite width.

    The mean over layers and networks of :math:`\|\nabla_{l-1}\|^2/\|\nabla_l\|^2`, which tends
    to :math:`\lambda_G` with a bias of order 1/width. Arguments as in
    :func:`simulate_networks`; the first two layers are left out.

    Returns:
        The rate with its standard error over networks.

    Raises:
        ValueError: If a number is out of range, or ``depth < 4`` or ``networks < 2``, which
            leave no standard error.

    Examples:
        >>> rate = simulate_explosion_rate("identity", 16, width=400, networks=16)
        >>> abs(rate.value - 14 / 13) < 4 * rate.error
        True
    """
    if depth < _SETTLING + 2 or networks < 2:
        raise ValueError(
            f"simulation needs depth of at least {_SETTLING + 2} and 2 networks for a standard "
            f"error, got depth = {depth}, networks = {networks}."
        )
    run = simulate_networks(
        as_setting(setting, batch_size, options),
        width=width,
        depth=depth,
        networks=networks,
        generator=generator,
        device=device,
        dtype=dtype,
    )
    ratios = np.exp(-np.diff(run.log_gradients[:, _SETTLING:], axis=1))
    method = f"simulation of {networks} networks, width {width}, depth {depth}"
    return Estimate.of_mean(ratios.mean(1), method)


def _run(
    setting: Setting, architecture: Architecture, depth: int, draw: Draw
) -> tuple[Array, Array, Array]:
    """Run some networks side by side; each result has shape ``[networks, depth]``."""
    with recording_gradients():
        layers, output = forward(setting, architecture, depth, draw)
        top = (output * draw.normal(*output.shape)).sum()
        gradients = torch.autograd.grad(top, layers)
    device = output.device
    exact = torch.float32 if device.type == "mps" else torch.float64
    logs, moments, correlations = [], [], []
    for h, gradient in zip(layers, gradients, strict=True):
        h = h.detach().to(exact)
        logs.append(gradient.to(exact).square().sum((1, 2)).log())
        square = h.square().mean((1, 2))
        together = h.mean(1).square().mean(1)  # mean over all pairs, equal ones included
        moments.append(square)
        B = setting.batch_size
        correlations.append((B * together - square) / ((B - 1) * square))
    results = (
        torch.stack(part, 1).cpu().double().numpy() for part in (logs, moments, correlations)
    )
    a, b, c = results
    return a, b, c
