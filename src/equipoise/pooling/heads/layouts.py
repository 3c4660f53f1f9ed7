"""Layouts of feature maps: which dimension holds the channels, which hold the positions."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from equipoise.numerics.checks import check_choice, check_whole
from equipoise.numerics.precision import check_floating
from equipoise.pooling.matrices import check_boolean

Layout: TypeAlias = Literal["channels_first", "tokens", "channels_last"]

_SHAPES = {
    "channels_first": "[B, C, H, W]",
    "tokens": "[B, N, C]",
    "channels_last": "[B, H, W, C]",
}


def check_layout(layout: str, prefix_tokens: int) -> None:
    """Refuse an unknown word, and prefix tokens where there are no tokens.

    Raises:
        ValueError: Naming the choices.
    """
    check_choice("layout", layout, list(_SHAPES))
    check_whole("prefix_tokens", prefix_tokens, 0)
    if prefix_tokens and layout != "tokens":
        raise ValueError(
            f"prefix_tokens={prefix_tokens} needs layout='tokens'; maps in layout={layout!r} have "
            "no prefix."
        )


def as_positions(x: Tensor, layout: Layout, channels: int, *, prefix_tokens: int = 0) -> Tensor:
    """Feature maps as rows ``[B, N, C]``, one per position; a view where strides allow.

    Args:
        x: Maps, with any number of dimensions of positions, at least one.
        layout: Where the channels are.
        channels: How many there must be.
        prefix_tokens: Tokens at the front to be dropped, as the class token.

    Raises:
        TypeError: If values are not real floating-point numbers.
        ValueError: If shape and layout do not fit.

    Examples:
        >>> as_positions(torch.zeros(8, 64, 7, 7), "channels_first", 64).shape
        torch.Size([8, 49, 64])
    """
    check_floating("feature maps", x)
    _check_shape(x, layout, channels)
    if layout == "channels_first":
        return x.flatten(2).mT
    return x.flatten(1, -2)[:, prefix_tokens:]


def as_mask(
    mask: Tensor | None, x: Tensor, layout: Layout, *, prefix_tokens: int = 0
) -> Tensor | None:
    """A mask as ``[B, N]``, without the prefix tokens.

    Args:
        mask: Boolean, True at valid positions; shaped as the maps without their channels.
        x: The maps.
        layout: Where their channels are.
        prefix_tokens: As for the maps.

    Raises:
        TypeError: If it is not boolean.
        ValueError: If its shape is not that of the maps.
    """
    if mask is None:
        return None
    check_boolean(mask)
    wanted = (x.shape[0], *x.shape[2:]) if layout == "channels_first" else x.shape[:-1]
    if mask.shape != torch.Size(wanted):
        raise ValueError(
            f"mask must have the shape {tuple(wanted)} of the maps without their channels; got "
            f"{tuple(mask.shape)}."
        )
    return mask.flatten(1)[:, prefix_tokens:]


def _check_shape(x: Tensor, layout: Layout, channels: int) -> None:
    place = 1 if layout == "channels_first" else -1
    shape, wanted = tuple(x.shape), _SHAPES[layout]
    if x.ndim == 2:
        raise ValueError(
            f"need feature maps {wanted}; got shape {shape}, which is pooled already. Put the "
            "head in the place of the backbone's own pooling."
        )
    if x.ndim < 3 or (layout == "tokens" and x.ndim != 3):
        raise ValueError(f"layout={layout!r} needs feature maps {wanted}; got shape {shape}.")
    if x.shape[place] != channels:
        raise ValueError(
            f"need {channels} channels in feature maps {wanted}; got shape {shape}. Set "
            "in_channels, or layout= if the channels are in another dimension."
        )
