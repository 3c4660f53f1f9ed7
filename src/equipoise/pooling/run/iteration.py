r"""The power iteration of RUN, rescaled at every half step so that only directions remain.

.. math:: \hat w_k = F\hat v_{k-1} / m_k, \qquad \hat v_k = F^\top\hat w_k / n_k .

Symbols, of one sample: F: features ``[N, D]``; v: direction ``[1, D]``; w: its image ``[1, N]``;
m, n: norms ``[1, 1]``. Vectors are rows: with a batch of columns PyTorch's bmm takes 6 to 20
times longer on a CPU.

References:
    [yu2020], where nothing is rescaled: entries grow like :math:`\sigma_1^K`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

# A sum over positions below 16 roundings of a sum with generic weights is rounding itself.
_ROUNDINGS = 16.0


class Settings(NamedTuple):
    """RUN's arguments other than tensors."""

    eta: float
    num_steps: int
    mean_start: bool
    differentiate_direction: bool


class Trace(NamedTuple):
    """A finished iteration: v̂_0 … v̂_K, ŵ_1 … ŵ_K, m_1 … m_K, n_1 … n_K.

    ``mean`` is Fᵀ1 with the mean start, zero where it vanishes up to rounding; else None.
    """

    directions: tuple[Tensor, ...]
    images: tuple[Tensor, ...]
    image_norms: tuple[Tensor, ...]
    direction_norms: tuple[Tensor, ...]
    mean: Tensor | None

    @property
    def direction(self) -> Tensor:
        """v̂_K, zero where the update is to be skipped."""
        return self.directions[-1]


def unit(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows divided by their Euclidean norm, and what each was divided by.

    A zero row stays zero, divided by 1. Rows are divided by their largest entry first, which
    keeps squares in range; it is detached, because the result does not depend on it.

    Examples:
        >>> direction, norm = unit(torch.tensor([[3e30, 4e30], [0.0, 0.0]]))
        >>> direction
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    largest = torch.linalg.vector_norm(rows.detach(), math.inf, dim=-1, keepdim=True)
    scale = largest + (largest == 0)
    scaled = rows / scale
    # Not clamp_min(1): a row with one entry has norm 1, where PyTorch 2.14 lets no gradient pass.
    norm = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True).masked_fill(largest == 0, 1.0)
    return scaled / norm, scale * norm


def iterate(features: Tensor, start: Tensor | None, settings: Settings) -> Trace:
    """Iterate on ``[batch, N, D]`` by PyTorch's own operations.

    Args:
        features: F, zero at masked positions, float32 or better.
        start: v̂_0 ``[batch, 1, D]``; with the mean start, the replacement of a mean that
            vanishes, or None for a fixed vector without structure.
        settings: Only ``num_steps`` and ``mean_start`` matter here.
    """
    mean = position_sum(features) if settings.mean_start else None
    directions = [first_direction(mean, start, settings)]
    images, image_norms, direction_norms = [], [], []
    for _ in range(settings.num_steps):
        image, image_norm = unit(torch.bmm(directions[-1], features.mT))
        direction, direction_norm = unit(torch.bmm(image, features))
        images.append(image)
        image_norms.append(image_norm)
        directions.append(direction)
        direction_norms.append(direction_norm)
    return Trace(
        tuple(directions), tuple(images), tuple(image_norms), tuple(direction_norms), mean
    )


def first_direction(mean: Tensor | None, start: Tensor | None, settings: Settings) -> Tensor:
    """v̂_0: the direction of the mean unless it vanishes or is not asked for, else the start."""
    if mean is None:
        assert start is not None
        return start
    direction, _ = unit(mean)
    if settings.num_steps == 0:
        return direction  # 0 skips the update; a start would ignore the features
    if start is None:
        start, _ = unit(generic_vector(mean.shape[-1], like=mean))
    return torch.where(_vanishes(mean), start, direction)


def position_sum(features: Tensor) -> Tensor:
    """Fᵀ1 ``[batch, 1, D]``, exactly zero where the sum is nothing but rounding.

    The sum of centred features is rounding error: an arbitrary direction with a huge
    derivative. A second row of weights, in the same pass over F, shows how large sums are.
    """
    count = features.shape[-2]
    weights = torch.stack([features.new_ones(count), generic_vector(count, like=features)])
    sums = torch.bmm(weights.expand(features.shape[0], -1, -1), features)
    total, other = sums[:, :1], sums[:, 1:]
    size, yardstick = (x.detach().abs().amax(-1, keepdim=True) for x in (total, other))
    noise = _ROUNDINGS * torch.finfo(features.dtype).eps * yardstick
    return torch.where(size <= noise, 0.0, total)


def mean_gradient(gradient: Tensor, mean: Tensor) -> Tensor:
    """Gradient with respect to Fᵀ1, from one with respect to v̂_0 that is orthogonal to it."""
    return torch.where(_vanishes(mean), 0.0, gradient / unit(mean)[1])


def generic_vector(size: int, *, like: Tensor) -> Tensor:
    """A fixed vector without structure: cos 1, cos 4, cos 9 and so on.

    Examples:
        >>> generic_vector(3, like=torch.zeros(()))
        tensor([ 0.5403, -0.6536, -0.9111])
    """
    return torch.arange(1, size + 1, device=like.device).square().to(like.dtype).cos()


def _vanishes(mean: Tensor) -> Tensor:
    return (mean == 0).all(-1, keepdim=True)


def apply_to_joined_batch(
    apply: Callable[..., tuple[Tensor, ...]],
    info: Any,
    in_dims: Sequence[int | None],
    inputs: Sequence[Any],
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """A vmap rule for autograd functions of batches: join the two batch dimensions into one.

    Args:
        apply: The function's ``apply``, of tensors ``[batch, ...]`` or None, then settings.
        info: PyTorch's, with the size of the further dimension.
        in_dims: The further dimension of each input, or None.
        inputs: Tensors, then settings.
    """
    size = info.batch_size

    def joined(tensor: Tensor | None, dim: int | None) -> Tensor | None:
        if tensor is None:
            return None
        front = tensor[None] if dim is None else tensor.movedim(dim, 0)
        return front.expand(size, *front.shape[1:]).flatten(0, 1)

    *tensors, settings = inputs
    outputs = apply(*map(joined, tensors, in_dims), settings)
    # PyTorch does not annotate this method.
    split = tuple(x.unflatten(0, (size, -1)) for x in outputs)  # type: ignore[no-untyped-call]
    return split, (0,) * len(outputs)
