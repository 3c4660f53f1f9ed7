"""Public models as they are: the classes of packages that pip installs, made small.

Sizes are those of the packages' own arguments and configurations; nothing is rewritten, and what
they are trained with is left to the check-up to find. Each function imports its package itself, so
that a missing one concerns its own rows alone.
"""

from __future__ import annotations

from published._published import Published
from published.audio import AUDIO
from published.language import LANGUAGE
from published.others import OTHERS
from published.vision import VISION

PUBLISHED: tuple[Published, ...] = (*VISION, *LANGUAGE, *AUDIO, *OTHERS)

__all__ = ["PUBLISHED", "Published"]
