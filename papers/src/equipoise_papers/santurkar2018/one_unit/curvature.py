r"""How batch normalisation changes the curvature of the loss along its own gradient.

Theorem 4.2 is about the curvature with respect to the outputs y. Its first display is an equality
at ε = 0; its second display bounds nothing.

Theorem C.1 is about the curvature with respect to the weights w, maximised over inputs X. With
outputs y = Xw and K = XXᵀ, gradient and Hessian with respect to w are :math:`X^Tg` and
:math:`X^THX`, and the curvature along the gradient is gᵀKHKg. As K runs through
:math:`0 \preceq K \preceq \lambda^2I`, Kg fills the ball whose diameter joins 0 and λ²g. A
quadratic form that is positive anywhere has its maximum over a ball on the sphere, which inputs
of rank one reach. The paper takes K = λ²I, which is one point of the ball.

Symbols: as in ``derivatives``, except that in :func:`largest_curvature` g and H are with respect
to y; g_y: gradient with respect to y; X: inputs, one row per sample; λ: bound on their largest
singular value; c, r: centre and radius of the ball; s: from the centre to the sphere; δ: distance
of the multiplier from the largest eigenvalue of H.

References:
    [santurkar2018], Theorems 4.2 and C.1, and equation (58).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise_papers.santurkar2018.one_unit.derivatives import (
    bn_gradient,
    checked,
    scale_of,
    standardise,
)

# Bisections of log δ between 1e-20 and 1 of its largest value, to the last digit.
_BISECTIONS = 64
_SMALLEST = 1e-20
# Stands for the size of a Hessian of zeros.
_TINY = 1e-250


@dataclass(frozen=True, slots=True, eq=False)
class CurvatureAlongGradient:
    r"""The two terms of g_yᵀ(∇²L̂)g_y, each of shape ``[...]``.

    Args:
        of_loss: :math:`\frac{\gamma^2}{\sigma^2}(Pg_y)^THPg_y`; Pg_y = g_y at ε = 0.
        of_scale: What dividing by σ subtracts; at ε = 0
            :math:`\frac\gamma{m\sigma^2}\langle g, \hat y\rangle\|g_y\|^2`.
    """

    of_loss: Tensor
    of_scale: Tensor

    @property
    def value(self) -> Tensor:
        """The curvature along the gradient, times the gradient's squared norm."""
        return self.of_loss - self.of_scale


@dataclass(frozen=True, slots=True, eq=False)
class LargestCurvature:
    r"""Maximum of gᵀKHKg over inputs, enclosed from both sides.

    Args:
        direction: Unit vector u, of shape ``[..., m]``; the maximiser is X = λueᵀ with any unit
            vector e. Zero where H has no positive eigenvalue, so that X = 0 is best.
        value: What that X gives, λ⁴⟨u, g⟩²uᵀHu, of shape ``[...]``.
        bound: What no X exceeds, by duality, of shape ``[...]``.
    """

    direction: Tensor
    value: Tensor
    bound: Tensor


def curvature_along_gradient(
    y: Tensor, g: Tensor, hessian: Tensor, *, gamma: float | Tensor = 1.0, eps: float = 0.0
) -> CurvatureAlongGradient:
    r"""Quadratic form of the Hessian through batch normalisation, along its own gradient.

    At ε = 0

    .. math:: g_y^T\nabla^2_y\hat{\mathcal L}\,g_y = \frac{\gamma^2}{\sigma^2}g_y^THg_y
        - \frac\gamma{m\sigma^2}\langle g, \hat y\rangle\|g_y\|^2 .

    The paper's second display puts gᵀHg in the place of g_yᵀHg_y, which is no bound.

    Args:
        y: Outputs of one unit over a batch, of shape ``[..., m]``, m at least 2.
        g: :math:`\nabla_z\mathcal L`, of y's shape.
        hessian: H, symmetric, of shape ``[..., m, m]``.
        gamma: γ, a number or one per unit, of shape ``[...]``.
        eps: ε; at ε > 0 both terms are exact too, but no longer the printed ones.

    Raises:
        ValueError: If shapes or numbers are out of range, or a unit is constant at ε = 0.

    Examples:
        >>> import torch
        >>> y, g = torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([1.0, -2.0, 1.0])
        >>> round(curvature_along_gradient(y, g, torch.eye(3)).value.item(), 9)  # ‖g‖²/σ⁴
        13.5

    References:
        [santurkar2018], Theorem 4.2, first display.
    """
    unit = standardise(y, eps=eps)
    g_y = bn_gradient(y, g, gamma=gamma, eps=eps)
    H = checked("hessian", hessian, (*g_y.shape, g_y.shape[-1]))
    g, m, scale = g.to(g_y), y.shape[-1], scale_of(gamma, unit)
    again, variance = unit.project(g_y), unit.deviation.square()
    of_loss = scale.square() / variance * (again * (H @ again.unsqueeze(-1)).squeeze(-1)).sum(-1)
    along = (g * unit.values).sum(-1) * (g_y * again).sum(-1)
    # ŷ is orthogonal to g_y at ε = 0 alone.
    along = along + 2 * (g_y * unit.project(g)).sum(-1) * (g_y * unit.values).sum(-1)
    return CurvatureAlongGradient(of_loss, scale / (m * variance) * along)


