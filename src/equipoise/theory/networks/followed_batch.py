r"""Follow a given batch through infinitely wide layers, forward and back, by sampling.

The recursions of BSB1 assume that all samples are equally correlated. A residual stream never
forgets the batch it started from, so here the covariances are general:

.. math:: \Sigma \mapsto \sigma_w^2 E[y y^T], \quad
          y = \phi(\gamma\,\mathrm{BN}(h) + \beta), \qquad
          \Pi \mapsto E[(J^Tg)(J^Tg)^T], \quad J = \partial y / \partial h,

with :math:`h \sim N(0, \Sigma)` and :math:`g \sim N(0, \sigma_w^2\Pi)` independent. Every layer
draws new samples. The sampling error is small, and there is no bias from finite width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from equipoise.numerics.checks import check_whole
from equipoise.theory.activation.adapt import ActivationLike
from equipoise.theory.batch_norm.setting import Setting, SettingOptions, as_setting
from equipoise.theory.covariance.bn_map import checked_covariance
from equipoise.theory.simulation.networks import Architecture

Array = NDArray[np.float64]

# Beyond it, a decomposition per layer takes seconds.
LARGEST_FOLLOWED = 1024
_TOLERANCE = 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class FollowedBatch:
    """Squared gradients along infinitely wide layers.

    Args:
        log_gradients: Logarithm of the squared gradient norm with respect to the input of every
            normaliser, and of the output after them, of shape ``[repeats, layers + 1]``, each
            row with its own draws.
        covariance: Covariance of the batch at the output, mean over repeats and without biases,
            ``[B, B]``.
    """

    log_gradients: Array
    covariance: Array


def follow_batch(
    cov: ArrayLike | Tensor,
    setting: Setting | ActivationLike,
    layers: int,
    *,
    architecture: Architecture,
    ends_in_norm: bool = False,
    samples: int = 4096,
    repeats: int = 8,
    generator: torch.Generator | None = None,
    **options: Unpack[SettingOptions],
) -> FollowedBatch:
    r"""Follow a batch through residual blocks with batch norm.

    Args:
        cov: Second moments of the batch where it enters the stream, ``[B, B]``.
        setting: A :class:`Setting` of that batch size, or its activation and keywords. Biases do
            not enter: batch norm removes what all samples share.
        layers: Normalisers on the way, a multiple of ``architecture.stages``.
        architecture: Stages per block and whether a linear layer leads; batch norm only.
        ends_in_norm: Whether another batch norm and activation follow the stream; otherwise
            gradients of different samples are independent where it ends.
        samples: Neurons that a layer is averaged over.
        repeats: Independent repetitions, for a standard error.
        generator: Source of randomness; by default one seeded with 0.

    Raises:
        ValueError: If ``cov`` is not square, symmetric and positive semidefinite, or is
            larger than ``LARGEST_FOLLOWED``, the layers do not fill whole blocks, or a number is
            out of range.

    Examples:
        >>> blocks = Architecture(stages=1)
        >>> followed = follow_batch(np.eye(8), "relu", 10, architecture=blocks, repeats=2)
        >>> followed.log_gradients.shape
        (2, 11)

    References:
        Derived in this module from the methods of [yang2019].
    """
    second_moments = torch.from_numpy(checked_covariance(cov))
    size = len(second_moments)
    if size > LARGEST_FOLLOWED:
        raise ValueError(
            f"cov of {size} samples is too large to follow; use at most {LARGEST_FOLLOWED}."
        )
    if architecture.normaliser != "batch norm" or architecture.stages < 1:
        raise ValueError("follow_batch follows residual blocks with batch norm: set stages.")
    layers, samples = check_whole("layers", layers, 1), check_whole("samples", samples, 2)
    repeats = check_whole("repeats", repeats, 1)
    if layers % architecture.stages:
        raise ValueError(
            f"layers must be a multiple of the {architecture.stages} stages per block, got "
            f"{layers}."
        )
    given = None if isinstance(setting, Setting) else size
    setting = as_setting(setting, given, options)
    if setting.batch_size != size:
        raise ValueError(
            f"cov has {size} samples, but the setting a batch size of {setting.batch_size}. Use "
            f"dataclasses.replace(setting, batch_size={size})."
        )
    total = float(second_moments.trace())
    if setting.eps == 0 and total - float(second_moments.mean()) * size <= _TOLERANCE * total:
        raise ValueError(
            "cov has equal samples only, which batch norm at eps = 0 divides by zero. Give "
            "samples that differ, or an eps."
        )
    generator = generator or torch.Generator().manual_seed(0)
    rows, ends = [], []
    for _ in range(repeats):
        walk = _Walk(setting, architecture, samples, generator)
        end = walk.forward(second_moments, layers // architecture.stages)
        rows.append(walk.backward(end, ends_in_norm))
        ends.append(end)
    return FollowedBatch(np.log(np.array(rows)), torch.stack(ends).mean(0).numpy())


class _Walk:
    """One pass forward through the stream and back."""

    def __init__(
        self,
        setting: Setting,
        architecture: Architecture,
        samples: int,
        generator: torch.Generator,
    ) -> None:
        self.setting, self.architecture = setting, architecture
        self.samples, self.generator = samples, generator
        self.first = setting.weight_variance if architecture.leading else 1.0
        self.inputs: list[Tensor] = []  # covariance at every normaliser

    def forward(self, cov: Tensor, blocks: int) -> Tensor:
        """Return the stream's covariance after the last block."""
        for _ in range(blocks):
            branch = self.first * cov
            for _ in range(self.architecture.stages):
                self.inputs.append(branch)
                y, _, _ = self._respond(branch)
                branch = self.setting.weight_variance * y.T @ y / self.samples
            cov = cov + branch
        return cov

    def backward(self, end: Tensor, ends_in_norm: bool) -> list[float]:
        """Squared gradients at every normaliser, first to last, and at the end of the stream."""
        at_stream = torch.eye(len(end), dtype=end.dtype)
        if ends_in_norm:
            at_stream = self._pull(end, at_stream)
        found = [float(at_stream.trace())]
        stages = self.architecture.stages
        for last in range(len(self.inputs), 0, -stages):
            inside = at_stream
            row = []
            for cov in reversed(self.inputs[last - stages : last]):
                inside = self._pull(cov, inside)
                row.append(float(inside.trace()))
            at_stream = at_stream + self.first * inside
            if not self.architecture.leading:
                row[-1] = float(at_stream.trace())
            found += row
        return found[::-1]

    def _pull(self, cov: Tensor, gradient: Tensor) -> Tensor:
        """Covariance of gradients before batch norm, from that after the linear layer."""
        _, slopes, unit = self._respond(cov)
        c = slopes * self._draw(self.setting.weight_variance * gradient)
        c = c - c.mean(1, keepdim=True)
        c = c - unit * (unit * c).sum(1, keepdim=True)
        return c.T @ c / self.samples

    def _respond(self, cov: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs, their slopes divided by s, and the direction Rv; ``[samples, B]`` each."""
        h = self._draw(cov)
        h = h - h.mean(1, keepdim=True)
        s = (h.square().mean(1, keepdim=True) + self.setting.eps).sqrt()
        argument = self.setting.gamma * h / s + self.setting.beta
        values, slopes = map(torch.from_numpy, self.setting.activation(argument.numpy()))
        return values, self.setting.gamma * slopes / s, h / (s * h.shape[1] ** 0.5)

    def _draw(self, cov: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(cov)
        root = vectors * values.clamp(min=0).sqrt()
        z = torch.randn(self.samples, len(cov), generator=self.generator, dtype=cov.dtype)
        return torch.matmul(z, root.T)
