r"""What scale invariance means for the weights before batch normalisation.

At ε = 0 the output does not change when a unit's weights are multiplied by a positive number. So
gradients are orthogonal to weights, row by row, and all positive multiples of an optimum are
optima.

Symbols: as in ``derivatives``; W: weights, one row per unit; W*: an optimum without batch
normalisation; W_0: the initial weights; k: the multiple of W* that is nearest to W_0.

References:
    [santurkar2018], Observation 4.3, Lemma 4.5 and their proofs.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from equipoise_papers.santurkar2018.one_unit.derivatives import checked, scale_of, standardise


@dataclass(frozen=True, slots=True, eq=False)
class NearestMultiple:
    """The positive multiple of an optimum that is nearest to the initial weights.

    Args:
        factor: k, a single number, or one per unit, of shape ``[units]``.
        point: kW*, of W*'s shape.
        squared_distance: ‖W_0 - kW*‖².
        gain: How much less that is than ‖W_0 - W*‖²: ‖W*‖²(1 - k)², summed over units.
    """

    factor: Tensor
    point: Tensor
    squared_distance: Tensor
    gain: Tensor


def nearest_multiple(w_star: Tensor, w_0: Tensor, *, per_unit: bool = False) -> NearestMultiple:
    r"""Nearest optimum with batch normalisation, given one without.

    .. math:: k = \frac{\langle W^*, W_0\rangle}{\|W^*\|^2}, \qquad
        \|W_0 - kW^*\|^2 = \|W_0 - W^*\|^2 - \|W^*\|^2(1 - k)^2

    It is an optimum only where W* with γ = σ and β = μ is one, which takes a bias in the layer
    without batch normalisation; see :func:`matching_scale_and_shift`.

    Args:
        w_star: W*, of shape ``[units, inputs]``, or ``[inputs]`` for one unit; not zero.
        w_0: W_0, of the same shape, with ⟨W*, W_0⟩ > 0.
        per_unit: Whether to scale every row by itself. Invariance is per unit, so this comes at
            least as close; every row's inner product must then be positive.

    Raises:
        ValueError: If shapes differ or an inner product is not positive: k ≤ 0 is no optimum,
            because batch normalisation turns the sign of its output with that of its weights.

    Examples:
        >>> import torch
        >>> found = nearest_multiple(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 1.0]))
        >>> found.factor.item(), found.squared_distance.item(), found.gain.item()
        (0.5, 1.0, 1.0)

    References:
        [santurkar2018], Lemma 4.5, where the inequality is an identity.
    """
    if w_star.shape != w_0.shape or w_star.ndim not in (1, 2):
        raise ValueError(
            "w_star and w_0 must have one shape, [units, inputs] or [inputs], got "
            f"{tuple(w_star.shape)} and {tuple(w_0.shape)}."
        )
    optimum, start = w_star.double(), w_0.double()
    axes = (-1,) if per_unit else tuple(range(optimum.ndim))
    inner, squared = ((optimum * other).sum(axes, keepdim=True) for other in (start, optimum))
    if not bool((inner > 0).all()):
        raise ValueError(
            f"⟨w_star, w_0⟩ must be positive, got {inner.min().item():g}: only positive multiples "
            "of w_star are optima. Flip the sign of w_0, or leave such units out."
        )
    k = inner / squared
    point = k * optimum
    return NearestMultiple(
        factor=k.squeeze(-1) if per_unit else k.squeeze(),
        point=point,
        squared_distance=(start - point).square().sum(),
        gain=(squared * (1 - k).square()).sum(),
    )


def matching_scale_and_shift(y: Tensor) -> tuple[Tensor, Tensor]:
    r"""The γ and β with which batch normalisation at ε = 0 returns its input.

    .. math:: \gamma = \sigma, \quad \beta = \mu \quad\Longrightarrow\quad \gamma\hat y + \beta = y

    This holds for this batch only. A minimum of the network without batch normalisation becomes
    one of the network with it if also the derivatives with respect to γ and β are zero there,
    ⟨g, ŷ⟩ = ⟨1, g⟩ = 0. A bias makes the second zero, and bias and weights together the first;
    without a bias, minima are lost.

    Args:
        y: Outputs over a batch, of shape ``[..., m]``, no unit constant.

    Returns:
        γ and β, of shape ``[...]``.

    Raises:
        ValueError: If a unit is constant over the batch.

    Examples:
        >>> import torch
        >>> gamma, beta = matching_scale_and_shift(torch.tensor([1.0, 5.0]))
        >>> gamma.item(), beta.item()
        (2.0, 3.0)

    References:
        [santurkar2018], Observation 4.3.
    """
    unit = standardise(y)
    return unit.deviation, unit.mean


def radial_derivative(
    y: Tensor, g: Tensor, *, gamma: float | Tensor = 1.0, eps: float = 0.0
) -> Tensor:
    r"""Derivative of the loss with respect to the logarithm of a unit's weight norm.

    For outputs y = Xw without a bias,

    .. math:: \langle w, \nabla_w\hat{\mathcal L}\rangle = \langle y, \nabla_y\hat{\mathcal L}
        \rangle = \frac{\gamma\varepsilon}{\sigma^3}\,\langle g, y - \mu\rangle :

    which is zero at ε = 0: every step of gradient descent then makes the weights longer.

    Args:
        y: Outputs of one unit over a batch, of shape ``[..., m]``, m at least 2.
        g: :math:`\nabla_z\mathcal L`, of y's shape.
        gamma: γ, a number or one per unit, of shape ``[...]``.
        eps: ε, not negative.

    Returns:
        Shape ``[...]``, exactly 0 at ε = 0.

    Raises:
        ValueError: If shapes or numbers are out of range, or a unit is constant at ε = 0.

    Examples:
        >>> import torch
        >>> y = torch.tensor([-1.0, 1.0])
        >>> radial_derivative(y, y).item(), radial_derivative(y, y, eps=3.0).item()
        (0.0, 0.75)

    References:
        [santurkar2018], proof of Lemma 4.5.
    """
    unit = standardise(y, eps=eps)
    g = checked("g", g, unit.values.shape)
    along = (g * unit.values).sum(-1)
    return scale_of(gamma, unit) * eps / unit.deviation.square() * along
