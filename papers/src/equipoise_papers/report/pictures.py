"""Figures as pictures, reduced so that a page and a repository can hold them all."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

# A figure of one panel is 896 pixels wide; sheets of several panels need not be wider than this.
_MOST_PIXELS = 1400
# With fewer, or cut at medians alone, the rare bright end of a colour scale joins the background.
_COLOURS = 128
_THUMBNAIL_PIXELS = 200


def reduced(picture: Path) -> bytes:
    """Return a picture as a PNG of few colours, not wider than 1400 pixels.

    Raises:
        OSError: If there is no picture, or it cannot be read.
    """
    from PIL import Image  # comes with matplotlib

    with Image.open(picture) as opened:
        image = opened.convert("RGB")
    if image.width > _MOST_PIXELS:
        height = round(image.height * _MOST_PIXELS / image.width)
        image = image.resize((_MOST_PIXELS, height), Image.Resampling.LANCZOS)
    return min((_of_few_colours(image), picture.read_bytes()), key=len)


def thumbnail(picture: Path) -> bytes:
    """Return a picture as a PNG of 200 pixels' width.

    Raises:
        OSError: If there is no picture, or it cannot be read.
    """
    from PIL import Image  # comes with matplotlib

    with Image.open(picture) as opened:
        image = opened.convert("RGB")
    height = max(1, round(image.height * _THUMBNAIL_PIXELS / image.width))
    size = (_THUMBNAIL_PIXELS, height)
    return _of_few_colours(image.resize(size, Image.Resampling.LANCZOS), 32)


def _of_few_colours(image: Image.Image, colours: int = _COLOURS) -> bytes:
    from PIL import Image

    few = image.quantize(
        colours, method=Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE
    )
    buffer = io.BytesIO()
    few.save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def size(picture: bytes) -> tuple[int, int]:
    """Width and height of a PNG in pixels, so that a page reserves its place."""
    return int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])


def inline(picture: bytes) -> str:
    """Return a PNG as a ``data:`` address, which needs no file."""
    return "data:image/png;base64," + base64.b64encode(picture).decode()
