r"""RUN of matrices: the symmetric form, the paper's matrix form, and their strengths.

A few steps of power iteration on B find a unit direction :math:`\hat v`, with
:math:`P = \hat v\hat v^\top`; then

.. math::

    C_K &= (I - \eta P) B (I - \eta P) & &\text{symmetric form, `run\_symmetric`} \\
    B_K &= B (I - \epsilon P) & &\text{matrix form, `run\_matrix`}

Symbols: B: ``[D, D]``; K: ``num_steps``; v_0: start; ρ = v̂ᵀBv̂: Rayleigh quotient; η, ε: strengths;
b = Bv̂.

References:
    [yu2020]
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise.numerics.checks import check_within
from equipoise.numerics.precision import at_least_float32, without_autocast
from equipoise.pooling.run.inputs import (
    DEFAULT_ETA,
    Start,
    as_batch,
    check_eta,
    check_features,
    check_steps,
    first_vector,
    is_mean,
)
from equipoise.pooling.run.iteration import unit


def run_symmetric(
    matrix: Tensor,
    start: Start,
    *,
    eta: float = DEFAULT_ETA,
    num_steps: int = 2,
    differentiate_direction: bool = True,
    extended_range: bool = False,
) -> Tensor:
    r"""Shrink the dominant direction of a Gram or covariance matrix; RUN's symmetric form.

    .. math:: C_K = B - \hat v h^\top - h\hat v^\top, \qquad
              h = \eta b - \tfrac12\eta^2\rho\,\hat v ,

    which is :math:`F_K^\top F_K` of :func:`run_factor` for any F with :math:`B = F^\top F`,
    whatever K, at :math:`O(KD^2)`.

    Args:
        matrix: B, symmetric and positive semi-definite, shape ``[..., D, D]``.
        start: v_0, ``[D]`` or ``[..., D]``, or ``"ones"``.
        eta: η in [0, 1].
        num_steps: K, at least 1.
        differentiate_direction: Whether the backward pass follows :math:`\hat v`.
        extended_range: Allow η up to 2.

    Returns:
        C_K, symmetric up to rounding, positive semi-definite; typed as the matrix.

    Raises:
        TypeError: If a tensor has the wrong type, or the start is an unknown word.
        ValueError: If the matrix is not square, shapes do not match, or η or K are out of range.

    Examples:
        >>> matrix = torch.diag(torch.tensor([16.0, 1.0]))
        >>> run_symmetric(matrix, torch.tensor([1.0, 0.0]), eta=0.5)
        tensor([[4., 0.],
                [0., 1.]])
    """
    check_eta(eta, extended_range=extended_range)
    # vB instead of Bv halves the time of autograd's backward pass.
    B, v = _matrix_direction(matrix, start, num_steps, symmetric=True)
    if not differentiate_direction:
        v = v.detach()
    with without_autocast(matrix.device):
        b = torch.bmm(v, B)
        rho = (b * v).sum(-1, keepdim=True)
        h = eta * b - (0.5 * eta**2) * rho * v
        left, right = torch.cat([v, h], 1), torch.cat([h, v], 1)  # [batch, 2, D]
        updated = torch.baddbmm(B, left.mT, right, alpha=-1)
    return updated.to(matrix.dtype).reshape(matrix.shape)


def run_matrix(
    matrix: Tensor,
    start: Start,
    *,
    eta: float | None = None,
    epsilon: float | None = None,
    num_steps: int = 2,
) -> Tensor:
    r"""RUN's matrix form, as the paper states its theorem.

    .. math:: B_K = B - \epsilon B\hat v\hat v^\top

    It is **not symmetric** unless :math:`\hat v` is an eigenvector, and its symmetric part is
    not positive semi-definite in general; nothing is symmetrised here. For pooling use
    :func:`run_symmetric`, which has the same trace and approaches this form as K grows.

    Args:
        matrix: B, shape ``[..., D, D]``.
        start: v_0, ``[D]`` or ``[..., D]``, or ``"ones"``.
        eta: η in [0, 1], converted by :func:`epsilon_from_eta`; 0.5 if neither is given.
        epsilon: ε in [0, 1].
        num_steps: K, at least 1.

    Returns:
        B_K, typed as the matrix.

    Raises:
        TypeError: If a tensor has the wrong type, or the start is an unknown word.
        ValueError: If the matrix is not square, shapes do not match, η, ε or K are out of range,
            or both strengths are given.

    Examples:
        >>> matrix = torch.diag(torch.tensor([16.0, 1.0]))
        >>> run_matrix(matrix, torch.tensor([1.0, 0.0]), epsilon=0.75)
        tensor([[4., 0.],
                [0., 1.]])

    References:
        [yu2020], equation (2).
    """
    if eta is not None and epsilon is not None:
        raise ValueError(f"Give eta or epsilon, not both; got eta={eta} and epsilon={epsilon}.")
    if epsilon is None:
        epsilon = epsilon_from_eta(DEFAULT_ETA if eta is None else eta)
    else:
        _check_epsilon(epsilon)
    B, v = _matrix_direction(matrix, start, num_steps, symmetric=False)
    with without_autocast(matrix.device):
        updated = torch.addcmul(B, torch.bmm(v, B.mT).mT, v, value=-epsilon)
    return updated.to(matrix.dtype).reshape(matrix.shape)


def epsilon_from_eta(eta: float) -> float:
    r"""Strength of the matrix form, :math:`\epsilon = 2\eta - \eta^2`, with the same trace.

    Args:
        eta: η in [0, 1].

    Raises:
        ValueError: If it is out of range.

    Examples:
        >>> epsilon_from_eta(0.5)
        0.75
    """
    check_eta(eta)
    return eta * (2 - eta)


def eta_from_epsilon(epsilon: float) -> float:
    r"""Strength of the factor form, :math:`\eta = 1 - \sqrt{1 - \epsilon}`.

    Args:
        epsilon: ε in [0, 1].

    Raises:
        ValueError: If it is out of range: above 1 no real η exists.

    Examples:
        >>> eta_from_epsilon(0.75)
        0.5
    """
    _check_epsilon(epsilon)
    return epsilon / (1 + math.sqrt(1 - epsilon))  # no difference of near equals at small ε


def _check_epsilon(epsilon: float) -> None:
    check_within("epsilon", epsilon, "[0, 1]", "Above 1 no real eta exists.")


def _matrix_direction(
    matrix: Tensor, start: Start, num_steps: int, *, symmetric: bool
) -> tuple[Tensor, Tensor]:
    """B ``[batch, D, D]``, float32 or better, and v̂_K ``[batch, 1, D]``."""
    check_features(matrix, "matrix", square=True)
    if is_mean(start):
        raise ValueError("start='mean' needs the features; pass them to run_factor, or a tensor.")
    check_steps(num_steps, start)
    v = first_vector(start, matrix)
    assert v is not None
    B = at_least_float32(as_batch(matrix))
    with without_autocast(matrix.device):
        for _ in range(num_steps):
            v, _ = unit(torch.bmm(v, B if symmetric else B.mT))
    return B, v
