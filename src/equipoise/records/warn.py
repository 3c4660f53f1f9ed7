"""Warn at the line of the user's that called the library."""

from __future__ import annotations

import sys
import warnings

# Whose lines nobody can change: decorators, hooks and trainers stand between.
_PASSED_OVER = frozenset(
    {"equipoise", "torch", "contextlib", "transformers", "lightning", "pytorch_lightning"}
)


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line outside of this library and of training frameworks.

    A constant ``stacklevel`` counts decorators, and the frames of whoever calls a hook.

    Examples:
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_user("too few samples")
        >>> print(caught[0].message)
        too few samples
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _is_passed_over(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_passed_over(module: str) -> bool:
    return module.partition(".")[0] in _PASSED_OVER
