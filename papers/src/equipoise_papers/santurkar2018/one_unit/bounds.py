r"""How much batch normalisation shortens gradients: Theorems 4.1 and 4.4, as equalities.

The paper states inequalities between a network and "an identical" one with batch normalisation.
They hold, as equalities at ε = 0, if g is the derivative with respect to z *at the same z*; with
each network at its own activations they fail. The subtracted terms are the squared derivatives
with respect to batch normalisation's parameters, ∂L/∂β = ⟨1, g⟩ and ∂L/∂γ = ⟨g, ŷ⟩: the gain is
one at fixed γ and β, and vanishes where those are at a stationary point.

Symbols: as in ``derivatives``; g_y: gradient with respect to y; X: inputs, one row per sample,
with y = Xw; λ: bound on the largest singular value of X.

References:
    [santurkar2018], Section 4.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from equipoise_papers.santurkar2018.one_unit.derivatives import (
    bn_gradient,
    checked,
    scale_of,
    standardise,
)


@dataclass(frozen=True, slots=True, eq=False)
class LipschitzGap:
    r"""The terms of ‖g_y‖², each of shape ``[...]``.

    Args:
        factor: γ²/σ².
        gradient: ‖g‖².
        shift: ⟨1, g⟩²/m, that is (∂L/∂β)²/m.
        scale: ⟨g, ŷ⟩²/m, that is (∂L/∂γ)²/m.
        kept: ‖ŷ‖²/m, the share of the variance in σ²; 1 at ε = 0.
    """

    factor: Tensor
    gradient: Tensor
    shift: Tensor
    scale: Tensor
    kept: Tensor

    @property
    def squared_norm(self) -> Tensor:
        """‖g_y‖², exact for every ε; digits cancel where it nearly vanishes."""
        return self.factor * (self.gradient - self.shift - (2 - self.kept) * self.scale)

    @property
    def printed_bound(self) -> Tensor:
        """Right side of Theorem 4.1: ‖g_y‖² at ε = 0, and above it at ε > 0."""
        return self.factor * (self.gradient - self.shift - self.scale)


@dataclass(frozen=True, slots=True, eq=False)
class MinimaxBound:
    """Largest squared gradient with respect to the weights over inputs, of shape ``[...]``.

    Args:
        plain: g_j = λ²‖g‖², of the network without batch normalisation.
        normalised: ĝ_j = λ²‖g_y‖², of the network with batch normalisation.
    """

    plain: Tensor
    normalised: Tensor


def lipschitz_gap(
    y: Tensor, g: Tensor, *, gamma: float | Tensor = 1.0, eps: float = 0.0
) -> LipschitzGap:
    r"""Length of the gradient through batch normalisation, term by term.

    .. math:: \|\nabla_y\hat{\mathcal L}\|^2 = \frac{\gamma^2}{\sigma^2}\Big(\|g\|^2
        - \frac1m\langle\mathbf 1, g\rangle^2
        - \Big(2 - \frac{\|\hat y\|^2}m\Big)\frac1m\langle g, \hat y\rangle^2\Big)

    The last bracket is 1 at ε = 0, and 1 + ε/σ² in general.

    Args:
        y: Outputs of one unit over a batch, of shape ``[..., m]``, m at least 2.
        g: :math:`\nabla_z\mathcal L`, of y's shape.
        gamma: γ, a number or one per unit, of shape ``[...]``.
        eps: ε, not negative.

    Raises:
        ValueError: If shapes or numbers are out of range, or a unit is constant at ε = 0.

    Examples:
        >>> import torch
        >>> gap = lipschitz_gap(torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([2.0, -1.0, 2.0]))
        >>> round(gap.gradient.item(), 9), round(gap.shift.item(), 9), round(gap.scale.item(), 9)
        (9.0, 3.0, 0.0)
        >>> round(gap.squared_norm.item(), 9)  # 6/σ²
        9.0

    References:
        [santurkar2018], Theorem 4.1.
    """
    unit = standardise(y, eps=eps)
    g, m = checked("g", g, unit.values.shape), y.shape[-1]
    return LipschitzGap(
        factor=scale_of(gamma, unit).square() / unit.deviation.square(),
        gradient=g.square().sum(-1),
        shift=g.sum(-1).square() / m,
        scale=(g * unit.values).sum(-1).square() / m,
        kept=unit.kept,
    )


def minimax_bound(
    y: Tensor,
    g: Tensor,
    *,
    gamma: float | Tensor = 1.0,
    radius: float = 1.0,
    eps: float = 0.0,
) -> MinimaxBound:
    r"""Longest gradient with respect to the weights that inputs of bounded size can cause.

    With :math:`\nabla_w\hat{\mathcal L} = X^Tg_y` and g_y held fixed,

    .. math:: \max_{\|X\|_2\le\lambda}\|X^Tg_y\|^2 = \lambda^2\|g_y\|^2
        = \frac{\gamma^2}{\sigma^2}\Big(g_j - \lambda^2m\mu_g^2
        - \frac{\lambda^2}m\langle g, \hat y\rangle^2\Big),
        \qquad g_j = \lambda^2\|g\|^2,\quad \mu_g = \frac1m\langle\mathbf 1, g\rangle,

    at ε = 0. It is attained by X of rank one, :math:`\lambda g_ye^T/\|g_y\|` with any unit vector
    e. Although y = Xw, the maximum varies X alone: it bounds the gradient for given outputs.

    Args:
        y: Outputs of one unit over a batch, of shape ``[..., m]``, m at least 2.
        g: :math:`\nabla_z\mathcal L`, of y's shape.
        gamma: γ, a number or one per unit, of shape ``[...]``.
        radius: λ, not negative.
        eps: ε, not negative; the first equality holds for every ε.

    Raises:
        ValueError: If shapes or numbers are out of range, or a unit is constant at ε = 0.

    Examples:
        >>> import torch
        >>> y, g = torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([2.0, -1.0, 2.0])
        >>> bound = minimax_bound(y, g, radius=2.0)
        >>> round(bound.plain.item(), 9), round(bound.normalised.item(), 9)
        (36.0, 36.0)

    References:
        [santurkar2018], Theorem 4.4, corrected.
    """
    if not 0 <= radius < math.inf:
        raise ValueError(f"radius must be finite and not negative, got {radius}.")
    g_y = bn_gradient(y, g, gamma=gamma, eps=eps)
    plain, normalised = (radius**2 * v.square().sum(-1) for v in (g.to(g_y), g_y))
    return MinimaxBound(plain, normalised)