def largest_curvature(g: Tensor, hessian: Tensor, *, radius: float = 1.0) -> LargestCurvature:
    r"""Maximise the curvature along the gradient over inputs of bounded size.

    .. math:: \max_{\|X\|_2\le\lambda} g^TKHKg
        = \max_{\|s\| = r} (c + s)^TH(c + s), \qquad c = \tfrac12\lambda^2g,\quad r = \|c\|

    In the eigenbasis of H the maximiser is :math:`s = (\mu - H)^{-1}Hc` with μ above all
    eigenvalues, found by bisection of ‖s‖ = r; if s stays shorter, the rest lies along the
    first eigenvector.

    Args:
        g: Gradient with respect to the outputs, of shape ``[..., m]``, not zero.
        hessian: H, symmetric, of shape ``[..., m, m]``; in a normalised network both are those
            of :func:`bn_gradient` and :func:`bn_hessian`.
        radius: λ, not negative.

    Raises:
        ValueError: If shapes or numbers are out of range, or a gradient is zero.

    Examples:
        >>> g, H = torch.tensor([0.05, 1.0]), torch.diag(torch.tensor([100.0, 1.0]))
        >>> round(largest_curvature(g, H).value.item(), 2), round((g @ H @ g).item(), 2)
        (27.88, 1.25)
    """
    if not 0 <= radius < math.inf:
        raise ValueError(f"radius must be finite and not negative, got {radius}.")
    g = checked("g", g)
    H = checked("hessian", hessian, (*g.shape, g.shape[-1]))
    length = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
    if not bool((length > 0).all()):
        raise ValueError("g must not be zero: there is no direction to measure curvature along.")
    eigenvalues, basis = torch.linalg.eigh(H)
    centre = (g.unsqueeze(-2) @ basis).squeeze(-2) / (2 * length)  # ‖centre‖ = r = 1/2
    s, bound = _longest(eigenvalues, centre)
    point = (basis @ (centre + s).unsqueeze(-1)).squeeze(-1)
    unit = point / torch.linalg.vector_norm(point, dim=-1, keepdim=True)
    direction = torch.where(eigenvalues[..., -1:] > 0, unit, 0.0)
    along = (direction * g).sum(-1).square()
    bent = (direction * (H @ direction.unsqueeze(-1)).squeeze(-1)).sum(-1)
    bound = length.squeeze(-1).square() * bound.clamp(min=0)
    return LargestCurvature(direction, radius**4 * along * bent, radius**4 * bound)


def _longest(eigenvalues: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Maximiser s of the quadratic form on the sphere of radius 1/2, and the dual bound."""
    pull = eigenvalues * centre
    below = eigenvalues[..., -1:] - eigenvalues  # eigenvalues ascend
    # ‖s‖ falls from 1/2 or more to at most 1/2 between these distances.
    most = 2 * torch.linalg.vector_norm(pull, dim=-1, keepdim=True)
    size = eigenvalues.abs().amax(-1, keepdim=True).clamp(min=_TINY)
    high = torch.maximum(most, _SMALLEST * size).log()
    low = high + math.log(_SMALLEST)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        long = (pull / (below + middle.exp())).square().sum(-1, keepdim=True) > 0.25
        low, high = torch.where(long, middle, low), torch.where(long, high, middle)
    delta = high.exp()
    s = pull / (below + delta)
    rest = (0.25 - s.square().sum(-1)).clamp(min=0).sqrt()
    s = torch.cat([s[..., :-1], s[..., -1:] + torch.copysign(rest[..., None], s[..., -1:])], -1)
    multiplier = eigenvalues[..., -1] + delta[..., 0]
    bound = multiplier / 4 + (pull * centre).sum(-1) + (pull.square() / (below + delta)).sum(-1)
    return s, bound
