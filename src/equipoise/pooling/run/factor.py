r"""RUN's factor form, with an exact backward pass that mirrors the power iteration.

A few steps of power iteration on :math:`F^\top F` find a unit direction :math:`\hat v`; then
:math:`F_K = F (I - \eta\,\hat v\hat v^\top)`. Backwards, with
:math:`G = \partial L/\partial F_K`, :math:`g = G\hat v_K`, :math:`u = F\hat v_K`,

.. math:: \bar F \leftarrow G - \eta\, g\hat v_K^\top, \qquad
          \bar v \leftarrow (I - \hat v_K\hat v_K^\top)\big(-\eta\,(G^\top u + F^\top g)\big),

and for k = K, …, 1

.. math:: z = \bar v / n_k, \quad
          \bar w = Fz / m_k, \quad
          \bar F \leftarrow \bar F + \hat w_k z^\top + \bar w\,\hat v_{k-1}^\top, \quad
          \bar v \leftarrow F^\top\bar w .

The result differs from G by a matrix of rank at most 2K + 1. No matrix of size D × D or N × N is
formed, and beside F a sample saves (K + 1)(N + D) + 2K numbers.

Symbols: see :mod:`equipoise.pooling.run.iteration`.

References:
    [yu2020]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.numerics.precision import without_autocast
from equipoise.pooling.matrices import valid_positions
from equipoise.pooling.run.inputs import (
    DEFAULT_ETA,
    Start,
    as_batch,
    batch_mask,
    check_eta,
    check_features,
    check_steps,
    first_vector,
    is_mean,
)
from equipoise.pooling.run.iteration import (
    Settings,
    Trace,
    apply_to_joined_batch,
    first_direction,
    iterate,
    mean_gradient,
)


def run_factor(
    features: Tensor,
    start: Start,
    *,
    eta: float = DEFAULT_ETA,
    num_steps: int = 2,
    mask: Tensor | None = None,
    fallback: Tensor | None = None,
    differentiate_direction: bool = True,
    extended_range: bool = False,
    plain: bool = False,
) -> Tensor:
    r"""Shrink the dominant direction of features; RUN's factor form.

    .. math:: F_K = F\,(I - \eta\,\hat v\hat v^\top), \qquad
              \hat v = \frac{(F^\top F)^K v_0}{\lVert (F^\top F)^K v_0\rVert} .

    In the direction :math:`\hat v` features become :math:`1 - \eta` times as long, others stay.
    :math:`F_K^\top F_K` is symmetric and positive semi-definite at every K. The cost is
    :math:`O(KND)`, and B is never built. Half precision is computed in float32 and rounded once.

    A direction that vanishes, because features are zero or the start is orthogonal to every
    position, leaves the features as they are, with gradient 1.

    Args:
        features: F, shape ``[..., N, D]``; a channel-first map as the view
            ``x.flatten(-2).mT``, which is not copied. Leading dimensions are independent samples.
        start: v_0, a tensor ``[D]`` that all samples share, or ``[..., D]``; ``"ones"``; or
            ``"mean"``, the sum :math:`F^\top 1` of each sample. See :func:`gaussian_start` for
            the paper's. Differentiable; its length does not matter.
        eta: η in [0, 1]: 0 changes nothing, 1 removes the direction.
        num_steps: K, at least 1; 0 is allowed with the mean start.
        mask: Boolean, shape ``[..., N]`` or what broadcasts to it; True at valid positions.
            Others are inert, whatever they hold: their output and gradient are 0.
        fallback: With the mean start and K ≥ 1, the start ``[D]`` or ``[..., D]`` of samples
            whose mean vanishes up to rounding, as that of centred features does; by default a
            fixed vector without structure. At K = 0 their update is skipped. No gradient flows
            to the fallback.
        differentiate_direction: False takes :math:`\hat v` for a constant in the backward pass,
            which saves a third of the time and keeps D numbers a sample instead of F. The
            gradient is then wrong, by 8 to 80 % in examples, however large K.
        extended_range: Allow η up to 2, where :math:`I - \eta P` is a reflection.
        plain: Leave the backward pass to autograd, which ``torch.func.jvp`` and forward mode
            need. The gradients are the same, two to three times slower.

    Returns:
        F_K, shaped and typed as the features.

    Raises:
        TypeError: If a tensor has the wrong type, or the start is an unknown word.
        ValueError: If shapes do not match, or η or K are out of range.

    Examples:
        >>> features = torch.tensor([[4.0, 0.0], [0.0, 1.0]])
        >>> run_factor(features, torch.tensor([1.0, 0.0]), eta=0.5)
        tensor([[2., 0.],
                [0., 1.]])

    References:
        [yu2020], equation (18) and what precedes it.
    """
    check_features(features)
    check_eta(eta, extended_range=extended_range)
    check_steps(num_steps, start)
    v_0 = first_vector(start, features, fallback=fallback)
    positions = batch_mask(mask, features)
    if features.shape[-2] == 0:
        return features.clone()
    settings = Settings(float(eta), num_steps, is_mean(start), differentiate_direction)
    run = update if plain else RankOneUpdate.apply
    return run(as_batch(features), v_0, positions, settings)[0].reshape(features.shape)


def update(
    features: Tensor, start: Tensor | None, mask: Tensor | None, settings: Settings
) -> tuple[Tensor, Tensor, Trace]:
    r"""F_K ``[batch, N, D]``, u and the iteration, by PyTorch's own operations.

    Differentiable in every mode of autograd, at more than twice the cost of
    :class:`RankOneUpdate`.
    """
    with without_autocast(features.device):
        F = valid_positions(features, mask)
        trace = iterate(F, start, settings)
        v = trace.direction if settings.differentiate_direction else trace.direction.detach()
        updated, u = without_direction(F, v, settings.eta)
    return updated.to(features.dtype), u, trace


class RankOneUpdate(torch.autograd.Function):
    """F_K = F (I − η v̂ v̂ᵀ) on ``[batch, N, D]`` with its exact backward pass.

    Intermediates are outputs, so that they can be saved; callers keep the first output. Under
    ``create_graph`` the backward pass repeats the iteration from F: saved intermediates carry no
    graph, so second derivatives would silently be wrong.
    """

    @staticmethod
    def forward(
        features: Tensor, start: Tensor | None, mask: Tensor | None, settings: Settings
    ) -> tuple[Tensor, ...]:
        """F_K, then what the backward pass needs beside the inputs."""
        updated, u, trace = update(features, start, mask, settings)
        if not settings.differentiate_direction:
            return updated, trace.direction
        return updated, u, *_pack(trace)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the inputs and the intermediates."""
        features, start, mask, ctx.settings = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        if not ctx.settings.differentiate_direction:
            features = start = None  # the gradient is a function of v̂ and G alone
        ctx.save_for_backward(features, start, mask, *output[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of the features and, if asked for, of the start."""
        features, start, mask, *saved = ctx.saved_tensors
        if gradients[0] is None:
            return None, None, None, None
        settings: Settings = ctx.settings
        with without_autocast(gradients[0].device):
            G = valid_positions(gradients[0], mask)
            if not settings.differentiate_direction:
                (grad, _), of_start = without_direction(G, saved[0], settings.eta), None
            else:
                F = valid_positions(features, mask)
                known = None if torch.is_grad_enabled() else saved
                u, trace = _unpack_or_repeat(F, start, settings, known)
                grad, of_start = pull_back(
                    F, G, mask, u, trace, settings.eta, to_start=ctx.needs_input_grad[1]
                )
        return grad.to(gradients[0].dtype), of_start, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *inputs: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """A further batch dimension joins the first."""
        # PyTorch does not annotate apply.
        return apply_to_joined_batch(RankOneUpdate.apply, info, in_dims, inputs)


def without_direction(rows: Tensor, direction: Tensor, eta: float) -> tuple[Tensor, Tensor]:
    """F (I − η v̂ v̂ᵀ) and F v̂."""
    image = torch.bmm(direction, rows.mT)
    # addcmul keeps the layout of channel-first features, and takes half of baddbmm's time.
    return torch.addcmul(rows, image.mT, direction, value=-eta), image


def pull_back(
    F: Tensor,
    G: Tensor,
    mask: Tensor | None,
    u: Tensor,
    trace: Trace,
    eta: float,
    *,
    to_start: bool,
) -> tuple[Tensor, Tensor | None]:
    """The recurrence: gradients with respect to F and, if asked for, to a given v̂_0."""
    # In place unless gradients are on: torch.func turns them on here and has no rules for that.
    add_product = torch.addcmul if torch.is_grad_enabled() else Tensor.addcmul_
    v, by_mean = trace.direction, trace.mean is not None
    grad, g = without_direction(G, v, eta)
    v_bar = -eta * (torch.bmm(u, G) + torch.bmm(g, F))
    # Needed here only: below, v̄ = FᵀFz / m is orthogonal to v̂ because z is to FᵀFv̂.
    v_bar = v_bar - (v_bar * v).sum(-1, keepdim=True) * v
    for k in range(len(trace.images), 0, -1):
        z = v_bar / trace.direction_norms[k - 1]
        w_bar = torch.bmm(z, F.mT) / trace.image_norms[k - 1]
        grad = add_product(grad, trace.images[k - 1].mT, z)
        grad = add_product(grad, w_bar.mT, trace.directions[k - 1])
        if k > 1 or by_mean or to_start:
            v_bar = torch.bmm(w_bar, F)
    if trace.mean is not None:
        ones = torch.ones_like(u) if mask is None else mask[:, None].to(u)
        return add_product(grad, ones.mT, mean_gradient(v_bar, trace.mean)), None
    return grad, v_bar if to_start else None


def _pack(trace: Trace) -> tuple[Tensor, ...]:
    """The parts of a trace that are saved; the others are cheap to compute from the inputs."""
    mean = () if trace.mean is None else (trace.mean,)
    rows = (*trace.directions[1:], *trace.images, *trace.image_norms, *trace.direction_norms)
    return *mean, *rows


def _unpack_or_repeat(
    F: Tensor, start: Tensor | None, settings: Settings, saved: Sequence[Tensor] | None
) -> tuple[Tensor, Trace]:
    """U and the trace: unpacked if saved, else computed again from F."""
    if saved is None:
        trace = iterate(F, start, settings)
        return torch.bmm(trace.direction, F.mT), trace
    u, *rows = saved
    mean, rows = (rows[0], rows[1:]) if settings.mean_start else (None, rows)
    K = settings.num_steps
    later, images, image_norms, norms = (tuple(rows[i * K : (i + 1) * K]) for i in range(4))
    first = first_direction(mean, start, settings)
    return u, Trace((first, *later), images, image_norms, norms, mean)
