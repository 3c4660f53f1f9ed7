"""Whether numbers with errors decide a sentence."""

from __future__ import annotations

import math


def positive(value: float, margin: float) -> bool | None:
    """Whether a value is above zero; ``None`` if it is nearer to zero than its margin of error.

    Args:
        value: Such as a mean difference.
        margin: What chance explains; nan, where it is unknown, decides nothing.

    Examples:
        >>> positive(0.3, 0.1), positive(-0.3, 0.1), positive(0.05, 0.1)
        (True, False, None)
    """
    if math.isnan(value) or math.isnan(margin) or abs(value) <= margin:
        return None
    return value > 0
