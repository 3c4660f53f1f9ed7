r"""First and second derivatives of any loss through the batch normalisation of one unit.

.. math:: \hat{\mathcal L}(y) = \mathcal L(z), \qquad z = \gamma\hat y + \beta,
    \qquad \hat y = \frac{y - \mu}\sigma, \qquad \sigma^2 = \mathrm{var}(y) + \varepsilon .

Batch normalisation acts on derivatives through the matrix P below. At ε = 0, P projects out the
constants and ŷ; at ε > 0 it keeps a small part of ŷ, and every formula here keeps it too.

Symbols: y: the unit's outputs over a batch of m; μ, σ: their mean and biased deviation; γ, β:
scale and shift; g, H: gradient and Hessian of the loss with respect to z, at the same z;
P = I - ŷŷᵀ/m - 11ᵀ/m.

References:
    [santurkar2018], Section 4.1 and Appendix C.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# A unit whose deviation is below four roundings of its largest value counts as constant.
_CONSTANT = 4 * torch.finfo(torch.float64).eps


@dataclass(frozen=True, slots=True, eq=False)
class Standardised:
    """A batch of outputs after normalisation, before scale and shift.

    Args:
        values: ŷ, of shape ``[..., m]``.
        mean: μ, of shape ``[...]``.
        deviation: σ, which includes ε, of shape ``[...]``.
    """

    values: Tensor
    mean: Tensor
    deviation: Tensor

    @property
    def kept(self) -> Tensor:
        """‖ŷ‖²/m, the share of the variance in σ²; 1 at ε = 0. Shape ``[...]``."""
        return self.values.square().mean(-1)

    def project(self, vectors: Tensor) -> Tensor:
        """P v along the last dimension, which is ŷ's."""
        return _projected(vectors, self.values)

    def project_rows(self, matrices: Tensor) -> Tensor:
        """M P for matrices of shape ``[..., m, m]``."""
        return _projected(matrices, self.values.unsqueeze(-2))


def standardise(y: Tensor, *, eps: float = 0.0) -> Standardised:
    r"""Normalise as batch normalisation does in training, with biased variance, in float64.

    Written out because ``torch.nn.functional.batch_norm`` refuses ε = 0 in training, where the
    theorems are exact.

    Args:
        y: Outputs of one unit over a batch, of shape ``[..., m]``; leading dimensions are units.
        eps: ε, not negative.

    Raises:
        ValueError: If there are fewer than two samples, a value is not finite, ε is negative, or
            at ε = 0 a unit is constant.

    Examples:
        >>> standardise(torch.tensor([1.0, 3.0])).values
        tensor([-1.,  1.], dtype=torch.float64)
    """
    if not 0 <= eps < math.inf:
        raise ValueError(f"eps must be finite and not negative, got {eps}.")
    y = checked("y", y)
    if y.shape[-1] < 2:
        raise ValueError(
            f"y needs at least 2 samples in its last dimension, got shape {tuple(y.shape)}: one "
            "sample has no variance."
        )
    mean = y.mean(-1)
    centred = y - mean.unsqueeze(-1)
    variance = centred.square().mean(-1)
    noise = (_CONSTANT * y.abs().amax(-1)).square()
    if eps == 0 and bool((variance <= noise).any()):
        raise ValueError(
            "y is constant over the batch, and batch normalisation at eps = 0 divides by its "
            "deviation. Leave such units out, or pass eps > 0."
        )
    deviation = (variance + eps).sqrt()
    return Standardised(centred / deviation.unsqueeze(-1), mean, deviation)


def bn_gradient(y: Tensor, g: Tensor, *, gamma: float | Tensor = 1.0, eps: float = 0.0) -> Tensor:
    r"""Gradient of a loss through batch normalisation.

    .. math:: \nabla_y\hat{\mathcal L} = \frac\gamma\sigma Pg = \frac\gamma{m\sigma}
        \big(mg - \mathbf 1\langle\mathbf 1, g\rangle - \hat y\langle g, \hat y\rangle\big)

    It is orthogonal to the constants, and at ε = 0 to ŷ. So with two samples it is zero.

    Args:
        y: Outputs of one unit over a batch, of shape ``[..., m]``, m at least 2.
        g: :math:`\nabla_z\mathcal L`, of y's shape.
        gamma: γ, a number or one per unit, of shape ``[...]``.
        eps: ε; the formula is exact for every ε because σ and ŷ contain it.

    Returns:
        Shape ``[..., m]``, float64.

    Raises:
        ValueError: If shapes or numbers are out of range, or a unit is constant at ε = 0.

    Examples:
        >>> y, g = torch.tensor([-1.0, -1.0, 1.0, 1.0]), torch.tensor([1.0, 0.0, 0.0, 0.0])
        >>> bn_gradient(y, g)  # g without its mean 1/4 and without its part -ŷ/4
        tensor([ 0.5000, -0.5000,  0.0000,  0.0000], dtype=torch.float64)

    References:
        [santurkar2018], Fact C.1.
    """
    unit = standardise(y, eps=eps)
    g = checked("g", g, unit.values.shape)
    return (scale_of(gamma, unit) / unit.deviation).unsqueeze(-1) * unit.project(g)


