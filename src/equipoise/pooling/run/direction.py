"""The direction that RUN shrinks, its distance from an eigenvector, and its share of energy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.numerics.precision import without_autocast
from equipoise.pooling.matrices import valid_positions
from equipoise.pooling.run.inputs import (
    Start,
    as_batch,
    batch_mask,
    check_features,
    check_steps,
    first_vector,
    is_mean,
)
from equipoise.pooling.run.iteration import Settings, iterate, unit


@dataclass(frozen=True, slots=True)
class LeadingDirection:
    r"""The result of a power iteration for every sample; all 0 where there is no direction.

    Attributes:
        direction: :math:`\hat v`, shape ``[..., D]``.
        rayleigh: :math:`\rho = \hat v^\top B\hat v`, shape ``[...]``; at most the largest
            eigenvalue of B.
        residual: :math:`\lVert B\hat v - \rho\hat v\rVert / \rho`, shape ``[...]``; 0 at an
            eigenvector. Some eigenvalue lies within this fraction of ρ.
        share: :math:`\rho / \operatorname{tr} B`, shape ``[...]``; the direction's part of the
            energy.
    """

    direction: Tensor
    rayleigh: Tensor
    residual: Tensor
    share: Tensor


@torch.no_grad()
def leading_direction(
    features: Tensor,
    start: Start,
    *,
    num_steps: int = 2,
    mask: Tensor | None = None,
    fallback: Tensor | None = None,
) -> LeadingDirection:
    r"""The direction that :func:`run_factor` shrinks, and how close it is to an eigenvector.

    Args:
        features: F, shape ``[..., N, D]``, with at least one position.
        start: As in :func:`run_factor`.
        num_steps: K.
        mask: As in :func:`run_factor`.
        fallback: As in :func:`run_factor`.

    Returns:
        Direction, Rayleigh quotient, residual and share, without gradient, float32 or better.
        A residual near the type's rounding has no correct digits.

    Raises:
        TypeError: If a tensor has the wrong type, or the start is an unknown word.
        ValueError: If shapes do not match, K is out of range, or there is no position.

    Examples:
        >>> features = torch.diag(torch.tensor([3.0, 1.0]))
        >>> found = leading_direction(features, torch.tensor([1.0, 0.0]))
        >>> found.rayleigh.item(), found.residual.item(), round(found.share.item(), 4)
        (9.0, 0.0, 0.9)
    """
    check_features(features)
    check_steps(num_steps, start)
    if features.shape[-2] == 0:
        raise ValueError(f"features must have a position; got shape {tuple(features.shape)}.")
    v_0 = first_vector(start, features, fallback=fallback)
    settings = Settings(0.0, num_steps, is_mean(start), differentiate_direction=False)
    with without_autocast(features.device):
        F = valid_positions(as_batch(features), batch_mask(mask, features))
        v = iterate(F, v_0, settings).direction
        image, root = unit(torch.bmm(v, F.mT))  # Fv̂ / √ρ and √ρ, or 0 and 1
        residual = torch.linalg.vector_norm(torch.bmm(image, F) / root - v, dim=-1)
        energy = torch.linalg.vector_norm(F / root, dim=(-2, -1)).square()
    found = image.ne(0).any(-1).to(F.dtype)  # [batch, 1]
    rayleigh, share = found * root[..., 0].square(), found / energy[:, None]
    lead = features.shape[:-2]
    return LeadingDirection(
        v.reshape(*lead, -1),
        rayleigh.reshape(lead),
        residual.reshape(lead),
        torch.where(found == 0, 0.0, share).reshape(lead),
    )
