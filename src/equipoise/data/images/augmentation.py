"""Random crops and reflections of a batch of images, as CIFAR is usually augmented."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.numerics.checks import check_whole
from equipoise.numerics.options import named_options

# The margin that CIFAR's 32×32 images are given almost everywhere since He et al. (2016).
PADDING = 4


@named_options
def crop_and_flip(
    images: Tensor, *, padding: int = PADDING, generator: torch.Generator | None = None
) -> Tensor:
    """Shift each image at random, and reflect every other one on average.

    Args:
        images: Shape ``[N, C, H, W]``.
        padding: Largest shift in pixels, in each direction; zeros fill the gap.
        generator: CPU generator of shifts and reflections; PyTorch's global one if None.

    Returns:
        New images of the same shape.

    Raises:
        ValueError: If the shape is another one, or the padding is negative.

    Examples:
        >>> images = torch.ones(5, 3, 32, 32)
        >>> crop_and_flip(images, generator=torch.Generator()).shape == images.shape
        True

    References:
        [he2016], section 4.2.
    """
    return random_flip(random_crop(images, padding=padding, generator=generator), generator)


def random_crop(
    images: Tensor, *, padding: int, generator: torch.Generator | None = None
) -> Tensor:
    """Cut a window of the images' own size out of each image with a margin of zeros.

    Examples:
        >>> image = torch.arange(4.0).reshape(1, 1, 2, 2)
        >>> bool((random_crop(image, padding=0) == image).all())
        True
    """
    _check(images)
    check_whole("padding", padding, 0)
    count, _, height, width = images.shape
    padded = F.pad(images, (padding,) * 4)

    def windows(size: int) -> Tensor:
        starts = torch.randint(
            2 * padding + 1, (count, 1), generator=generator, device=_device(generator)
        )
        return starts.to(images.device) + torch.arange(size, device=images.device)  # [N, size]

    rows, columns = windows(height)[:, :, None], windows(width)[:, None, :]
    each = torch.arange(count, device=images.device)[:, None, None]
    # Indices on both sides of the channels' slice put the channels last.
    return padded[each, :, rows, columns].permute(0, 3, 1, 2).contiguous()


def random_flip(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Reflect each image left to right with probability ½.

    Examples:
        >>> image = torch.tensor([[[[1.0, 2.0]]]])
        >>> sorted({tuple(random_flip(image).flatten().tolist()) for _ in range(64)})
        [(1.0, 2.0), (2.0, 1.0)]
    """
    _check(images)
    reflected = (
        torch.rand(len(images), 1, 1, 1, generator=generator, device=_device(generator)) < 0.5
    )
    return torch.where(reflected.to(images.device), images.flip(3), images)


def _device(generator: torch.Generator | None) -> torch.device | str:
    return "cpu" if generator is None else generator.device


def _check(images: Tensor) -> None:
    if images.ndim != 4:
        raise ValueError(
            f"images must have shape [N, C, H, W], got {list(images.shape)}; give single images "
            "a first dimension with unsqueeze(0)."
        )