def bn_hessian(
    y: Tensor, g: Tensor, hessian: Tensor, *, gamma: float | Tensor = 1.0, eps: float = 0.0
) -> Tensor:
    r"""Hessian of a loss through batch normalisation.

    .. math:: \nabla^2_y\hat{\mathcal L} = \frac{\gamma^2}{\sigma^2}PHP - \frac\gamma{m\sigma^2}
        \big[(Pg)\hat y^T + \hat y(Pg)^T + \langle g, \hat y\rangle P\big]

    Args:
        y: Outputs of one unit over a batch, of shape ``[..., m]``, m at least 2.
        g: :math:`\nabla_z\mathcal L`, of y's shape.
        hessian: H, of shape ``[..., m, m]``.
        gamma: γ, a number or one per unit, of shape ``[...]``.
        eps: ε; the formula is exact for every ε.

    Returns:
        Shape ``[..., m, m]``, float64.

    Raises:
        ValueError: If shapes or numbers are out of range, or a unit is constant at ε = 0.

    Examples:
        A loss that is linear in z is curved in y, along every direction that P does not remove:

        >>> y = torch.tensor([-1.0, 0.0, 1.0])
        >>> bn_hessian(y, y, torch.zeros(3, 3)).diagonal() * (2 / 3) ** 0.5
        tensor([-0.1667, -0.6667, -0.1667], dtype=torch.float64)

    References:
        [santurkar2018], equations (41) and (42), which are for ε = 0.
    """
    unit = standardise(y, eps=eps)
    g = checked("g", g, unit.values.shape)
    H = checked("hessian", hessian, (*g.shape, g.shape[-1]))
    m, scale = g.shape[-1], scale_of(gamma, unit)[..., None, None]
    outer = unit.project(g).unsqueeze(-1) * unit.values.unsqueeze(-2)
    along = (g * unit.values).sum(-1)[..., None, None]
    P = unit.project_rows(torch.eye(m, dtype=g.dtype, device=g.device))
    of_loss = scale.square() * unit.project_rows(unit.project_rows(H).mT).mT
    of_scale = scale / m * (outer + outer.mT + along * P)
    return (of_loss - of_scale) / unit.deviation.square()[..., None, None]


def scale_of(gamma: float | Tensor, unit: Standardised) -> Tensor:
    """γ as a float64 tensor that broadcasts against one number per unit.

    Raises:
        ValueError: If it does not.
    """
    scale = torch.as_tensor(gamma, dtype=torch.float64, device=unit.mean.device)
    units = tuple(unit.mean.shape)
    if scale.ndim > len(units) or any(
        have not in (1, want) for have, want in zip(scale.shape[::-1], units[::-1], strict=False)
    ):
        raise ValueError(
            f"gamma must be a number or of shape {units}, one per unit, got {tuple(scale.shape)}."
        )
    return scale


def checked(name: str, value: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """Check that a tensor is finite and has a given shape; return it as float64.

    Raises:
        TypeError: If it is no tensor of floating-point numbers.
        ValueError: If the shape differs or a number is not finite.
    """
    if not isinstance(value, Tensor) or not value.dtype.is_floating_point or value.ndim == 0:
        kind = str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name} must be a floating-point tensor of shape [..., m], got {kind}.")
    if shape is not None and value.shape != tuple(shape):
        raise ValueError(
            f"{name} must have shape {tuple(shape)} to fit y, got {tuple(value.shape)}."
        )
    if not bool(torch.isfinite(value).all()):
        raise ValueError(f"{name} must be finite, but has infinite or undefined entries.")
    return value.double()


def _projected(vectors: Tensor, values: Tensor) -> Tensor:
    along = (vectors * values).mean(-1, keepdim=True)
    return vectors - vectors.mean(-1, keepdim=True) - values * along
