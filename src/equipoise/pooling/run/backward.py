r"""RUN's exact backward pass, by a recurrence that mirrors the power iteration.

With :math:`G = \partial L/\partial F_K`, :math:`g = G\hat v_K`, :math:`u = F\hat v_K`,

.. math:: \bar F \leftarrow G - \eta\, g\hat v_K^\top, \qquad
          \bar v \leftarrow (I - \hat v_K\hat v_K^\top)\big(-\eta\,(G^\top u + F^\top g)\big),

and for k = K, …, 1

.. math:: z = \bar v / n_k, \quad
          \bar w = Fz / m_k, \quad
          \bar F \leftarrow \bar F + \hat w_k z^\top + \bar w\,\hat v_{k-1}^\top, \quad
          \bar v \leftarrow F^\top\bar w .

The result differs from G by a matrix of rank at most 2K + 1; nothing of size D × D or N × N
appears, and beside F a sample keeps (K + 1)(N + D) + 2K numbers. Symbols: see
:mod:`equipoise.pooling.run.iteration`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.numerics.precision import without_autocast
from equipoise.pooling.run.iteration import (
    Settings,
    Trace,
    first_direction,
    iterate,
    mean_gradient,
    valid_positions,
)


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
    graph and would make second derivatives wrong without a word.
    """

    @staticmethod
    def forward(
        features: Tensor, start: Tensor | None, mask: Tensor | None, settings: Settings
    ) -> tuple[Tensor, ...]:
        """F_K, then what the backward pass needs beside the inputs."""
        updated, u, trace = update(features, start, mask, settings)
        if not settings.differentiate_direction:
            return updated, trace.direction
        return updated, u, *_packed(trace)

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
                u, trace = _recalled(F, start, settings, known)
                grad, of_start = pull_back(
                    F, G, mask, u, trace, settings.eta, to_start=ctx.needs_input_grad[1]
                )
        return grad.to(gradients[0].dtype), of_start, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        features: Tensor,
        start: Tensor | None,
        mask: Tensor | None,
        settings: Settings,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """A further batch dimension joins the first."""
        size = info.batch_size

        def joined(tensor: Tensor | None, dim: int | None) -> Tensor | None:
            if tensor is None:
                return None
            front = tensor[None] if dim is None else tensor.movedim(dim, 0)
            return front.expand(size, *front.shape[1:]).flatten(0, 1)

        tensors = map(joined, (features, start, mask), in_dims[:3])
        # PyTorch does not annotate this method.
        outputs = RankOneUpdate.apply(*tensors, settings)  # type: ignore[no-untyped-call]
        return tuple(x.unflatten(0, (size, -1)) for x in outputs), (0,) * len(outputs)


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
    # In place where it can be: torch.func, which enables gradients here, has no rule for that.
    add_product = torch.addcmul if torch.is_grad_enabled() else Tensor.addcmul_
    v, by_mean = trace.direction, trace.mean is not None
    grad, g = without_direction(G, v, eta)
    v_bar = -eta * (torch.bmm(u, G) + torch.bmm(g, F))
    # Only here: further down v̄ = FᵀFz / m is orthogonal to v̂ because z is to FᵀFv̂.
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


def _packed(trace: Trace) -> tuple[Tensor, ...]:
    """What cannot be read off the inputs at little cost."""
    mean = () if trace.mean is None else (trace.mean,)
    rows = (*trace.directions[1:], *trace.images, *trace.image_norms, *trace.direction_norms)
    return *mean, *rows


def _recalled(
    F: Tensor, start: Tensor | None, settings: Settings, saved: Sequence[Tensor] | None
) -> tuple[Tensor, Trace]:
    """Vector u and the iteration: unpacked if saved, else repeated from F."""
    if saved is None:
        trace = iterate(F, start, settings)
        return torch.bmm(trace.direction, F.mT), trace
    u, *rows = saved
    mean = rows.pop(0) if settings.mean_start else None
    K = settings.num_steps
    later, images, image_norms, norms = (tuple(rows[i * K : (i + 1) * K]) for i in range(4))
    first = first_direction(mean, start, settings)
    return u, Trace((first, *later), images, image_norms, norms, mean)
